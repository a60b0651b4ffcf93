"""Attention states, as :mod:`lazyrope.eager` attends to them (:attr:`lazyrope.AttentionSpec.states`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ._batch import CELL_ENTRY, KEY_PER_HEAD, MAX_CELL_ENTRIES, MAX_MEMORIES
from ._overloads import check_tensor
from .errors import SpecError

if TYPE_CHECKING:
    Tensor = Any
    from ._core import AttentionSpec
    from .eager import EagerStep
else:
    Tensor = torch.Tensor


@dataclass
class Entries:
    """The entries of one segment.

    Attributes:
        keys: The segment's slots among the request's keys.
        has_key_per_head: True if each entry serves one query head, or each centre with its cell.
        cell: The entries of a cell, or 0 without cells.
    """

    keys: slice
    has_key_per_head: bool
    cell: int


@dataclass
class Memory:
    """One memory of a request."""

    entries: list[Entries]


def memories_of(codes: list[int], keys: list[slice]) -> list[Memory]:
    """Returns the memories of a request, whose segments have these memory codes and keys."""
    memories: dict[int, Memory] = {}
    for s, (code, own) in enumerate(zip(codes, keys, strict=True)):
        if code == 0:
            continue
        number, cell = code % KEY_PER_HEAD, code // CELL_ENTRY
        if not 0 <= cell <= MAX_CELL_ENTRIES or not 1 <= number <= MAX_MEMORIES:
            raise SpecError(
                f"segment {s}: memory = {code}; allowed are 0 for tokens, and 1 to {MAX_MEMORIES} for entries of a "
                f"memory, plus {KEY_PER_HEAD} if each entry serves one query head, plus {CELL_ENTRY} m if the entries "
                f"are in cells of m, at most {MAX_CELL_ENTRIES}"
            )
        if cell and (own.stop - own.start) % (cell + 1):
            raise SpecError(
                f"segment {s}: length = {own.stop - own.start} with memory = {code}; a segment with cells of {cell} "
                f"entries has them and one centre for each cell: a multiple of {cell + 1} slots"
            )
        entries = Entries(own, code % CELL_ENTRY >= KEY_PER_HEAD, cell)
        memories.setdefault(number, Memory([])).entries.append(entries)
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
    index = torch.cat([torch.arange(e.keys.start, e.keys.stop, device=score.device) for e in memory.entries])
    if len(index) == 0:
        return
    # A score of NaN is never the best one.
    found = score[..., index].nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    parts = found.split([e.keys.stop - e.keys.start for e in memory.entries], dim=-1)
    found = torch.cat([_candidates(part, e) for part, e in zip(parts, memory.entries, strict=True)], dim=-1)
    top, best = found.max(dim=-1, keepdim=True)
    logits = lse[:, index][:, None, None].expand(found.shape).gather(-1, best)
    logits = logits.masked_fill(top == -torch.inf, -torch.inf)
    score[..., index] = torch.full_like(found, -torch.inf).scatter(-1, best, logits)


def _candidates(scores: Tensor, entries: Entries) -> Tensor:
    """Replaces the scores of what a row does not look up by -inf, [kv_heads, group, rows, slots]."""
    if not entries.cell:
        return _of_own_head(scores) if entries.has_key_per_head else scores
    cells = scores.shape[-1] // (entries.cell + 1)
    if cells == 0:
        return scores
    centres = scores[..., cells * entries.cell :]
    top, best = (_of_own_head(centres) if entries.has_key_per_head else centres).max(dim=-1, keepdim=True)
    cell_of = torch.arange(scores.shape[-1], device=scores.device) // entries.cell
    return scores.masked_fill((cell_of != best) | (cell_of >= cells) | (top == -torch.inf), -torch.inf)


def _of_own_head(scores: Tensor) -> Tensor:
    """Replaces the scores of entries that serve another query head by -inf, [kv_heads, group, rows, entries]."""
    group = scores.shape[1]
    heads, entry = (torch.arange(n, device=scores.device) for n in (group, scores.shape[-1]))
    return scores.masked_fill((entry % group != heads[:, None])[:, None], -torch.inf)
