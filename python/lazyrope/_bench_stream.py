"""How long the GPU takes to read as many bytes as a row does: the fastest sum over them that was found."""

from __future__ import annotations

import importlib.util
from typing import Any

from ._bench_timer import Call, Memory, Timer

BLOCKS = (2048, 4096, 8192)  # numbers of 4 bytes that a program reads at a time
PROGRAMS_PER_SM = (2, 4, 8)
ROUNDS = 9  # of the contest


class Stream:
    """PyTorch's sum, or Triton's in one of several shapes: for each size the one that won a contest, once."""

    def __init__(self, timer: Timer, memory: Memory) -> None:
        self.timer = timer
        self.memory = memory
        self.winners: dict[int, str] = {}

    def sum(self, num_bytes: int) -> tuple[str, Call]:
        """What reads num_bytes the fastest, and what that is."""
        calls = _sums(self.memory.numbers(max(2, num_bytes // 2), "bfloat16"))
        if num_bytes not in self.winners:
            times = self.timer.medians(calls, rounds=ROUNDS)
            self.winners[num_bytes] = min(times, key=times.__getitem__)
        name = self.winners[num_bytes]
        return name, calls[name]


def _sums(data: Any) -> dict[str, Call]:
    import torch

    numbers = data.view(torch.float32)
    sums: dict[str, Call] = {"torch": numbers.sum}
    if not data.is_cuda or importlib.util.find_spec("triton") is None:
        return sums
    from ._bench_triton import partial_sums

    sms = torch.cuda.get_device_properties(data.device).multi_processor_count
    for block in BLOCKS:
        blocks = len(numbers) // block
        for programs in sorted({min(blocks, count * sms) for count in PROGRAMS_PER_SM} | {blocks}):
            if programs:
                sums[f"triton, {programs} programs, blocks of {block}"] = partial_sums(numbers, programs, block)
    return sums
