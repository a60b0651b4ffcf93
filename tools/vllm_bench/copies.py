"""Block-Attention inside vLLM, as a peer: each request copies its documents into blocks of its own.

lazyrope's scheduler finds documents whatever stands before them, and computes the missing ones, as it does without
copies. When it admits a request, the stored blocks that the request found are replaced by new blocks, which no other
request reads. Before the pass, the worker copies keys and values into them, and :func:`lazyrope.compile_reposition`
rotates the keys to the request's positions. The copies are freed with the request and are not in vLLM's prefix cache.
A document that a request computes itself is not copied for that request.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import lazyrope
import numpy as np
import torch
from lazyrope import AppendCapacity, TokenSlots, eager
from lazyrope import vllm as lazyrope_vllm
from lazyrope.vllm import backend
from lazyrope.vllm.limits import layer_specs
from lazyrope.vllm.pool import key_and_value_pools


class Copy(NamedTuple):
    """The stored blocks that a request found, and the request's first blocks, into which they are copied."""

    sources: list[int]
    targets: list[int]


class Scheduler(lazyrope_vllm.Scheduler):  # type: ignore[misc]
    """lazyrope's scheduler, whose requests own copies of what they find in the cache.

    Attributes:
        copied_blocks: The blocks copied so far.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.copied_blocks = 0
        self._copies: list[Copy] = []
        self._written: set[int] = set()  # the blocks that the pass writes, which cannot be copied before it
        self._allocate_stock = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._allocate
        self._table = self.kv_cache_manager.coordinator.single_type_managers[0]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._copies, self._written = [], set()
        output = super().schedule(*args, **kwargs)
        output.copies = self._copies
        return output

    def _allocate(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        **options: Any,
    ) -> Any:
        """Allocates blocks as vLLM does, and blocks for copies of those that the request found in the cache."""
        found = list(new_computed_blocks.blocks[0]) if num_new_computed_tokens else []
        if any(block.block_id in self._written for block in found):
            return None  # the request is admitted to the next pass
        computed = request.num_computed_tokens + num_new_computed_tokens
        if found:
            blocks = self._allocate_copies(request, num_new_tokens, found, options)
        else:
            blocks = self._allocate_stock(request, num_new_tokens, **options)
        if blocks is not None:
            size = self.block_size
            table = self._table.req_to_blocks[request.request_id]
            self._written.update(b.block_id for b in table[computed // size : -(-(computed + num_new_tokens) // size)])
        return blocks

    def _allocate_copies(self, request: Any, num_new_tokens: int, found: list[Any], options: dict[str, Any]) -> Any:
        pool, computed = self.kv_cache_manager.block_pool, len(found) * self.block_size
        pool.touch(found)  # the new blocks are other ones
        blocks = self._allocate_stock(
            request,
            num_new_tokens,
            **options | {"num_external_computed_tokens": computed, "delay_cache_blocks": True},
        )
        pool.free_blocks(reversed(found))
        if blocks is None:
            return None
        # vLLM stores the hashes of the blocks after the copies alone.
        self._table.num_cached_block[request.request_id] = len(found)
        self.kv_cache_manager.coordinator.cache_blocks(request, min(computed + num_new_tokens, request.num_tokens))
        table = self._table.req_to_blocks[request.request_id][: len(found)]
        targets = [b.block_id for b in table]
        self._copies.append(Copy([b.block_id for b in found], targets))
        self.homes.write([(targets, 0, computed)])
        self.copied_blocks += len(found)
        return blocks


class Worker(lazyrope_vllm.Worker):  # type: ignore[misc]
    """lazyrope's worker, which copies documents before the pass."""

    _mover: Any = None

    def execute_model(self, scheduler_output: Any) -> Any:
        # The V2 runner warms up with passes that no scheduler has made.
        for copy in getattr(scheduler_output, "copies", ()):
            self._copy(copy)
        return super().execute_model(scheduler_output)

    def _copy(self, copy: Copy) -> None:
        """Copies the blocks of one request, in all layers. The targets are written at the request's positions."""
        if self._mover is None:
            self._mover = Mover(self)
        homes = self.ledger.homes.read(copy.sources)
        self.ledger.homes.write([(copy.targets, 0, len(copy.targets) * self.ledger.block_size)])
        self._mover.move(copy, homes)


class Mover:
    """Copies blocks in all layers by lazyrope's reposition kernel."""

    def __init__(self, worker: Any) -> None:
        self._pools = [key_and_value_pools(pool) for pool in worker.model_runner.kv_caches]
        self._device = self._pools[0][0].device
        self._size = worker.ledger.block_size
        self._capacity = AppendCapacity(worker.vllm_config.model_config.max_model_len + self._size)
        [spec] = set(layer_specs(worker.vllm_config).values())
        self._kernel = backend.kernel_of(spec, self._device.type)
        compile_mover = eager.compile_reposition if self._device.type == "cpu" else lazyrope.compile_reposition
        self._reposition = compile_mover(spec)
        self._steps: list[Any] = []

    def move(self, copy: Copy, homes: Any) -> None:
        own = np.arange(len(copy.targets)) * self._size
        slots = [self._slots(blocks, first) for blocks, first in ((copy.sources, homes), (copy.targets, own))]
        if self._steps:
            for step, each in zip(self._steps, slots, strict=True):
                step.update(each)
        else:
            self._steps = [
                self._kernel.plan_append(each, capacity=self._capacity, page_size=self._size, layout="NHD")
                for each in slots
            ]
        for keys, values in self._pools:
            self._reposition(keys, values, *self._steps)

    def _slots(self, blocks: Any, first: Any) -> TokenSlots:
        """Returns the slots of blocks, whose slots 0 have these positions."""
        inside = np.arange(self._size)
        heads = np.asarray(blocks)[:, None] * self._size, np.asarray(first)[:, None]
        slots, index = (torch.from_numpy((head + inside).ravel().astype(np.int64)) for head in heads)
        return TokenSlots(slots.to(self._device), index.to(self._device))
