"""A plain sum in Triton. Importing this module imports Triton."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .timer import Call

WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _partial_sums(data, partials, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each program sums every num_programs-th block. `count` is a multiple of BLOCK."""
    program = tl.program_id(0)
    stride = tl.num_programs(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for begin in range(program.to(tl.int64) * BLOCK, count, stride):
        total += tl.load(data + begin + offsets)
    tl.store(partials + program, tl.sum(total))


def partial_sums(data: Any, programs: int, block: int) -> Call:
    """Returns a call that sums the float32 numbers of all whole blocks, with this number of programs."""
    partials = data.new_empty(programs)
    count = len(data) // block * block
    return lambda: _partial_sums[(programs,)](data, partials, count, BLOCK=block, num_warps=WARPS)
