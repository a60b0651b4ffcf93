"""Describes what concerns the whole process, a part of _core.pyi. This module does not exist at run time: import from
lazyrope.
"""

from collections.abc import Sequence

def archs() -> list[str]:
    """Returns the architectures that kernels can be compiled for: "sm_80" and so on.

    "emu:sm_80" and "emu:sm_90a" are the emulator, if this build has it. It runs on this machine's CPU, and needs a
    C++ compiler in place of NVRTC.
    """

def clear_cache() -> None:
    """Clears the kernels in memory. The disk cache stays, and the next compile() looks there.

    Kernels that are in use stay valid.
    """

def counters() -> dict[str, float]:
    """Returns what this process has counted since it first used lazyrope, by the names of :func:`open_metrics`.

    The counters are: requests for kernels, by where the kernel came from; misses of the disk cache, by reason; waits
    for other processes, and their seconds; seconds of compiling; and entries that were removed to keep the cache within
    LAZYROPE_CACHE_MAX_BYTES. They only grow.

    Example:
        ```python
        hits = lazyrope.counters()['lazyrope_kernel_requests_total{from="disk"}']
        ```
    """

def open_metrics() -> str:
    """Returns the counters as OpenMetrics text (version 1.0), which a Prometheus server reads.

    Example:
        ```python
        @app.get("/metrics")
        def metrics():
            return Response(lazyrope.open_metrics(), media_type="application/openmetrics-text; version=1.0.0")
        ```
    """

def doctor() -> str:
    """Returns a report of what was found on this machine, with reasons.

    It has NVRTC, the driver, GPUs, the emulator's compiler, the cache and the environment.
    """

def environment_variables() -> list[dict[str, str | None]]:
    """Returns the environment variables that lazyrope reads.

    Returns:
        For each variable its "name", "meaning", "allowed", "default" and "value" (None if it is not set).
    """

def set_nvrtc_directories(directories: Sequence[str]) -> None:
    """Sets where the library looks for NVRTC. It has an effect before the library is first used."""

def is_tracing() -> bool:
    """Returns whether the process writes the trace of LAZYROPE_TRACE."""

def write_trace_event(name: str, begin: float, end: float, arguments: str) -> None:
    """Adds an event to the trace, if there is one.

    Args:
        name: The name of the call.
        begin: When it began, in seconds of ``time.monotonic()``.
        end: When it ended.
        arguments: A JSON object.
    """
