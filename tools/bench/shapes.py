"""The shapes that the project measures: those of ``lazyrope bench``, with more settings, variants and limits."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields, replace
from typing import Any

import lazyrope
from lazyrope._batch import CELL_ENTRY
from lazyrope.bench import shapes as user
from lazyrope.bench.shapes import TORCH_PEERS
from lazyrope.bench.timer import Memory

from tools.bench.limits import Limit

PACKAGE_PEERS = (
    "cudnn_paged",
    "flash_attention_3",
    "flash_attention_3_contiguous",
    "flashinfer_fa2",
    "flash_attention_4",
    "lazy_on_flashinfer",
)
DECODE_PEERS = (*TORCH_PEERS, *PACKAGE_PEERS, "flashinfer_xqa")
PREFILL_PEERS = (
    *TORCH_PEERS,
    *PACKAGE_PEERS,
    "flashinfer_fa3",
    "flashinfer_contiguous",
    "flash_attention_4_contiguous",
)

Overrides = dict[str, Any]
MASKS = {"window": "sliding_window", "chunk": "chunked"}  # by the option that only they have


@dataclass(frozen=True)
class Shape(user.Shape):
    pools_apart: bool = False  # all keys are before all values; otherwise a page's values follow its keys
    ragged: bool = False  # documents have random lengths, doc_tokens on average
    doc_between: tuple[int, int] | None = None  # documents have random lengths between these
    first_context: int | None = None  # context of the first request, if it differs from the others'
    first_tokens: int | None = None  # query tokens of the first request, if they differ from the others'
    family: str | None = None  # family of the kernels, if it is not the newest that the GPU has
    config: Overrides = field(default_factory=dict, hash=False)  # changes of the default KernelConfig
    group: str | None = None  # rows of one group are evaluated together
    cell: int = 0  # the entries of a cell, if attention states are in cells
    options: Overrides = field(default_factory=dict, hash=False)  # further fields of the spec
    variants: dict[str, Overrides] = field(default_factory=dict, hash=False)  # changes of the row's own kernel
    peers_at: Overrides = field(default_factory=dict, hash=False)  # changes of the step that peers compute
    limits: tuple[Limit, ...] = ()

    def spec(self, **further: Any) -> lazyrope.AttentionSpec:
        """Returns a causal spec, or one with a window or chunks, with the shape's options and further ones."""
        mask = next((mask for option, mask in MASKS.items() if option in self.options), "causal")
        options = {**self.options, **further}
        if "temperature" in options:
            beta, interval, offset = options["temperature"]
            options["temperature"] = lazyrope.QueryTemperature(beta=beta, interval=interval, offset=offset)
        return super().spec(mask=mask, **options)

    @property
    def kernel_key(self) -> str:
        return f"{super().kernel_key} {self.family} {self.config}"

    def variant(self, overrides: Overrides) -> Shape:
        """Returns the same shape with the overrides, and without variants, peers and limits."""
        return replace(self, **{"variants": {}, "peers": (), "peers_at": {}, "limits": (), **overrides})

    @property
    def of_peers(self) -> Shape:
        """The step that peers compute."""
        return self.variant({"peers": self.peers, **self.peers_at})

    def about(self) -> dict[str, Any]:
        names = (
            "pools_apart",
            "ragged",
            "doc_between",
            "first_context",
            "first_tokens",
            "family",
            "group",
            "peers_at",
            "cell",
        )
        non_default = {name: getattr(self, name) for name in names}
        return {**super().about(), **{name: value for name, value in non_default.items() if value}, **self.options}

    def pools(self, memory: Memory, num_pages: int) -> tuple[Any, Any]:
        if not self.pools_apart:
            return super().pools(memory, num_pages)
        return memory.keys_and_values((num_pages, self.page_size, self.heads[1], self.head_dim), self.kv_dtype)

    @property
    def contexts(self) -> list[int]:
        return [self.first_context or self.context, *[self.context] * (self.batch - 1)]

    @property
    def tokens(self) -> list[int]:
        return [self.first_tokens or self.query_tokens, *[self.query_tokens] * (self.batch - 1)]

    @property
    def documents(self) -> list[list[int]]:
        between = (1, 2 * self.doc_tokens - 1) if self.ragged else self.doc_between
        if between is None:
            return super().documents
        lengths = random.Random(self.doc_tokens)
        return [_ragged_documents(context, lengths, between) for context in self.contexts]

    @property
    def kv_tokens(self) -> int:
        window = self.options.get("window")
        return sum(context if window is None else min(context, window) for context in self.contexts)

    @property
    def memory_code(self) -> int:
        return super().memory_code + CELL_ENTRY * self.cell

    @property
    def kv_bytes(self) -> int:
        if "states" not in self.options:
            return super().kv_bytes
        keys = super().kv_bytes // 2  # a look-up reads few values of a memory
        if not self.cell:
            return keys
        # With cells it reads the centres, and a cell for each query row.
        cells = self.context // (self.cell + 1)
        rows = self.query_tokens * self.heads[0] // self.heads[1]
        return keys // self.context * min(self.context, cells + rows * self.cell)

    def keys_seen(self, context: int, tokens: int, query: int) -> int:
        seen = super().keys_seen(context, tokens, query)
        window = self.options.get("window")
        if window is None:
            return seen
        if self.mask == "causal":
            return min(window, seen)
        return min(seen, max(0, window - 1 - query))  # this query comes `query` tokens after the first one


def _ragged_documents(context: int, lengths: random.Random, between: tuple[int, int]) -> list[int]:
    """Returns the tokens of documents that fill a context. The last one may be shorter than the others can be."""
    result: list[int] = []
    while (left := context - sum(result)) > 0:
        result.append(min(lengths.randint(*between), left))
    return result


def of_user(shape: user.Shape) -> Shape:
    """Returns a shape of ``lazyrope bench``, without limits and variants."""
    return Shape(**{each.name: getattr(shape, each.name) for each in fields(shape)})


def plain(context: int) -> dict[str, Overrides]:
    """Returns the variant without lazy RoPE: each context is one document, and nothing is rotated."""
    return {"plain": {"rope": "none", "doc_tokens": context, "ragged": False, "doc_between": None}}
