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

HEAD_START = 200_000  # cycles, 0.1 ms: mostly longer than the host takes to queue a call
MAX_HEAD_START = HEAD_START << 10
FILLERS = 8  # empty launches before a call are fewer
MIN_ROUNDS = 9
MAX_SECONDS = 0.5  # of a row's rounds, unless the fewest take longer


def torch_with_gpu() -> Any:
    try:
        import torch
    except ImportError:
        sys.exit("lazyrope bench measures beside PyTorch: pip install torch")
    if not torch.cuda.is_available():
        sys.exit("lazyrope bench needs a GPU that PyTorch can use")
    return torch


class Timer:
    """Medians of event times with a flushed L2; of `rounds` calls, or of fewer where they take long."""

    def __init__(self, rounds: int) -> None:
        self.torch = torch_with_gpu()
        self.rounds = rounds
        self.head_start = HEAD_START
        self.random = random.Random(0)
        size = 2 * self.torch.cuda.get_device_properties(0).L2_cache_size // 4
        self.dirty = self.torch.empty(size, dtype=self.torch.int32, device="cuda")
        self.clean = self.torch.zeros(size, dtype=self.torch.int32, device="cuda")

    def flush(self) -> None:
        self.dirty.zero_()
        self.clean.max()

    def once(self, call: Call) -> float:
        """Microseconds of the call, with nothing of the host's in it: the GPU first waits for the host, which has then
        queued the call before the first event is reached, and does nothing more before it is over. A host that took
        longer makes the call again, and all that follow, behind a wait twice as long."""
        while True:
            us, is_late = self._timed(call)
            if not is_late:
                return us
            if self.head_start == MAX_HEAD_START:
                seconds = MAX_HEAD_START / 2e9
                raise RuntimeError(f"the host takes {seconds:.1f} s and more to queue a call, or waits for it")
            self.head_start *= 2

    def _timed(self, call: Call) -> tuple[float, bool]:
        """Of one call, and whether the GPU had to wait for it. Where the driver's buffer of commands wraps, a call
        takes a microsecond longer; as that buffer is filled by another number of commands each time, it is not the
        same call each time."""
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
        """Microseconds of each call."""
        return {name: statistics.median(times) for name, times in self.times(calls, rounds).items()}

    def times(self, calls: dict[str, Call], rounds: int | None = None) -> dict[str, list[float]]:
        """Microseconds of each call in each round; the calls take turns, as many as are given or else fit. Each round
        has an order of its own, so that no call always comes behind the same one, which can cost a short call a
        microsecond."""
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
        """How many fit, from the time of one."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for call in calls:
            self.once(call)
        end.record()
        self.torch.cuda.synchronize()
        seconds = begin.elapsed_time(end) / 1e3
        return max(min(MIN_ROUNDS, self.rounds), min(self.rounds, int(MAX_SECONDS / seconds)))


class Memory:
    """Random numbers, made once: whatever is compared reads the same ones, at the same addresses."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = device
        self.buffers: dict[Any, Any] = {}

    def numbers(self, count: int, dtype: str) -> Any:
        """[count] of a normal distribution."""
        import torch

        if dtype not in self.buffers or len(self.buffers[dtype]) < count:
            self.buffers.pop(dtype, None)
            gc.collect()  # rows before may still hold it, in cycles
            drawn = torch.bfloat16 if dtype.startswith("float8") else getattr(torch, dtype)
            self.buffers[dtype] = torch.randn(count, dtype=drawn, device=self.device).to(getattr(torch, dtype))
        return self.buffers[dtype][:count]

    def keys_and_values(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
        """Two tensors of the shape."""
        k, v = self.numbers(2 * math.prod(shape), dtype).view(2, *shape)
        return k, v

    def pools(self, shape: tuple[int, ...], dtype: str, apart: bool = False) -> tuple[Any, Any]:
        """Two tensors of the shape, [pages, ...]: a page's keys beside its values, as in FlashInfer's
        [pages, 2, ...], or all keys before all values."""
        if apart:
            return self.keys_and_values(shape, dtype)
        k, v = self.numbers(2 * math.prod(shape), dtype).view(shape[0], 2, *shape[1:]).unbind(1)
        return k, v

    @staticmethod
    def release() -> None:
        """Gives back to the GPU what PyTorch holds of the rows before."""
        import torch

        torch.cuda.empty_cache()
