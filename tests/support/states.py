"""Attention states in the references: the look-up of entries, and steps with memories."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from tests.support.tolerance import assert_close, assert_lse_close

if TYPE_CHECKING:
    import lazyrope

    from tests.support.cases import Case

KEY_PER_HEAD = 8
CELL_ENTRY = 16
# Look-ups whose best two scores differ by a smaller share of the greatest score may be decided by rounding. The scores
# of random queries and keys have a deviation of about 1. So has what is rounded, however small a row's few scores are.
CLEAR_GAP = 0.008


@dataclass
class Entries:
    """The entries of a segment: its memory's number, as in ``Segments.memory``, and their LSEs [entries, kv_heads]."""

    memory: int
    lse: torch.Tensor


def _candidates(scores: torch.Tensor, memory: int, group: int) -> torch.Tensor:
    """Returns scores [tokens, q_heads, entries] with -inf for what a row does not look up."""
    cell = memory // CELL_ENTRY
    if cell == 0:
        return _served(scores, memory, group)
    centres = _centres(scores, memory, group)
    best = centres.argmax(dim=-1, keepdim=True)
    cell_of = torch.arange(scores.shape[-1], device=scores.device) // cell
    is_seen = (cell_of == best) & (cell_of < centres.shape[-1]) & (centres.gather(-1, best) > -torch.inf)
    return scores.masked_fill(~is_seen, -torch.inf)


