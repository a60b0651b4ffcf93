"""The named cells of the benchmark: one arm under one load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

GIB = 1 << 30
# Each arm with what a document sees in it. Stock vLLM has no block mask, also with lazyrope's kernels.
ARMS = {
    "stock": "stock vLLM with its own attention (FlashAttention-3 on Hopper) and prefix caching. A document sees those "
    "before it.",
    "kernel": "stock vLLM with lazyrope's kernels. A document sees those before it.",
    "copies": "Block-Attention by lazyrope's scheduler: a request copies its documents and rotates the copies. A "
    "document sees itself alone. As many requests run at a time as serve fastest in trials.",
    "documents": "lazyrope: requests share the blocks of documents. A document sees itself alone.",
    "first_page": "lazyrope with the level first_page. A document sees itself alone, but its first 16 tokens, which "
    "each request computes again, see all before them.",
}
LOADS = ("closed", "poisson", "first_token", "decode")
NEAR_LIMIT = 0.8  # the arrivals of a Poisson load, as a part of what the same arm serves in the closed loop


@dataclass(frozen=True)
class Cell:
    """One arm under one load.

    Attributes:
        arm: A key of ARMS.
        load: "closed": clients that each send the next request when the last one is answered. "poisson": arrivals at
            random. "first_token": one request at a time, its documents cold, stored in this order, stored in another
            order. "decode": requests of 4k context without documents.
        clients: The clients, or the requests of "decode". The rate of "poisson" is taken from the closed loop of as
            many clients.
        answer: The tokens of an answer.
        zipf: The exponent of Zipf's law over the documents. 0: uniform.
        budget_gib: The KV cache, in GiB.
    """

    arm: str
    load: str
    clients: int = 32
    answer: int = 16
    zipf: float = 0.0
    budget_gib: float = 60.0

    @property
    def name(self) -> str:
        if self.load == "first_token":
            return f"{self.arm} first_token"
        if self.load == "decode":
            return f"{self.arm} decode of {self.clients}"
        return (
            f"{self.arm} {self.load} {self.clients} clients, {self.answer} tokens, Zipf {self.zipf:g}, "
            f"{self.budget_gib:g} GiB"
        )

    def closed_loop(self) -> Cell:
        """Returns the cell from which a Poisson load takes its rate."""
        return replace(self, load="closed")


def cells() -> list[Cell]:
    """Returns all cells, those of one arm in the order in which they run."""
    return [*_first_tokens(), *_decodes(), *_closed_loops(), *_poisson()]


def _first_tokens() -> Iterator[Cell]:
    for arm in ("stock", "copies", "documents", "first_page"):
        yield Cell(arm, "first_token")


def _decodes() -> Iterator[Cell]:
    for arm in ("stock", "kernel"):
        for requests in (1, 32, 128):
            yield Cell(arm, "decode", clients=requests, answer=256)


def _closed_loops() -> Iterator[Cell]:
    for arm in ("copies", "documents"):
        for zipf in (2.1, 1.1, 0.0):
            for budget in (16, 8, 32, 60) if zipf else (16, 60):
                yield Cell(arm, "closed", zipf=zipf, budget_gib=budget)
        for zipf in (2.1, 1.1):
            yield Cell(arm, "closed", clients=128, zipf=zipf, budget_gib=16)
            yield Cell(arm, "closed", answer=128, zipf=zipf, budget_gib=16)
        yield Cell(arm, "closed", clients=128, zipf=1.1, budget_gib=60)
    for zipf in (1.1, 2.1, 0.0):
        for budget in (16, 60):
            yield Cell("stock", "closed", zipf=zipf, budget_gib=budget)
    for budget in (16, 60):
        yield Cell("kernel", "closed", zipf=1.1, budget_gib=budget)
    for zipf in (2.1, 1.1):
        yield Cell("first_page", "closed", zipf=zipf, budget_gib=16)


def _poisson() -> Iterator[Cell]:
    for arm in ("stock", "copies", "documents"):
        for zipf in (1.1, 2.1):
            yield Cell(arm, "poisson", zipf=zipf, budget_gib=16)
