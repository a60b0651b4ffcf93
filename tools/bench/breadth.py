"""The rows of ``python -m tools.bench breadth``."""

from __future__ import annotations

from typing import Any

import lazyrope
from lazyrope.bench.shapes import PARTIAL_ROTARY_DIMS, ROPES

from tools.bench.shapes import Shape


def _both(**options: Any) -> list[Shape]:
    """Returns the decode row and the prefill row at which settings are compared."""
    return [Shape("decode", 64, 1, 16384, **options), Shape("prefill", 1, 512, 32768, **options)]


def _over(field_name: str, value: str, **options: Any) -> list[Shape]:
    """Returns rows without peers. Their only variant is lazyrope's own kernel with `field_name` set to `value`."""
    return _both(variants={value: {field_name: value}}, peers=(), **options)


def breadth() -> list[Shape]:
    """Returns rows for every head_dim, RoPE variant and score modification, 17 groups, tensor-parallel heads, fp8."""
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
    for head_dim in PARTIAL_ROTARY_DIMS:
        for rope in ("partial neox", "partial gptj"):
            rows += _over("rope", "neox", head_dim=head_dim, rope=rope)
    for options in ({"softcap": 50.0}, {"sinks": True}, {"window": 4096}):
        rows += _both(rope="neox", options=options, peers=())  # PyTorch's peers have none of these options
    for kv_dtype in ("float8_e4m3fn", "float8_e5m2"):
        for head_dim in (d for d in lazyrope.head_dims() if d % 16 == 0):
            rows += _over("kv_dtype", "bfloat16", head_dim=head_dim, rope="neox", kv_dtype=kv_dtype)
    return rows