def _centres(scores: torch.Tensor, memory: int, group: int) -> torch.Tensor:
    """Returns the scores of the centres of cells, with -inf where a centre serves another head."""
    cell = memory // CELL_ENTRY
    return _served(scores[..., scores.shape[-1] // (cell + 1) * cell :], memory, group)


def _served(scores: torch.Tensor, memory: int, group: int) -> torch.Tensor:
    """Returns scores [tokens, q_heads, entries] with -inf where an entry serves another head."""
    if memory % CELL_ENTRY < KEY_PER_HEAD:
        return scores
    entry, head = torch.arange(scores.shape[-1]), torch.arange(scores.shape[1])
    serves = entry[None, :] % group == head[:, None] % group
    return scores.masked_fill(~serves[None].to(scores.device), -torch.inf)


def _by_memory(entries: list[Entries | None]) -> list[list[int]]:
    """Returns the segments of each memory."""
    numbers = [0 if e is None else e.memory % KEY_PER_HEAD for e in entries]
    return [[s for s, n in enumerate(numbers) if n == number] for number in sorted(set(numbers) - {0})]


def look_up(scores: list[torch.Tensor], entries: list[Entries | None], group: int) -> list[torch.Tensor]:
    """Replaces scores of entries [tokens, q_heads, entries] by logits: the best entry's LSE, and -inf for others."""
    result = list(scores)
    for segments in _by_memory(entries):
        parts = [_candidates(scores[s], entries[s].memory, group) for s in segments if scores[s].shape[-1] > 0]
        segments = [s for s in segments if scores[s].shape[-1] > 0]
        if not parts:
            continue
        together = torch.cat(parts, dim=-1)
        best = together.argmax(dim=-1, keepdim=True)
        lse = torch.cat([entries[s].lse for s in segments]).T.repeat_interleave(group, dim=0)
        logits = torch.full_like(together, -torch.inf)
        found = lse.to(together)[None].expand(together.shape).gather(-1, best)
        found = found.masked_fill(together.gather(-1, best) == -torch.inf, -torch.inf)
        logits.scatter_(-1, best, found)
        for s, logit in zip(segments, logits.split([p.shape[-1] for p in parts], dim=-1), strict=True):
            result[s] = logit
    return result


def are_clear(scores: list[torch.Tensor], entries: list[Entries | None], group: int) -> torch.Tensor:
    """Returns whether rounding cannot change the look-ups of each row, [tokens, q_heads]."""
    clear = torch.ones(scores[0].shape[:2], dtype=torch.bool, device=scores[0].device)
    for segments in _by_memory(entries):
        filled = [s for s in segments if scores[s].shape[-1] > 0]
        if not filled:
            continue
        clear &= _is_clear(torch.cat([_candidates(scores[s], entries[s].memory, group) for s in filled], dim=-1))
        for s in filled:
            if entries[s].memory >= CELL_ENTRY:
                clear &= _is_clear(_centres(scores[s], entries[s].memory, group))
    return clear


def _is_clear(scores: torch.Tensor) -> torch.Tensor:
    """Returns whether the greatest score of each row is clearly greater than the next."""
    if scores.shape[-1] < 2:
        return torch.ones(scores.shape[:-1], dtype=torch.bool, device=scores.device)
    first, second = scores.topk(2, dim=-1).values.unbind(-1)
    size = scores.masked_fill(scores == -torch.inf, 0).abs().amax(dim=-1).clamp_min(1.0)
    return (first - second > CLEAR_GAP * size) | (second == -torch.inf)


def _random_cell(rng: random.Random, length: int, share: float) -> int:
    """Returns the entries of a cell for a segment of so many slots: 0, or one that fits them, with a centre a cell."""
    if share == 0:
        return 0
    fitting = [m for m in range(1, length) if length % (m + 1) == 0]
    return rng.choice(fitting) if fitting and rng.random() < share else 0


def with_memories(case: Case, seed: int, share: float = 0.6, numbers: int = 4, *, cell_share: float = 0.5) -> Case:
    """Turns some slices of each request into memories, and gives their entries LSEs. All other LSEs are NaN.

    A share of the memories that have a fitting number of slots have their entries in cells.
    """
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    setting = case.setting
    pages = case.k_pool.shape[0]
    lse = torch.full((pages, setting.kv_heads, setting.page_size), torch.nan)
    requests = []
    codes = []
    page_list = case.metadata["pages"].cpu().long()
    for request in case.requests:
        slices = []
        for s in request.slices:
            is_memory = rng.random() < share
            code = rng.randint(1, numbers) + rng.choice([0, 0, KEY_PER_HEAD]) if is_memory else 0
            if is_memory:
                code += CELL_ENTRY * _random_cell(rng, s.length, cell_share)
            codes.append(code)
            if code == 0:
                slices.append(s)
                continue
            slot = s.document.lead + s.start + torch.arange(s.length)
            page = page_list[s.document.first_page + slot // setting.page_size]
            fresh = lse[page, :, slot % setting.page_size].isnan()
            values = 2 * torch.randn((s.length, setting.kv_heads), generator=generator)
            lse[page, :, slot % setting.page_size] = torch.where(fresh, values, lse[page, :, slot % setting.page_size])
            slices.append(replace(s, entries=Entries(code, lse[page, :, slot % setting.page_size].to(case.q.device))))
        requests.append(replace(request, slices=slices))
    device = case.q.device
    metadata = case.metadata | {"memory": torch.tensor(codes, dtype=torch.int32, device=device)}
    arguments = case.call_arguments | {"entry_lse": lse.to(device)}
    return replace(case, requests=requests, metadata=metadata, call_arguments=arguments)


def clear_rows(case: Case) -> torch.Tensor:
    """Returns the rows whose look-ups rounding cannot change, [tokens, q_heads]."""
    from tests.support import reference

    return torch.cat([clear for clear in case._of_requests(reference.clear_look_ups)])


def check_states(case: Case, kernel: lazyrope.Attention, step: lazyrope.Step | None = None) -> int:
    """Compares a step with fp64, by relative error, in the rows whose look-ups are clear. Returns their number."""
    from tests.support import eager

    step = step if step is not None else case.plan(kernel, check=True)
    out = torch.full_like(case.q, torch.nan)
    lse = torch.full(case.q.shape[:2], torch.nan, device=case.q.device)
    kernel(case.q, case.k_pool, case.v_pool, step, out=out, lse=lse, **case.call_arguments)
    assert not bool(out.isnan().any()) and not bool(lse.isnan().any())
    exact, exact_lse = case.reference()
    clear = clear_rows(case)
    assert_lse_close(lse[clear], exact_lse[clear], case.q.dtype)
    assert_close(out[clear], exact[clear], eager.attention(case)[clear])
    assert int(clear.sum()) >= 0.6 * clear.numel(), "too few look-ups are clear"
    return int(clear.sum())
