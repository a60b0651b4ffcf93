"""Attention states, as :mod:`lazyrope.eager` attends to them (:attr:`lazyrope.AttentionSpec.states`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ._batch import KEY_PER_HEAD, MAX_MEMORIES
from ._overloads import check_tensor
from .errors import SpecError

if TYPE_CHECKING:
    Tensor = Any
    from ._core import AttentionSpec
    from .eager import EagerStep
else:
    Tensor = torch.Tensor


@dataclass
class Memory:
    """The entries of one memory of a request."""

    keys: list[slice]  # the entries among the request's keys
    has_key_per_head: list[bool]  # for each of these runs of entries


def memories_of(kinds: list[int], keys: list[slice]) -> list[Memory]:
    """Returns the memories of a request, whose segments have these kinds and keys."""
    memories: dict[int, Memory] = {}
    for s, (kind, own) in enumerate(zip(kinds, keys, strict=True)):
        if kind == 0:
            continue
        number = kind % KEY_PER_HEAD
        if kind // KEY_PER_HEAD not in (0, 1) or not 1 <= number <= MAX_MEMORIES:
            raise SpecError(
                f"segment {s}: memory = {kind}; allowed are 0 for tokens, and 1 to {MAX_MEMORIES} for entries of a "
                f"memory, plus {KEY_PER_HEAD} if each entry serves one query head"
            )
        memory = memories.setdefault(number, Memory([], []))
        memory.keys.append(own)
        memory.has_key_per_head.append(kind > KEY_PER_HEAD)
    return list(memories.values())


class EntryLse:
    """The LSEs of the entries of a step, checked."""

    def __init__(self, spec: AttentionSpec, lse: Tensor | None, pool: Tensor, step: EagerStep) -> None:
        if (lse is not None) != spec.states:
            raise SpecError("entry_lse must be given if the spec has states, and not otherwise")
        if not spec.states and any(request.memories for request in step.requests):
            raise SpecError("segments.memory is given; the spec has no attention states")
        self._lse: Tensor | None = None
        if lse is None:
            return
        check_tensor("entry_lse", lse)
        shape = (pool.shape[0], spec.num_kv_heads, step.page_size)
        if lse.dtype != torch.float32 or tuple(lse.shape) != shape:
            raise SpecError(f"entry_lse is {lse.dtype} {list(lse.shape)}; it must be float32 {list(shape)}")
        slots = step.tokens.slots
        self._lse = lse[slots.page, :, slots.slot].T

    def of(self, keys: slice) -> Tensor:
        """Returns the LSEs of a request's keys, [kv_heads, keys]."""
        assert self._lse is not None
        return self._lse[:, keys]


def look_up(score: Tensor, memory: Memory, lse: Tensor) -> None:
    """Replaces the scores of a memory's entries: that of each row's best entry by its LSE, all others by -inf.

    Args:
        score: The scores of a request's keys, [kv_heads, group, rows, keys].
        memory: The memory.
        lse: The LSEs of the request's keys, [kv_heads, keys].
    """
    group = score.shape[1]
    index = torch.cat([torch.arange(k.start, k.stop, device=score.device) for k in memory.keys])
    if len(index) == 0:
        return
    found = score[..., index]
    heads = torch.arange(group, device=score.device)
    serves = [
        torch.arange(k.stop - k.start, device=score.device) % group == heads[:, None]
        if is_per_head
        else torch.ones((group, k.stop - k.start), dtype=torch.bool, device=score.device)
        for k, is_per_head in zip(memory.keys, memory.has_key_per_head, strict=True)
    ]
    # A score of NaN is never the best one.
    found.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    found.masked_fill_(~torch.cat(serves, dim=-1)[:, None], -torch.inf)
    top, best = found.max(dim=-1, keepdim=True)
    logits = lse[:, index][:, None, None].expand(found.shape).gather(-1, best)
    logits = logits.masked_fill(top == -torch.inf, -torch.inf)
    score[..., index] = torch.full_like(found, -torch.inf).scatter(-1, best, logits)
