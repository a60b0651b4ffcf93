"""The rows of ``python -m tools.bench prefill``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tools.bench.limits import Limit, MeanLimit, aim
from tools.bench.shapes import PREFILL_PEERS, TORCH_PEERS, Shape, plain


def _at_least(tflops: float, shape: Shape) -> Limit:
    """Returns the limit of the time that gives a rate."""
    return Limit(None, plus_us=shape.flops / tflops / 1e6)


def _chunk(query_tokens: int, context: int, *limits: Limit, **options: Any) -> Shape:
    """Returns a row of one request: a chunk of queries after all documents."""
    return Shape("prefill", 1, query_tokens, context, limits=limits, **options)


def _large_chunk(query_tokens: int, context: int) -> Shape:
    """Returns a row that is compared with one document without rotation and with pages of 128 tokens."""
    variants = plain(context) | {"page_128": {"page_size": 128}}
    shape = _chunk(query_tokens, context, peers=PREFILL_PEERS, variants=variants)
    limits = (
        _at_least(640, shape),
        Limit("plain", factor=1.02),
        Limit("page_128", factor=1.02),
        aim("best_peer", factor=1),
    )
    return replace(shape, limits=limits)


# Whole requests have contiguous keys anyway, so few of their peers are paged.
SQUARE_PEERS = (
    *TORCH_PEERS,
    "cudnn_paged",
    "flash_attention_3_contiguous",
    "flashinfer_contiguous",
    "flash_attention_4_contiguous",
)

LARGE = ((512, 32768), (2048, 8192))

CHUNKS = [
    _chunk(64, 8192, Limit(None, plus_us=36), aim(None, plus_us=26), peers=PREFILL_PEERS),
    _chunk(256, 8192, Limit(None, plus_us=85), aim(None, plus_us=62), peers=PREFILL_PEERS),
    *(_large_chunk(*size) for size in LARGE),
]


def _documents() -> list[Shape]:
    """Returns rows with short documents. Their limits are over one document without rotation."""
    # (head_dim, doc_tokens): the factors that are required and aimed at.
    most: dict[tuple[int, int], tuple[float, float | None]] = {
        (128, 256): (1.06, None),
        (64, 1024): (1.03, None),
        (64, 256): (1.08, None),
    }
    most |= {(256, 1024): (1.06, 1.03), (256, 256): (1.20, 1.12)}
    rows = []
    for (head_dim, doc_tokens), (required, aimed) in most.items():
        limits = [Limit("plain", factor=required), *([aim("plain", factor=aimed)] if aimed else [])]
        for query_tokens, context in LARGE:
            peers = ("lazy_on_flashinfer",) if head_dim == 128 else TORCH_PEERS
            options: dict[str, Any] = {"head_dim": head_dim, "doc_tokens": doc_tokens, "variants": plain(context)}
            rows.append(_chunk(query_tokens, context, *limits, peers=peers, **options))
    return rows


def _within(required: float, aimed: float, over: str = "best_peer") -> tuple[Limit, Limit]:
    """Returns the factors over another figure that are required and aimed at."""
    return Limit(over, factor=required), aim(over, factor=aimed)


def _other_lengths() -> list[Shape]:
    """Returns rows with further lengths of documents, for the plot. They have no limits."""
    return [
        _chunk(2048, 8192, head_dim=head_dim, doc_tokens=doc_tokens, variants=plain(8192), peers=())
        for head_dim in (64, 128, 256)
        for doc_tokens in (64, 512, 4096)
    ]


# The same step with keys that are not packed.
PACKED: dict[str, Any] = {"options": {"packed_prefill": True}, "variants": {"from_pool": {"options": {}}}}


def _short_documents() -> list[Shape]:
    """Returns rows with short documents, whose keys are packed."""
    most = {64: _within(1.65, 1.3), 128: _within(1.35, 1.12), 256: _within(1.22, 1.09)}
    return [
        _chunk(2048, 8192, *limits, head_dim=head_dim, doc_tokens=64, peers=PREFILL_PEERS, **PACKED)
        for head_dim, limits in most.items()
    ]


def _ragged() -> list[Shape]:
    """Returns rows with documents of the lengths that retrieval has: passages, and whole pages."""
    passages = _chunk(1024, 20480, *_within(1.01, 0.97), doc_between=(40, 700), peers=PREFILL_PEERS, **PACKED)
    limits = _within(1.00, 0.91)
    pages = Shape("prefill", 4, 96, 10240, doc_between=(200, 4000), peers=PREFILL_PEERS, limits=limits)
    return [passages, pages, replace(pages, limits=(), peers=(), **PACKED)]


def _other_head_dims() -> list[Shape]:
    """Returns rows of head dimensions that are not powers of two."""
    rows = [
        _chunk(1024, 16384, *_within(*factors), head_dim=head_dim, peers=TORCH_PEERS)
        for head_dim, factors in {80: (1.01, 0.91), 160: (1.04, 0.93)}.items()
    ]
    for head_dim in (72, 112):
        row = _chunk(1024, 16384, head_dim=head_dim, peers=(), variants={"sm80": {"family": "sm80"}})
        rate = aim(None, plus_us=row.flops / 500 / 1e6)
        rows.append(replace(row, limits=(Limit("sm80", factor=0.5), rate)))
    return rows


# Keys and values of 8 bits are widened when they are packed, or by each query tile that reads them from the pool.
NARROW_POOL = _chunk(
    2048,
    8192,
    *_within(1.10, 1.04, over="pool_16"),
    kv_dtype="float8_e4m3fn",
    options={"packed_prefill": True},
    variants={"pool_16": {"kv_dtype": "bfloat16", "options": {}}, "from_pool": {"options": {}}},
    peers=(),
)


# Queries, keys, weights and values of 8 bits. FlashAttention-3 multiplies the same elements.
FLOAT8: dict[str, Any] = {
    "kv_dtype": "float8_e4m3fn",
    "options": {"compute": "float8"},
    "variants": {"dtype": {"options": {}}, "pool_16": {"kv_dtype": "bfloat16", "options": {}}},
    "peers": ("flash_attention_3", "flash_attention_3_contiguous"),
}


def _float8() -> list[Shape]:
    """Returns a chunk and a whole request with products of 8 bits."""
    fa3 = "flash_attention_3_contiguous"
    square = Shape("prefill", 1, 16384, 16384, heads=(32, 8), mask="full", **FLOAT8)
    return [
        _chunk(2048, 8192, Limit(fa3, factor=0.82), **FLOAT8),
        replace(square, limits=(Limit(fa3, factor=0.77),)),
    ]


def _squares() -> list[Shape]:
    """Returns rows of whole requests, whose queries and keys are the same tokens: 16384 tokens, two masks."""
    rows = []
    for heads, head_dim in (((32, 32), 64), ((32, 32), 128), ((32, 8), 128), ((16, 16), 256)):
        for tokens in (1024, 4096, 16384):
            for mask in ("full", "causal"):
                limits = [Limit("best_peer", factor=1 / 0.90), aim("best_peer", factor=1)]
                if (heads, head_dim, tokens, mask) == ((32, 8), 128, 1024, "causal"):
                    limits.append(Limit("cudnn", factor=1 / 0.97))
                if (head_dim, tokens) == (256, 16384):
                    limits += _within(1.01, 0.96, over="flash_attention_3_contiguous")
                shape = Shape("prefill", 16384 // tokens, tokens, tokens, heads=heads, head_dim=head_dim, mask=mask)
                rows.append(replace(shape, group="squares", peers=SQUARE_PEERS, limits=tuple(limits)))
    return rows


def _batch_invariant(query_tokens: int, context: int) -> Shape:
    variants: dict[str, Any] = {"batch_variant": {"options": {}}}
    limit = Limit("batch_variant", factor=1.05)
    return _chunk(query_tokens, context, limit, options={"batch_invariant": True}, variants=variants, peers=())


# One step has a chunk and 64 requests that decode. It is compared with steps of either alone.
DECODING: dict[str, Any] = {"batch": 64, "first_context": None, "first_tokens": None}
CHUNK: dict[str, Any] = {"batch": 1}
MIXED = Shape(
    "prefill",
    65,
    1,
    4096,
    first_context=8192,
    first_tokens=2048,
    variants={"decoding": DECODING, "chunk": CHUNK},
    peers=(),
    limits=(Limit("decoding + chunk", factor=1.05), aim("decoding + chunk", factor=0.9)),
)

PREFILL = [
    *CHUNKS,
    *_documents(),
    *_other_lengths(),
    *_short_documents(),
    *_ragged(),
    *_other_head_dims(),
    NARROW_POOL,
    *_float8(),
    *_squares(),
    *(_batch_invariant(*size) for size in LARGE),
    MIXED,
    _chunk(512, 32768, Limit("flash_attention_2", factor=1), rope="none", family="sm80"),
]

MEANS = (MeanLimit("squares", "best_peer", 0.97),)
