"""The rows of ``python -m tools.bench mass``: calls that also give the attention mass of pages."""

from __future__ import annotations

from typing import Any

from tools.bench.limits import Limit
from tools.bench.shapes import Shape

WITHOUT = {"without": {"options": {}}}  # the same call with kernels that give no masses


def _mass(batch: int, query_tokens: int, context: int, *limits: Limit, **options: Any) -> Shape:
    kernel = "decode" if query_tokens * 4 <= 16 else "prefill"
    return Shape(
        kernel,
        batch,
        query_tokens,
        context,
        peers=(),
        options={"page_mass": True},
        variants=WITHOUT,
        limits=limits,
        **options,
    )


def mass() -> list[Shape]:
    """Returns the rows whose masses may take a tenth of the call's time, and one of more query tokens."""
    tenth = Limit("without", factor=1.10)
    return [
        _mass(64, 1, 4096, tenth),
        _mass(32, 1, 5 * 2048, tenth, doc_tokens=2048),
        _mass(1, 16, 5 * 2048, tenth, doc_tokens=2048),
        _mass(1, 128, 8192, tenth),
        _mass(8, 128, 8192, tenth),
        _mass(1, 1024, 8192),
    ]
