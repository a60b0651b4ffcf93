"""The record of the measurements that chose a kernel's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import KernelConfig


@dataclass(frozen=True, slots=True)
class TuningWorkload:
    """Requests that configurations are timed with.

    Attributes:
        batch: requests.
        query_tokens: of each request.
        context: tokens of each request's documents. Its own query tokens come after them.
        doc_tokens: tokens of one document.
    """

    batch: int
    query_tokens: int
    context: int
    doc_tokens: int


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """The measurement of one configuration.

    Attributes:
        name: what of the configuration is on trial, in words.
        config: the whole configuration.
        us: microseconds of each workload, the medians.
        gain: share of the default's time that the configuration saves.
        noise: how much of the gain may be chance.
        rejection: why it was not measured to the end; empty if it was.
    """

    name: str
    config: KernelConfig
    us: tuple[float, ...]
    gain: float
    noise: float
    rejection: str


@dataclass(frozen=True, slots=True)
class TuningTask:
    """One field of a configuration that is tuned on its own. The tasks run one after another.

    Attributes:
        name: "decode", "prefill" or "min_split_blocks".
        workloads: what the trials were timed with.
        trials: the measured configurations, the default first.
        chosen: index into trials.
    """

    name: str
    workloads: tuple[TuningWorkload, ...]
    trials: tuple[TuningTrial, ...]
    chosen: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """A record of tuning: what was measured, where, and what was chosen.

    Attributes:
        spec: what was tuned, in words.
        arch: of the kernels.
        gpu: name of the GPU.
        sm_count: its streaming multiprocessors.
        driver: its driver's version.
        compiler: of the chosen attend kernels.
        library: version of lazyrope.
        date: UTC.
        config: the chosen configuration.
        tasks: the measurements, by field of the configuration.
        compile_seconds, measure_seconds: how long compiling and measuring took.
        seconds: how long tuning took in all.
    """

    spec: str
    arch: str
    gpu: str
    sm_count: int
    driver: str
    compiler: str
    library: str
    date: str
    config: KernelConfig
    tasks: tuple[TuningTask, ...]
    compile_seconds: float
    measure_seconds: float
    seconds: float
