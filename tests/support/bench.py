"""Provides a fake timer and a small shape for the tests of the benchmarks, which run without a GPU."""

from __future__ import annotations

import lazyrope
import pytest
from lazyrope.bench.timer import Timer

ARCH = "emu:sm_80"
SMALL = {"heads": (4, 2), "head_dim": 64, "rope": "neox"}
in_emulator = pytest.mark.skipif(ARCH not in lazyrope.archs(), reason="built without the emulator")


class FakeTimer(Timer):
    """Makes every call once, and returns invented times: n - 1, n and n + 1 microseconds for the n-th call of a row."""

    def __init__(self) -> None:
        pass

    def times(self, calls, rounds=None):
        for call in calls.values():
            call()
        return {name: [n - 1.0, float(n), n + 1.0] for n, name in enumerate(calls, 1)}
