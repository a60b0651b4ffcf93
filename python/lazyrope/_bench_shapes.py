"""The rows of ``lazyrope bench``: what is measured, and what is required of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import lazyrope

from ._bench_limits import AIM, Limit

PART = {80: 20, 96: 24}  # rotated columns of a partial rotary embedding, as models have them; else 32


def _part(head_dim: int) -> int:
    return PART.get(head_dim, 32)


ROPES = {
    "none": lambda head_dim: lazyrope.rope.none(),
    "neox": lambda head_dim: lazyrope.rope.neox(10000.0),
    "gptj": lambda head_dim: lazyrope.rope.gptj(10000.0),
    "linear": lambda head_dim: lazyrope.rope.linear(10000.0, factor=4.0),
    "llama3": lambda head_dim: lazyrope.rope.llama3(),
    "partial neox": lambda head_dim: lazyrope.rope.neox(10000.0, rotary_dim=_part(head_dim)),
    "partial gptj": lambda head_dim: lazyrope.rope.gptj(10000.0, rotary_dim=_part(head_dim)),
}

# What comes with PyTorch, and what is measured where its package can be imported.
TORCH_PEERS = ("cudnn", "flash_attention_2")
ALL_PEERS = (
    *TORCH_PEERS,
    "cudnn_paged",
    "flashinfer_fa2",
    "flashinfer_xqa",
    "flash_attention_4",
    "lazy_on_flashinfer",
)

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
    mask: str = "full"  # queries come after all keys; causal: they are the last tokens of the context
    rope: str = "llama3"
    ragged: bool = False  # documents of random lengths, doc_tokens on average
    first_context: int | None = None  # context of the first request, where it differs from the others'
    options: Overrides = field(default_factory=dict, hash=False)  # of the spec: window, softcap, sinks, ...
    against: dict[str, Overrides] = field(default_factory=dict, hash=False)  # our own kernel, timed in turns with this
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
        """One of ``against``: the same row but for the overrides, and with nothing to compare."""
        return replace(self, **{"against": {}, "peers": (), "limits": (), **overrides})

    def about(self) -> dict[str, Any]:
        """What the row says of itself in JSON."""
        unusual = {"ragged": self.ragged, "first_context": self.first_context}
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
            **{name: value for name, value in unusual.items() if value},
            **self.options,
        }

    @property
    def contexts(self) -> list[int]:
        """Cached tokens of each request."""
        return [self.first_context or self.context, *[self.context] * (self.batch - 1)]

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
        own = self.query_tokens if self.mask == "causal" else 0
        return [context - own for context in self.contexts]

    @property
    def kv_bytes(self) -> int:
        """Of the keys and values that the requests' queries see."""
        window = self.options.get("window")
        seen = sum(context if window is None else min(context, window) for context in self.contexts)
        return 2 * seen * self.heads[1] * self.head_dim * (1 if self.kv_dtype.startswith("float8") else 2)

    @property
    def flops(self) -> float:
        """Of the pairs of a query and a key that it sees."""
        pairs = sum(self._keys_seen(i) for i in range(self.query_tokens))
        return 4.0 * self.batch * self.heads[0] * pairs * self.head_dim

    def _keys_seen(self, query: int) -> int:
        """Query i of the chunk lies i tokens after the first."""
        window: int = self.options.get("window", self.context + self.query_tokens)
        if self.mask == "causal":
            return min(window, self.context - self.query_tokens + 1 + query)
        return min(self.context, max(0, window - 1 - query))


def _plain(context: int) -> dict[str, Overrides]:
    """The same kernel without what is lazy: keys as one document, nothing rotated."""
    return {"plain": {"rope": "none", "doc_tokens": context, "ragged": False}}


def _decode(batch: int, context: int, **options: Any) -> Shape:
    return Shape("decode", batch, options.pop("query_tokens", 1), context, peers=ALL_PEERS, **options)


def _aim(over: str | None, **options: float) -> Limit:
    return Limit(over, kind=AIM, **options)


# The decode of a served batch, at four sizes.
MAIN = [
    _decode(
        1,
        16384,
        limits=(
            Limit("stream_us", plus_us=4),
            Limit("best_peer", factor=1 / 1.15),
            _aim("stream_us", plus_us=1),
        ),
    ),
    _decode(
        8, 16384, limits=(Limit("stream_us", factor=1.05), Limit("best_peer", factor=1), _aim("stream_us", factor=1))
    ),
    _decode(
        64,
        4096,
        against=_plain(4096) | {"page_128": {"page_size": 128}},
        limits=(
            Limit("stream_us", factor=1.03),
            Limit("best_paged_peer", factor=1),
            Limit("plain", factor=1.01),
            Limit("page_128", factor=1.01),
            _aim("stream_us", factor=0.99),
        ),
    ),
    _decode(
        64,
        16384,
        limits=(
            Limit("stream_us", factor=1.015),
            Limit("best_paged_peer", factor=1),
            _aim("stream_us", factor=0.985),
        ),
    ),
]

# What a document's length costs.
DOCUMENTS = [
    _decode(64, 4096, doc_tokens=256, against=_plain(4096), limits=(Limit("plain", factor=1.02),)),
    _decode(64, 4096, doc_tokens=64, against=_plain(4096), limits=(Limit("plain", factor=1.05),)),
    _decode(1, 16384, doc_tokens=64, against=_plain(16384), limits=(Limit("plain", factor=1.10),)),
    _decode(64, 4096, doc_tokens=400, ragged=True, against=_plain(4096)),
    _decode(64, 4096, doc_tokens=64, ragged=True, against=_plain(4096)),
]


