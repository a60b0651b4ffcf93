"""Levels of recovery as the tokens that they compute again, for the slow reference.

Sources: EPIC (arXiv 2410.15332) for first pages, ProphetKV (arXiv 2602.02579) for pages by the prompt's attention,
CacheBlend (arXiv 2405.16444) for the largest deviation of values, APE (arXiv 2502.05431).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from lazyrope.recovery import PAGE, PageChoice

from tools.quality.reference import Answer, Reference, Stored, Temperature

# The layers whose values CacheBlend's rule compares: the first one depends on no other document.
DEVIATION_LAYERS = slice(1, 3)
# The numbers of first layers that choose guided pages, beside all layers.
FIRST_LAYERS = (4, 8, 16)


@dataclass
class Request:
    """A prompt over documents, with all that a level may look at before it chooses."""

    stored: Stored
    prompt: Sequence[int]
    first: Answer  # the prompt over the stored documents alone
    full_values: list[torch.Tensor]  # the values of an ordinary prefill, for each layer
    rng: random.Random


Choose = Callable[[Request], list[int]]


@dataclass(frozen=True)
class Level:
    """A level: whether documents are computed behind the prefix, and the tokens that are computed again."""

    name: str
    behind_prefix: bool = False
    choose: Choose | None = None
    temperature: Temperature | None = None

    def answer(self, reference: Reference, request: Request) -> tuple[Answer, float]:
        """Returns the prompt's logits, and the share of the documents' tokens that are computed again."""
        again = self.choose(request) if self.choose else []
        total = len(request.stored.ids) - request.stored.prefix
        if not again and self.temperature is None:
            return request.first, 0.0
        return reference.read(request.stored, request.prompt, again, self.temperature), len(again) / total


def incomplete_documents(stored: Stored) -> list[range]:
    """Returns the documents that have not seen everything before them: all but a first one that saw the prefix."""
    is_complete = stored.behind_prefix or stored.prefix == 0
    return stored.documents()[1 if is_complete else 0 :]


def pages_of(stored: Stored) -> list[range]:
    """Returns the pages of all documents that have not seen everything before them. Each begins with its document."""
    return _pages(stored, _choice(stored, 0.0, 0))


def _pages(stored: Stored, choice: PageChoice) -> list[range]:
    """Returns the pages of a choice. They count from the prefix's first token, as all tokens of ``stored`` do."""
    return [range(stored.prefix + page.start, stored.prefix + page.stop) for page in choice.pages]


def _choice(stored: Stored, share: float, first: int) -> PageChoice:
    """Returns the choice that an engine would make.

    An engine chooses no token of the first document. An empty document is put first if all of them are incomplete.
    """
    documents = stored.documents()
    empty = (0,) if len(incomplete_documents(stored)) == len(documents) else ()
    return PageChoice((*empty, *map(len, documents)), share, first)


def first_tokens(count: int) -> Choose:
    """Level 1: the first tokens of each document that has not seen everything before it."""

    def choose(request: Request) -> list[int]:
        return [i for document in incomplete_documents(request.stored) for i in document[:count]]

    return choose


def _best_pages(stored: Stored, share: float, score: Callable[[range], float], first: int) -> list[int]:
    """Returns the tokens that an engine would choose by these scores of pages. The first ones of documents are in."""
    choice = _choice(stored, share, first)
    return [stored.prefix + i for i in choice.tokens([score(page) for page in _pages(stored, choice)])]


def _as_many_as_guided(request: Request, share: float, score: Callable[[range], float]) -> list[int]:
    """Returns the tokens of the pages with the best scores, exactly as many as :func:`guided` chooses."""
    pages = sorted(pages_of(request.stored), key=score, reverse=True)
    count = len(guided(share)(request))
    return sorted([i for page in pages for i in page][:count])


def first_pages(share: float) -> Choose:
    """The first pages of all documents, of as many tokens as :func:`guided` chooses. The last page may be cut."""

    def choose(request: Request) -> list[int]:
        begins = [document.start for document in request.stored.documents()]
        return _as_many_as_guided(
            request, share, lambda page: begins[bisect_right(begins, page.start) - 1] - page.start
        )

    return choose


def guided(share: float, first: int = PAGE, layers: int | None = None) -> Choose:
    """Level 2: first pages, and then the pages to which the prompt attends most, in the first layers or in all.

    First pages are always among them. With many short documents they alone may be more than the share.
    """

    def choose(request: Request) -> list[int]:
        return _best_pages(request.stored, share, _sum_over(request.first.mass(layers)), first)

    return choose


def guided_by_both(share: float, first: int = PAGE) -> Choose:
    """First pages, and then the pages with the greatest sum of the prompt's attention times the values' deviation.

    It costs what both rules cost. A page that the prompt does not read need not be right, and a page that would not
    change need not be computed again.
    """

    def choose(request: Request) -> list[int]:
        product = request.first.mass() * _deviation(request).sqrt()
        return _best_pages(request.stored, share, _sum_over(product), first)

    return choose


def at_random(share: float) -> Choose:
    """Random pages, of as many tokens as :func:`guided` chooses. The last page may be cut."""

    def choose(request: Request) -> list[int]:
        return _as_many_as_guided(request, share, lambda _page: request.rng.random())

    return choose


def deviating(share: float) -> Choose:
    """CacheBlend's rule: the pages whose values in the first layers differ most from those of an ordinary prefill.

    They have as many tokens as :func:`guided` chooses, and the last page may be cut.
    """

    def choose(request: Request) -> list[int]:
        return _as_many_as_guided(request, share, _sum_over(_deviation(request)))

    return choose


def _sum_over(scores: torch.Tensor) -> Callable[[range], float]:
    return lambda page: float(scores[page.start : page.stop].sum())


def _deviation(request: Request) -> torch.Tensor:
    """Returns each token's squared deviation of the values in DEVIATION_LAYERS, summed over columns and heads."""
    stored, total = request.stored, len(request.stored.ids)
    deviation = torch.zeros(total, device=stored.values[0].device)
    for full, alone in zip(request.full_values[DEVIATION_LAYERS], stored.values[DEVIATION_LAYERS], strict=True):
        deviation += (full[:, :, :total] - alone).float().square().sum((0, 1, 3))
    return deviation


def all_levels(share: float = 0.15) -> list[Level]:
    percent = f"{share:.0%}"
    levels = [Level("none")]
    for behind in (False, True):
        with_prefix = ["prefix"] if behind else []
        levels += [Level("prefix", True)] if behind else []
        rules = {
            "first_page 16": first_tokens(16),
            "first_page 32": first_tokens(32),
            f"first pages {percent}": first_pages(share),
            f"guided {percent}": guided(share),
            **{f"guided {percent} by {n} layers": guided(share, layers=n) for n in FIRST_LAYERS},
            f"guided x deviation {percent}": guided_by_both(share),
            f"random {percent}": at_random(share),
            f"CacheBlend's rule {percent}": deviating(share),
        }
        levels += [Level(" + ".join([*with_prefix, name]), behind, choose) for name, choose in rules.items()]
    return [*levels, Level("prefix + ape", True, temperature=Temperature(0.9, 0.9))]
