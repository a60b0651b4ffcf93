"""The rows of ``python -m tools.bench ropes``: what a RoPE variant, a mask, a temperature and raw keys cost."""

from __future__ import annotations

from typing import Any

from lazyrope.bench.shapes import ROPES

from tools.bench.limits import Limit
from tools.bench.shapes import Shape

NEOX = {"neox": {"rope": "neox", "options": {}}}
LOCAL = {"local": {"options": {}}}
# The queries of the rows come after 8192 tokens, so they are in the second interval.
TEMPERATURE = {"temperature": (0.1, 8192, 0)}

# FlashInfer 0.7.2.post1 with RoPE fused (fa2, page 16) on an H200: microseconds of decode by batch and context, and
# TFLOP/s by query tokens and context.
FUSED_DECODE = {(1, 16384): 39.8, (8, 16384): 156.6, (64, 4096): 296.9, (64, 16384): 1128.0}
FUSED_PREFILL = {(64, 8192): 157.0, (256, 8192): 207.0, (512, 32768): 255.0, (2048, 8192): 265.0}


def _decode(batch: int, context: int, *limits: Limit, **options: Any) -> Shape:
    return Shape("decode", batch, 1, context, limits=limits, peers=(), **options)


def _prefill(query_tokens: int, context: int, *limits: Limit, **options: Any) -> Shape:
    return Shape("prefill", 1, query_tokens, context, limits=limits, peers=(), **options)


def _kinds(**options: Any) -> list[Shape]:
    """Returns a decode row and a prefill row, compared with NeoX and a causal mask."""
    return [
        _decode(64, 4096, Limit("neox", factor=1.01), variants=NEOX, **options),
        _prefill(2048, 8192, Limit("neox", factor=1.03), variants=NEOX, **options),
    ]


def _raw_keys() -> list[Shape]:
    """Returns rows with raw keys. Some are compared with local keys, all with FlashInfer's fused RoPE."""
    options: dict[str, Any] = {"rope": "neox", "options": {"key_form": "raw"}}
    over_local = Limit("local", factor=1.15)
    rows = []
    for size, us in FUSED_DECODE.items():
        limits = (Limit(None, plus_us=us), *([over_local] if size == (64, 4096) else []))
        rows.append(_decode(*size, *limits, variants=LOCAL, **options))
    for size, tflops in FUSED_PREFILL.items():
        fused_us = _prefill(*size).flops / tflops / 1e6
        limits = (Limit(None, plus_us=fused_us), *([over_local] if size == (2048, 8192) else []))
        rows.append(_prefill(*size, *limits, variants=LOCAL, **options))
    return rows


def ropes() -> list[Shape]:
    rows = [row for rope in ROPES if rope != "neox" for row in _kinds(rope=rope)]
    rows += _kinds(rope="neox", options={"chunk": 16384})
    for rope in ("neox", "none"):
        rows += _kinds(rope=rope, options=TEMPERATURE)
    return rows + _raw_keys()