def _tokens(query_tokens: int, *limits: Limit) -> Shape:
    """Several tokens of a request, as those that a speculation proposed; each sees those before it."""
    against = {"one_token": {"query_tokens": 1}}
    return _decode(64, 4096, query_tokens=query_tokens, mask="causal", against=against, limits=limits)


OTHERS = [
    _tokens(4, Limit("one_token", factor=1.05)),
    _tokens(16, Limit("one_token", factor=1.3), _aim("one_token", factor=1.2)),
    _decode(64, 16384, kv_dtype="float8_e4m3fn", limits=(Limit(None, plus_us=530), _aim(None, plus_us=500))),
    _decode(64, 4096, page_size=128),
    _decode(64, 1024, first_context=65536, limits=(Limit("stream_us", factor=1 / 0.90),)),
    _decode(
        64,
        4096,
        options={"batch_invariant": True},
        against={"batch_variant": {"options": {}}},
        limits=(Limit("batch_variant", factor=1.05),),
    ),
]

# The planner alone: requests x segments of one step.
PLAN = [
    Shape("plan", 64, 1, 4096, peers=(), limits=(Limit("floor_us", plus_us=4),)),
    Shape("plan", 256, 1, 16384, doc_tokens=256, peers=(), limits=(Limit("floor_us", plus_us=10),)),
]

DECODE = [*MAIN, *DOCUMENTS, *OTHERS, *PLAN]
PREFILL = [Shape("prefill", 1, q, c) for q, c in ((64, 8192), (256, 8192), (512, 32768), (2048, 8192))]
APPEND = [Shape("append", 64, 1, 0), Shape("append", 1, 16384, 0)]
REPOSITION = [Shape("reposition", 1, 1024, 0), Shape("reposition", 1, 16384, 0)]


def _both(**options: Any) -> list[Shape]:
    """The decode and the prefill row at which shapes are compared."""
    return [Shape("decode", 64, 1, 16384, **options), Shape("prefill", 1, 512, 32768, **options)]


def _over(field_name: str, value: str, **options: Any) -> list[Shape]:
    """Beside our own kernel with another value of one field, and no peers."""
    return _both(against={value: {field_name: value}}, peers=(), **options)


def _breadth() -> list[Shape]:
    """Every head_dim, group, per-rank shape, RoPE variant and treatment of scores."""
    rows: list[Shape] = []
    for head_dim in lazyrope.head_dims():
        for group in (1, 4, 8):
            rows += _both(head_dim=head_dim, heads=(8 * group, 8), rope="neox")
    for group in [*range(1, 17), 71]:
        if group not in (1, 4, 8):
            rows += _both(heads=(8 * group, 8), rope="neox")
    for heads in ((8, 1), (16, 2), (4, 1)):
        rows += _both(heads=heads, rope="neox")
    for rope in ROPES:
        if rope != "neox":
            rows += _over("rope", "neox", rope=rope)
    for head_dim in PART:
        for rope in ("partial neox", "partial gptj"):
            rows += _over("rope", "neox", head_dim=head_dim, rope=rope)
    for options in ({"softcap": 50.0}, {"sinks": True}, {"window": 4096}):
        rows += _both(rope="neox", options=options, peers=())  # which have no such scores
    for kv_dtype in ("float8_e4m3fn", "float8_e5m2"):
        for head_dim in (d for d in lazyrope.head_dims() if d % 16 == 0):
            rows += _over("kv_dtype", "bfloat16", head_dim=head_dim, rope="neox", kv_dtype=kv_dtype)
    return rows


MOST_KV = 16 << 30  # bytes of keys and values of one row
LLAMA = {"heads": (32, 8), "head_dim": 128}


def _swept(batch: int, context: int, **options: Any) -> list[Shape]:
    """A row of the sweep, unless its keys and values are too many."""
    shape = Shape("decode", batch, 1, context, **options)
    large = [Limit("stream_us", factor=1 / 0.90)] if shape.kv_bytes > 1e9 else []
    limits = (Limit("best_peer", factor=1.03, plus_us=1), *large)
    return [replace(shape, limits=limits)] if shape.kv_bytes <= MOST_KV else []


def _sweep() -> list[Shape]:
    """Llama's shape at every size, then other head dims, groups and the shares of a rank at some."""
    rows: list[Shape] = []
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        for context in (1 << i for i in range(10, 18)):
            rows += _swept(batch, context, **LLAMA)
    groups = [(8 * group, 8) for group in (1, 4, 7, 8, 16)]
    shapes = [{"heads": heads, "head_dim": head_dim} for head_dim in (64, 128, 256) for heads in groups]
    shapes += [{"heads": heads, "head_dim": 128} for heads in ((8, 1), (16, 2))]
    sizes = [(1, 1024), (1, 16384), (1, 131072), (4, 4096), (16, 16384)]
    sizes += [(64, 4096), (64, 16384), (256, 1024), (256, 4096)]
    for options in shapes:
        if options != LLAMA:
            for batch, context in sizes:
                rows += _swept(batch, context, **options)
    return rows


TABLES = {
    "decode": DECODE,
    "sweep": _sweep(),
    "prefill": PREFILL,
    "append": APPEND,
    "reposition": REPOSITION,
    "breadth": _breadth(),
    # What the README's first table of figures shows: beside PyTorch only.
    "all": [*(replace(row.variant({}), peers=TORCH_PEERS) for row in MAIN), *PREFILL, *APPEND, *REPOSITION],
}
