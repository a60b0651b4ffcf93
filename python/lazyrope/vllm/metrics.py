"""Counts of documents in vLLM's Prometheus endpoint.

The scheduler may run in another process than the server. Its counts travel in vLLM's statistics of the scheduler, in a
dictionary of LoRA adapters that vLLM itself fills in the server alone. vLLM records plug-ins before its own loggers,
and the one here takes the counts out again.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter
from vllm.v1.metrics.loggers import StatLoggerBase

PREFIX = "lazyrope:"
TEXTS = {
    "documents": "Documents of all requests.",
    "document_hits": "Documents that were in the cache, or on their way into it, when their request came.",
    "document_fills": "Requests that the scheduler made to compute a document.",
    "refused_requests": "Requests whose documents were refused.",
    "tokens_not_recomputed": "Prompt tokens of requests with documents that were found in the cache.",
    "shifted_blocks": "Blocks found in the cache whose request has them at another position than their writer.",
}


def put(stats: Any, counts: Mapping[str, int]) -> None:
    """Puts counts since the last statistics into a SchedulerStats. The names are those of TEXTS."""
    stats.waiting_lora_adapters.update({PREFIX + name: count for name, count in counts.items() if count})


def take(stats: Any) -> dict[str, int]:
    """Removes the counts from a SchedulerStats, and returns them."""
    adapters = stats.waiting_lora_adapters
    return {key[len(PREFIX) :]: adapters.pop(key) for key in list(adapters) if key.startswith(PREFIX)}


@functools.cache
def counters() -> dict[str, Counter]:
    """Returns the process's counters. A name can be registered once."""
    return {name: Counter(PREFIX + name, text, ["engine"]) for name, text in TEXTS.items()}


class StatLogger(StatLoggerBase):  # type: ignore[misc]
    """The plug-in of the group ``vllm.stat_logger_plugins``. It counts nothing in a vLLM without lazyrope's backend."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._engine = str(engine_index)
        backend = vllm_config.attention_config.backend
        if getattr(backend, "name", None) == "CUSTOM":
            for counter in counters().values():
                counter.labels(self._engine)  # appears with 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Adds the counts that came with the scheduler's statistics, if there are any."""
        if scheduler_stats is None:
            return
        for name, count in take(scheduler_stats).items():
            counters()[name].labels(self._engine).inc(count)

    def log_engine_initialized(self) -> None:
        """Does nothing: vLLM requires the method."""
