"""vLLM's worker, which keeps a ledger of the requests, their documents and the homes of blocks."""

from __future__ import annotations

import functools
from typing import Any

from ..errors import SpecError
from .homes import BlockHomes
from .ledger import Ledger
from .limits import check_config, check_pool
from .plugin import register_for_cpu
from .prompts import layout_of
from .runners import request_names


class LedgerWorker:
    """The part of the worker that does not depend on the device. The other base is vLLM's worker."""

    vllm_config: Any
    model_runner: Any
    ledger: Ledger

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        """
        Raises:
            SpecError: The configuration is not served. The message says why.
        """
        check_config(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocates the pool, and a ledger for its blocks."""
        check_pool(kv_cache_config)
        super().initialize_from_config(kv_cache_config)  # type: ignore[misc]
        size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self.ledger = Ledger(BlockHomes(kv_cache_config.num_blocks, size))

    def execute_model(self, scheduler_output: Any) -> Any:
        """Runs a pass, whose attention reads the ledger."""
        observe(self.ledger, scheduler_output)
        self._bind()
        self.ledger.begin_pass(scheduler_output.num_scheduled_tokens)
        try:
            return super().execute_model(scheduler_output)  # type: ignore[misc]
        finally:
            self.ledger.end_pass()

    def _bind(self) -> None:
        """Hands the ledger to the builders of metadata. vLLM makes them, and may make them again."""
        names = request_names(self.model_runner, self.vllm_config.use_v2_model_runner)
        for groups in self.model_runner.attn_groups:
            for group in groups:
                for builder in group.metadata_builders:
                    builder.bind(self.ledger, names)


def observe(ledger: Ledger, output: Any) -> None:
    """Reports to a ledger what the scheduler has decided for a pass.

    Args:
        ledger: The ledger.
        output: The SchedulerOutput.

    Raises:
        SpecError: Blocks are copied, which the ledger cannot follow.
    """
    if output.kv_cache_block_copies:
        raise SpecError("vLLM copies blocks in this configuration; lazyrope.vllm does not serve it")
    for name in output.finished_req_ids:
        ledger.drop(name)
    for new in output.scheduled_new_reqs:
        if new.req_id in ledger:
            _go_on(ledger, new)
            continue
        layout = layout_of(new.sampling_params and new.sampling_params.extra_args, ledger.block_size)
        ledger.admit(new.req_id, layout, new.block_ids[0], new.num_computed_tokens)
    cached = output.scheduled_cached_reqs
    for name, blocks, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
        if name in cached.resumed_req_ids:
            ledger.admit(name, ledger.layout_of(name), blocks[0], computed)
        else:
            ledger.extend(name, blocks[0] if blocks is not None else [], computed)


def _go_on(ledger: Ledger, known: Any) -> None:
    """Records a known request that vLLM announces as a new one.

    It is the next part of a session of streamed input or, for the V2 model runner, a request that is resumed after a
    preemption. A session begins without documents and stays so. It goes on wherever its last answer ended, also inside
    a block that it has written itself.
    """
    computed = known.num_computed_tokens
    whole = computed - computed % ledger.block_size
    ledger.admit(known.req_id, ledger.layout_of(known.req_id), known.block_ids[0], whole)
    ledger.extend(known.req_id, [], computed)


@functools.cache
def worker_class() -> type:
    """Returns the class that vLLM takes by ``--worker-cls lazyrope.vllm.Worker``: one for each kind of device."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker as base

        register_for_cpu()
    else:
        from vllm.v1.worker.gpu_worker import Worker as base

    return type("Worker", (LedgerWorker, base), {"__module__": "lazyrope.vllm", "__doc__": LedgerWorker.__doc__})
