"""What a row of ``lazyrope bench`` is of."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import lazyrope

from .limits import Limit

PART = {80: 20, 96: 24}  # rotated columns of a partial rotary embedding, as models have them; else 32


def _part(head_dim: int) -> int:
    return PART.get(head_dim, 32)


ROPES = {
    "none": lambda head_dim: lazyrope.rope.none(),
    "neox": lambda head_dim: lazyrope.rope.neox(10000.0),
    "gptj": lambda head_dim: lazyrope.rope.gptj(10000.0),
    "linear": lambda head_dim: lazyrope.rope.linear(10000.0, factor=4.0),
    "llama3": lambda head_dim: lazyrope.rope.llama3(),
    "yarn": lambda head_dim: lazyrope.rope.yarn(150000.0, factor=32.0, original_max_position_embeddings=4096),
    "partial neox": lambda head_dim: lazyrope.rope.neox(10000.0, rotary_dim=_part(head_dim)),
    "partial gptj": lambda head_dim: lazyrope.rope.gptj(10000.0, rotary_dim=_part(head_dim)),
}

# What comes with PyTorch, and what is measured where its package can be imported.
TORCH_PEERS = ("cudnn", "flash_attention_2")
PACKAGE_PEERS = ("cudnn_paged", "flashinfer_fa2", "flash_attention_4", "lazy_on_flashinfer")
DECODE_PEERS = (*TORCH_PEERS, *PACKAGE_PEERS, "flashinfer_xqa")
PREFILL_PEERS = (
    *TORCH_PEERS,
    *PACKAGE_PEERS,
    "flashinfer_fa3",
    "flashinfer_contiguous",
    "flash_attention_4_contiguous",
)
ALL_PEERS = tuple(dict.fromkeys([*DECODE_PEERS, *PREFILL_PEERS]))

Overrides = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """One row: a batch of requests, each with query_tokens over context tokens of cached documents."""

    kernel: str
    batch: int
    query_tokens: int
    context: int
    doc_tokens: int = 1024
    heads: tuple[int, int] = (32, 8)
    head_dim: int = 128
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    page_size: int = 16
    pools_apart: bool = False  # all keys before all values; else each page's keys beside its values
    mask: str = "full"  # queries come after all keys; causal: they are the last tokens of the context
    rope: str = "llama3"
    ragged: bool = False  # documents of random lengths, doc_tokens on average
    first_context: int | None = None  # context of the first request, where it differs from the others'
    first_tokens: int | None = None  # its query tokens, likewise
    family: str | None = None  # of the kernels, where it is not the newest that the GPU has
    group: str | None = None  # rows that are evaluated together
    options: Overrides = field(default_factory=dict, hash=False)  # of the spec: window, softcap, sinks, ...
    variants: dict[str, Overrides] = field(default_factory=dict, hash=False)  # our own kernel, interleaved with this
    peers: tuple[str, ...] = TORCH_PEERS
    limits: tuple[Limit, ...] = ()

    def spec(self) -> lazyrope.AttentionSpec:
        """Causal, or with a window; which hides nothing from queries that come after all keys."""
        return lazyrope.AttentionSpec(
            head_dim=self.head_dim,
            num_q_heads=self.heads[0],
            num_kv_heads=self.heads[1],
            rope=ROPES[self.rope](self.head_dim),
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            mask="sliding_window" if "window" in self.options else "causal",
            **self.options,
        )

    def variant(self, overrides: Overrides) -> Shape:
        """One of ``variants``: the same row but for the overrides, and with nothing to compare."""
        return replace(self, **{"variants": {}, "peers": (), "limits": (), **overrides})

    def about(self) -> dict[str, Any]:
        """What the row says of itself in JSON."""
        names = ("pools_apart", "ragged", "first_context", "first_tokens", "family", "group")
        non_default = {name: getattr(self, name) for name in names}
        return {
            "kernel": self.kernel,
            "mask": self.mask,
            "batch": self.batch,
            "query_tokens": self.query_tokens,
            "context": self.context,
            "doc_tokens": self.doc_tokens,
            "heads": list(self.heads),
            "head_dim": self.head_dim,
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "page_size": self.page_size,
            "rope": self.rope,
            **{name: value for name, value in non_default.items() if value},
            **self.options,
        }

    @property
    def contexts(self) -> list[int]:
        """Cached tokens of each request."""
        return [self.first_context or self.context, *[self.context] * (self.batch - 1)]

    @property
    def tokens(self) -> list[int]:
        """Query tokens of each request."""
        return [self.first_tokens or self.query_tokens, *[self.query_tokens] * (self.batch - 1)]

    @property
    def documents(self) -> list[list[int]]:
        """Tokens of each document of each request; the same every time."""
        lengths = random.Random(self.doc_tokens)
        return [self._documents(context, lengths) for context in self.contexts]

    def _documents(self, context: int, lengths: random.Random) -> list[int]:
        result: list[int] = []
        while (left := context - sum(result)) > 0:
            length = lengths.randint(1, 2 * self.doc_tokens - 1) if self.ragged else self.doc_tokens
            result.append(min(length, left))
        return result

    @property
    def first_query(self) -> list[int]:
        """Position of each request's first query."""
        if self.mask != "causal":
            return self.contexts
        return [context - tokens for context, tokens in zip(self.contexts, self.tokens, strict=True)]

    @property
    def kv_bytes(self) -> int:
        """Of the keys and values that the requests' queries see."""
        window = self.options.get("window")
        seen = sum(context if window is None else min(context, window) for context in self.contexts)
        return 2 * seen * self.heads[1] * self.head_dim * (1 if self.kv_dtype.startswith("float8") else 2)

    @property
    def flops(self) -> float:
        """Of the pairs of a query and a key that it sees."""
        requests = Counter(zip(self.contexts, self.tokens, strict=True))
        pairs = sum(
            count * self._keys_seen(context, tokens, i)
            for (context, tokens), count in requests.items()
            for i in range(tokens)
        )
        return 4.0 * self.heads[0] * pairs * self.head_dim

    def _keys_seen(self, context: int, tokens: int, query: int) -> int:
        """Query i of a request's chunk lies i tokens after the first."""
        window: int = self.options.get("window", context + tokens)
        if self.mask == "causal":
            return min(window, context - tokens + 1 + query)
        return min(context, max(0, window - 1 - query))


def plain(context: int) -> dict[str, Overrides]:
    """The same kernel without what is lazy: keys as one document, nothing rotated."""
    return {"plain": {"rope": "none", "doc_tokens": context, "ragged": False}}
