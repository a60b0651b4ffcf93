"""Times of calls on the GPU, and the memory that they read."""

from __future__ import annotations

import gc
import math
import random
import statistics
import sys
from collections.abc import Callable
from typing import Any

Call = Callable[[], object]

HEAD_START = 200_000  # cycles, 0.1 ms: more than the host needs to queue most calls
MAX_HEAD_START = HEAD_START << 10
FILLERS = 8  # a random number of empty launches below this precedes each timed call
MIN_ROUNDS = 9
MAX_SECONDS = 0.5  # limit of a row's rounds; MIN_ROUNDS may take longer


def torch_with_gpu() -> Any:
    try:
        import torch
    except ImportError:
        sys.exit("lazyrope bench compares with PyTorch, which is not installed: pip install torch")
    if not torch.cuda.is_available():
        sys.exit("lazyrope bench needs a GPU that PyTorch can use")
    return torch


class Timer:
    """Measures calls by CUDA events with a cold L2. `rounds` is the maximum number of rounds of a row."""

    def __init__(self, rounds: int) -> None:
        self.torch = torch_with_gpu()
        self.rounds = rounds
        self.head_start = HEAD_START
        self.random = random.Random(0)
        size = 2 * self.torch.cuda.get_device_properties(0).L2_cache_size // 4
        self.dirty = self.torch.empty(size, dtype=self.torch.int32, device="cuda")
        self.clean = self.torch.zeros(size, dtype=self.torch.int32, device="cuda")

    def flush(self) -> None:
        """Evicts L2. The reads after the writes leave no dirty lines for the timed window to write back."""
        self.dirty.zero_()
        self.clean.max()

    def once(self, call: Call) -> float:
        """Returns the microseconds of one call, without any time of the host.

        The GPU waits in a sleep kernel until the host has queued the call. If the GPU reached the first event before
        the host was done, the time is discarded, the wait is doubled for this and all later calls, and the call
        repeats.
        """
        while True:
            us, is_late = self._timed(call)
            if not is_late:
                return us
            if self.head_start == MAX_HEAD_START:
                seconds = MAX_HEAD_START / 2e9
                raise RuntimeError(f"the host takes {seconds:.1f} s and more to queue a call, or waits for it")
            self.head_start *= 2

    def _timed(self, call: Call) -> tuple[float, bool]:
        """Returns the microseconds of one call, and whether the GPU had to wait for the host.

        A call takes a microsecond longer where the driver's command buffer wraps. The random number of empty launches
        spreads this over all calls.
        """
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(self.random.randrange(FILLERS)):
            self.torch.cuda._sleep(1)
        self.torch.cuda._sleep(self.head_start)
        self.flush()
        begin.record()
        call()
        end.record()
        is_late = bool(begin.query())
        self.torch.cuda.synchronize()
        return float(begin.elapsed_time(end) * 1e3), is_late

    def medians(self, calls: dict[str, Call], rounds: int | None = None) -> dict[str, float]:
        """Returns the median microseconds of each call."""
        return {name: statistics.median(times) for name, times in self.times(calls, rounds).items()}

    def times(self, calls: dict[str, Call], rounds: int | None = None) -> dict[str, list[float]]:
        """Returns the microseconds of each call in each round.

        Each round makes every call once, in a random order: a short call can cost a microsecond more after one call
        than after another. Without `rounds`, there are as many as fit into MAX_SECONDS.
        """
        for call in calls.values():
            for _ in range(2):
                call()
        rounds = rounds or self._rounds(list(calls.values()))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name in self.random.sample(list(calls), len(calls)):
                times[name].append(self.once(calls[name]))
        return times

    def _rounds(self, calls: list[Call]) -> int:
        """Times one round and returns how many such rounds fit."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for call in calls:
            self.once(call)
        end.record()
        self.torch.cuda.synchronize()
        seconds = begin.elapsed_time(end) / 1e3
        return max(min(MIN_ROUNDS, self.rounds), min(self.rounds, int(MAX_SECONDS / seconds)))


class Memory:
    """Random numbers that all calls of a row share, so that they read the same values at the same addresses."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = device
        self.buffers: dict[Any, Any] = {}

    def numbers(self, count: int, dtype: str) -> Any:
        """Returns [count] numbers of a normal distribution."""
        import torch

        if dtype not in self.buffers or len(self.buffers[dtype]) < count:
            self.buffers.pop(dtype, None)
            gc.collect()  # earlier rows may still hold the buffer in reference cycles
            drawn = torch.bfloat16 if dtype.startswith("float8") else getattr(torch, dtype)
            self.buffers[dtype] = torch.randn(count, dtype=drawn, device=self.device).to(getattr(torch, dtype))
        return self.buffers[dtype][:count]

    def keys_and_values(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
        """Returns two contiguous tensors of the shape: all keys are before all values."""
        k, v = self.numbers(2 * math.prod(shape), dtype).view(2, *shape)
        return k, v

    def pools(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
        """Returns two tensors of the shape [pages, ...]. A page's values follow its keys: [pages, 2, ...]."""
        k, v = self.numbers(2 * math.prod(shape), dtype).view(shape[0], 2, *shape[1:]).unbind(1)
        return k, v

    @staticmethod
    def release() -> None:
        """Gives the memory of finished rows, which PyTorch caches, back to the GPU."""
        import torch

        torch.cuda.empty_cache()
