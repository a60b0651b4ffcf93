"""Documents in any order inside an unmodified vLLM.

    vllm serve MODEL --attention-backend CUSTOM \\
        --scheduler-cls lazyrope.vllm.Scheduler --worker-cls lazyrope.vllm.Worker

    tokens, extra = lazyrope.vllm.prompt(tokenizer, [manual, licence], "What is forbidden?")
    llm.generate({"prompt_token_ids": tokens}, SamplingParams(extra_args=extra))

A document's blocks in vLLM's KV cache depend on the document alone. Requests that put it at other positions share them,
and the attention kernels rotate the queries instead. A document sees nothing before it (the block mask of
Block-Attention, arXiv 2409.15355), unless the request has a level of recovery. The question comes last and sees all
documents, one directly after the other.

The module imports vLLM only for :class:`Scheduler`, :class:`Worker` and the attention backend.
"""

from __future__ import annotations

from typing import Any

from .prompts import prompt

__all__ = ["Scheduler", "Worker", "prompt"]


def __getattr__(name: str) -> Any:
    """Returns the classes that vLLM finds by their names. Which ones they are depends on the release and the device."""
    if name == "Scheduler":
        from .scheduler import Scheduler

        return Scheduler
    if name == "Worker":
        from .worker import worker_class

        return worker_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
