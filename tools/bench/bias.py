"""The rows of ``python -m tools.bench bias``: calls that add a bias to the scores of each key."""

from __future__ import annotations

from typing import Any

from tools.bench.limits import Limit
from tools.bench.shapes import Shape

WITHOUT = {"without": {"options": {}}}  # the same call with kernels that add no bias


def _bias(batch: int, query_tokens: int, context: int, factor: float, **options: Any) -> Shape:
    return Shape(
        "decode" if query_tokens * 4 <= 16 else "prefill",
        batch,
        query_tokens,
        context,
        peers=(),
        options={"key_bias": True},
        variants=WITHOUT,
        limits=(Limit("without", factor=factor),),
        **options,
    )


def bias() -> list[Shape]:
    """Returns rows with the time that a bias may take.

    It has 4 bytes for each token and KV head, beside 512 of keys and values with 16 bits, or 256 with 8 bits.
    """
    return [
        _bias(64, 1, 4096, 1.015),
        _bias(64, 1, 4096, 1.03, kv_dtype="float8_e4m3fn"),
        _bias(1, 2048, 8192, 1.03),
    ]
