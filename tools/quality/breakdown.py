"""Shows where the time of a request goes: the host's time by function, and the work of the GPU by kernel.

The two are taken in separate runs, because the profiler slows the host.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lazyrope.transformers import passes
from lazyrope.transformers.engine import Engine
from lazyrope.transformers.layout import Guide
from lazyrope.transformers.measuring import Meter
from lazyrope.transformers.work import Work
from torch.profiler import ProfilerActivity, profile

REPLAY = "copy the pass's data, replay, wait"
# Each function whose time is shown, as its owner and its name there, and what it does.
SPANS: tuple[tuple[Any, str, str], ...] = (
    (Engine, "generate", "check and queue the request"),
    (Engine, "_admit", "admit: key documents, reserve pages"),
    (Engine, "_schedule", "choose the pass's work"),
    (passes, "pack", "pack the pass's metadata"),
    (passes.Pass, "update", "plan the pass"),
    (passes.Runner, "logits", "launch the layers"),
    (passes._Graph, "run", REPLAY),
    (passes._Graph, "_capture", "capture"),
    (passes.Runner, "run", "launch the rest, wait"),
    (Meter, "finish", "add up the masses of pages"),
    (Guide, "choose", "choose pages"),
    (Engine, "_finish_pass", "finish the pass"),
)
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")  # the categories of the profiler's events on the GPU


@dataclass
class HostTime:
    """The host's time in each function, without the time of the listed functions that it calls.

    A function that waits for the GPU has that time, too.

    Attributes:
        ms: The milliseconds by what the function does.
        pass_tokens: The tokens of each pass.
        num_captured: The number of passes that were replays of a captured graph.
    """

    ms: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    pass_tokens: list[int] = field(default_factory=list)
    num_captured: int = 0
    _inner: list[float] = field(default_factory=list)

    def timed(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that does the same and adds its time."""

        def run(*arguments: Any, **options: Any) -> Any:
            self._count(what, arguments)
            self._inner.append(0.0)
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                taken = 1e3 * (time.perf_counter() - begin)
                self.ms[what] += taken - self._inner.pop()
                if self._inner:
                    self._inner[-1] += taken

        return run

    def _count(self, what: str, arguments: tuple[Any, ...]) -> None:
        if what == REPLAY:
            self.num_captured += 1
        if isinstance(arguments[0], passes.Runner) and isinstance(arguments[1], Work):
            self.pass_tokens.append(arguments[1].num_tokens)


@contextmanager
def host_time() -> Iterator[HostTime]:
    """Adds up the host's time in the engine's functions during the context. Only one thread may run passes."""
    found = HostTime()
    with ExitStack() as stack:
        for owner, name, what in SPANS:
            stack.enter_context(patch.object(owner, name, found.timed(what, getattr(owner, name))))
        yield found


@dataclass
class GpuTime:
    """The GPU's work.

    Attributes:
        busy_ms: The time in which at least one kernel or copy ran, in milliseconds, or None if
            nothing was recorded.
        num_kernels: The number of kernels and copies.
        kernels: The kernels that take most time: their "name", "ms" in all, and "count".
    """

    busy_ms: float | None = None
    num_kernels: int = 0
    kernels: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def gpu_time() -> Iterator[GpuTime]:
    """Profiles the GPU during the context. Without a GPU, it does nothing."""
    found = GpuTime()
    if not torch.cuda.is_available():
        yield found
        return
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        yield found
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        read_trace(json.loads(file.read_text())["traceEvents"], found)


def read_trace(events: list[dict[str, Any]], found: GpuTime, *, most: int = 8) -> None:
    """Reads the events of a Chrome trace, whose times are in microseconds, into `found`."""
    work = sorted((e for e in events if e.get("cat") in ON_GPU), key=lambda e: e["ts"])
    busy, end = 0.0, 0.0
    by_name: dict[str, list[float]] = defaultdict(list)
    for event in work:
        by_name[event["name"]].append(event["dur"])
        stop = event["ts"] + event["dur"]
        busy += max(0.0, stop - max(end, event["ts"]))
        end = max(end, stop)
    longest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:most]
    found.busy_ms = busy / 1e3 if work else None
    found.num_kernels = len(work)
    found.kernels = [{"name": name, "ms": sum(us) / 1e3, "count": len(us)} for name, us in longest]
