"""Events of Python calls in the trace that ``LAZYROPE_TRACE`` asks for. The compiled part writes its own events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from . import _core

Result = TypeVar("Result")


def traced(name: str, work: Callable[[], Result]) -> Result:
    """Returns work(), and writes an event with its duration if the process writes a trace.

    Args:
        name: The name of the event, such as "DocumentStore.acquire". An underscore before the method is left out.
        work: A function without arguments.
    """
    if not _core.is_tracing():
        return work()
    begin, has_failed = time.monotonic(), True  # the clock of the compiled part's events
    try:
        result = work()
        has_failed = False
        return result
    finally:
        arguments = '{"failed": true}' if has_failed else "{}"
        _core.write_trace_event(name.replace("._", "."), begin, time.monotonic(), arguments)
