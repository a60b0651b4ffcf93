"""A streaming sum in Triton: the measure of a kernel that reads as many bytes. Wants Triton to be imported."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .timer import Call

WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _partial_sums(data, partials, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of the blocks of a program: every num_programs-th. The count of numbers is a multiple of BLOCK."""
    program = tl.program_id(0)
    stride = tl.num_programs(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for begin in range(program.to(tl.int64) * BLOCK, count, stride):
        total += tl.load(data + begin + offsets)
    tl.store(partials + program, tl.sum(total))


def partial_sums(data: Any, programs: int, block: int) -> Call:
    """A sum of float32 numbers, as many of them as are whole blocks, by so many programs."""
    partials = data.new_empty(programs)
    count = len(data) // block * block
    return lambda: _partial_sums[(programs,)](data, partials, count, BLOCK=block, num_warps=WARPS)
