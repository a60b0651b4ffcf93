"""The rows of ``python -m tools.bench decode`` and ``sweep``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tools.bench.limits import Limit, aim
from tools.bench.shapes import DECODE_PEERS, Shape, plain


def _decode(batch: int, context: int, **options: Any) -> Shape:
    return Shape("decode", batch, options.pop("query_tokens", 1), context, peers=DECODE_PEERS, **options)


# The sizes of `lazyrope bench decode`, with limits.
MAIN = [
    _decode(
        1,
        16384,
        limits=(
            Limit("stream_us", plus_us=4),
            Limit("best_peer", factor=1 / 1.15),
            aim("stream_us", plus_us=1),
        ),
    ),
    _decode(
        8, 16384, limits=(Limit("stream_us", factor=1.05), Limit("best_peer", factor=1), aim("stream_us", factor=1))
    ),
    _decode(
        64,
        4096,
        variants=plain(4096) | {"page_128": {"page_size": 128}},
        limits=(
            Limit("stream_us", factor=1.03),
            Limit("best_paged_peer", factor=1),
            Limit("plain", factor=1.01),
            Limit("page_128", factor=1.01),
            aim("stream_us", factor=0.99),
        ),
    ),
    _decode(
        64,
        16384,
        variants={"pools_apart": {"pools_apart": True}},
        limits=(
            Limit("stream_us", factor=1.015),
            Limit("best_paged_peer", factor=1),
            aim("stream_us", factor=0.985),
        ),
    ),
]

# Short documents, beside one document without rotation.
DOCUMENTS = [
    _decode(64, 4096, doc_tokens=256, variants=plain(4096), limits=(Limit("plain", factor=1.02),)),
    _decode(64, 4096, doc_tokens=64, variants=plain(4096), limits=(Limit("plain", factor=1.05),)),
    _decode(1, 16384, doc_tokens=64, variants=plain(16384), limits=(Limit("plain", factor=1.10),)),
    _decode(64, 4096, doc_tokens=400, ragged=True, variants=plain(4096)),
    _decode(
        64,
        4096,
        doc_tokens=64,
        ragged=True,
        variants=plain(4096),
        limits=(Limit("plain", factor=1.05), aim("plain", factor=1.02)),
    ),
    _decode(
        128,
        3072,
        heads=(28, 4),
        doc_between=(40, 700),
        limits=(Limit("best_peer", factor=1.02), aim("best_peer", factor=1.00)),
    ),
]


def _tokens(query_tokens: int, *limits: Limit) -> Shape:
    """Returns a row of several query tokens per request under a causal mask, as in speculative decoding."""
    variants = {"one_token": {"query_tokens": 1}}
    return _decode(64, 4096, query_tokens=query_tokens, mask="causal", variants=variants, limits=limits)


OTHERS = [
    _tokens(4, Limit("one_token", factor=1.05)),
    _tokens(16, Limit("one_token", factor=1.3), aim("one_token", factor=1.2)),
    _decode(64, 16384, kv_dtype="float8_e4m3fn", limits=(Limit(None, plus_us=530), aim(None, plus_us=500))),
    _decode(64, 4096, page_size=128),
    _decode(64, 1024, first_context=65536, limits=(Limit("stream_us", factor=1 / 0.90),)),
    _decode(
        64,
        4096,
        options={"batch_invariant": True},
        variants={"batch_variant": {"options": {}}},
        limits=(Limit("batch_variant", factor=1.05),),
    ),
]

# Small steps, beside splits of equal cost.
EQUAL_COST: dict[str, Any] = {"equal_cost": {"config": {"equal_splits": False}}}
SMALL = [
    _decode(2, 1024, variants=EQUAL_COST, limits=(Limit("equal_cost", factor=0.93),)),
    _decode(4, 4096, heads=(8, 1), variants=EQUAL_COST, limits=(Limit("equal_cost", factor=0.92),)),
    _decode(1, 16384, heads=(8, 1), variants=EQUAL_COST, limits=(Limit("equal_cost", factor=0.91),)),
]

# The planner alone.
PLAN = [
    Shape("plan", 64, 1, 4096, peers=(), limits=(Limit("floor_us", plus_us=4),)),
    Shape("plan", 256, 1, 16384, doc_tokens=256, peers=(), limits=(Limit("floor_us", plus_us=10),)),
]

DECODE = [*MAIN, *DOCUMENTS, *OTHERS, *SMALL, *PLAN]

MOST_KV = 16 << 30  # bytes of keys and values of one row
LLAMA = {"heads": (32, 8), "head_dim": 128}


def _swept(batch: int, context: int, **options: Any) -> list[Shape]:
    """Returns one row of the sweep, or none if its keys and values exceed MOST_KV."""
    shape = Shape("decode", batch, 1, context, **options)
    large = [Limit("stream_us", factor=1 / 0.90)] if shape.kv_bytes > 1e9 else []
    limits = (Limit("best_peer", factor=1.03, plus_us=1), *large)
    return [replace(shape, limits=limits)] if shape.kv_bytes <= MOST_KV else []


def sweep() -> list[Shape]:
    """Returns Llama's shape at every size, and other head_dims, groups and heads of one rank at some sizes."""
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
