"""Plain sums over as many bytes as a row reads. The time of the fastest one shows how fast the GPU reads them."""

from __future__ import annotations

import sys
from typing import Any

from .timer import Call, Memory, Timer

BLOCKS = (2048, 4096, 8192)  # 4-byte numbers that a program reads at a time
PROGRAMS_PER_SM = (2, 4, 8)
ROUNDS = 9  # rounds of the comparison that finds the fastest sum


class Stream:
    """Finds, once for each size, the fastest of PyTorch's sum and several shapes of a Triton sum."""

    def __init__(self, timer: Timer, memory: Memory) -> None:
        self.timer = timer
        self.memory = memory
        self.winners: dict[int, str] = {}
        self.has_triton = memory.device != "cpu" and _triton_works(memory)

    def sum(self, num_bytes: int) -> tuple[str, Call]:
        """Returns the name of the fastest sum over num_bytes, and its call."""
        calls = self._calls(num_bytes)
        if num_bytes not in self.winners:
            times = self.timer.medians(calls, rounds=ROUNDS)
            self.winners[num_bytes] = min(times, key=times.__getitem__)
        name = self.winners[num_bytes]
        return name, calls[name]

    def _calls(self, num_bytes: int) -> dict[str, Call]:
        import torch

        numbers = self.memory.numbers(max(2, num_bytes // 2), "bfloat16").view(torch.float32)
        return {"torch": numbers.sum} | (_triton_sums(numbers) if self.has_triton else {})


def _triton_works(memory: Memory) -> bool:
    """Returns True if a Triton sum runs. Triton may be missing, or may find no C compiler."""
    import torch

    try:
        from .triton import partial_sums

        partial_sums(memory.numbers(2 * BLOCKS[0], "bfloat16").view(torch.float32), 1, BLOCKS[0])()
    except Exception as error:
        print(f"the plain sum is PyTorch's only, because Triton does not work here: {error}", file=sys.stderr)
        return False
    return True


def _triton_sums(numbers: Any) -> dict[str, Call]:
    import torch

    from .triton import partial_sums

    sms = torch.cuda.get_device_properties(numbers.device).multi_processor_count
    sums = {}
    for block in BLOCKS:
        blocks = len(numbers) // block
        for programs in sorted({min(blocks, count * sms) for count in PROGRAMS_PER_SM} | {blocks}):
            if programs:
                sums[f"triton, {programs} programs, blocks of {block}"] = partial_sums(numbers, programs, block)
    return sums
