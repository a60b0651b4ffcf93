"""The record of the measurements that chose a kernel's config.

Example:
    kernel = lazyrope.compile(spec, tune=True)
    for task in kernel.tuning.tasks:
        print(task.name, task.trials[task.chosen].name)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import KernelConfig


@dataclass(frozen=True, slots=True)
class TuningWorkload:
    """A workload that configs are timed with.

    Attributes:
        batch: The number of requests.
        query_tokens: The query tokens of each request.
        context: The document tokens of each request. Its own query tokens come after them.
        doc_tokens: The tokens of one document.
    """

    batch: int
    query_tokens: int
    context: int
    doc_tokens: int


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """The measurement of one config.

    Attributes:
        name: The varied part of the config, in words.
        config: The whole config.
        us: The median time of each workload, in microseconds.
        gain: The saved share of the default's time.
        noise: The part of the gain that may be chance.
        rejection: The reason why the measurement was not completed. Empty if it was.
    """

    name: str
    config: KernelConfig
    us: tuple[float, ...]
    gain: float
    noise: float
    rejection: str


@dataclass(frozen=True, slots=True)
class TuningTask:
    """The tuning of one field of a config. The tasks run one after another.

    Attributes:
        name: The field: "decode", "prefill" or "min_split_blocks".
        workloads: The workloads of the trials.
        trials: The measured configs, the default first.
        chosen: The index of the chosen config in trials.
    """

    name: str
    workloads: tuple[TuningWorkload, ...]
    trials: tuple[TuningTrial, ...]
    chosen: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """The record of one tuning run: the machine, the measurements and the chosen config.

    Attributes:
        spec: The attention, in words.
        arch: The arch of the kernels.
        gpu: The name of the GPU.
        sm_count: The number of its streaming multiprocessors.
        driver: The version of its driver.
        compiler: The compiler of the chosen attend kernels.
        library: The version of lazyrope.
        date: The date in UTC.
        config: The chosen config.
        tasks: The measurements, one task for each tuned field.
        compile_seconds: The time that compiling took, in seconds.
        measure_seconds: The time that measuring took, in seconds.
        seconds: The time of the whole run, in seconds.
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
