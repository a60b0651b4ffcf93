"""Computes attention eagerly in the kernels' dtype. Tolerances are multiples of its error."""

from __future__ import annotations

import torch

from tests.support import float8_rounding as float8
from tests.support.cases import Case, Request, Slice
from tests.support.reference import rotate, temperature_of, visible
from tests.support.states import look_up


def attention(case: Case) -> torch.Tensor:
    """Computes attention as eager code does.

    Rotated queries, scores and weights are each rounded to the dtype; softmax is in fp32. With 8-bit products, rotated
    queries and weights are rounded to 8 bits, and scores are not rounded.
    """
    return attention_with_lse(case)[0]


def attention_with_lse(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Does the same, and returns the LSE, too, of specs with 8-bit products."""
    outs, lses, at = [], [], 0
    for request in case.requests:
        n = len(request.positions)
        out, lse = _request(case, request, case.q[at : at + n])
        outs.append(out)
        lses.append(lse)
        at += n
    return torch.cat(outs), torch.cat(lses)


def _request(case: Case, request: Request, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    no_lse = torch.full(q.shape[:2], -torch.inf, device=q.device)
    if len(q) == 0 or sum(s.length for s in request.slices) == 0:
        sinks = case.call_arguments.get("sinks")
        return torch.zeros_like(q), no_lse if sinks is None else sinks.expand(q.shape[:2]).float()
    positions = torch.tensor(request.positions, device=q.device, dtype=torch.int64)
    group = case.setting.group
    of_slices = [_scores(case, s, q, positions) for s in request.slices]
    scores = torch.cat(look_up(of_slices, [s.entries for s in request.slices], group), dim=-1)
    values = torch.cat([s.document.values[s.start : s.start + s.length] for s in request.slices])
    if case.spec.compute == "float8":
        weights, lse = float8.softmax(scores, case.call_arguments.get("sinks"))
        by_head = values.repeat_interleave(group, dim=1).transpose(0, 1).float()
        return torch.matmul(weights.transpose(0, 1), by_head).transpose(0, 1).to(q.dtype), lse
    if "sinks" in case.call_arguments:
        sinks = case.call_arguments["sinks"][None, :, None].expand(len(q), -1, 1)
        weights = torch.softmax(torch.cat([scores.float(), sinks], dim=-1), dim=-1)[..., :-1].to(q.dtype)
    else:
        weights = torch.softmax(scores.float(), dim=-1).nan_to_num(0.0).to(q.dtype)
    by_head = values.repeat_interleave(group, dim=1).transpose(0, 1)
    return torch.matmul(weights.transpose(0, 1), by_head).transpose(0, 1), no_lse


def _scores(case: Case, s: Slice, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    rotated_already = case.setting.query_form == "rotated"
    is_raw = case.setting.key_form == "raw"
    base = 0 if is_raw else s.base + s.shift
    angle_position = torch.full_like(positions, -base) if rotated_already else positions - base
    frequencies = torch.tensor(case.spec.frequencies, dtype=torch.float64)
    factor = 1.0 if rotated_already else case.spec.attention_factor
    rotated = rotate(q, angle_position, frequencies, case.spec.rope.rotary_dim, case.spec.rope_pairing, factor).to(
        q.dtype
    )
    keys = s.document.keys[s.start : s.start + s.length]
    if case.spec.compute == "float8":
        rotated, keys = float8.round_queries(rotated), keys.float()
    if is_raw:
        at = s.base + s.start + torch.arange(s.length, device=q.device)
        rope = case.spec.rope
        keys = rotate(keys, at, frequencies, rope.rotary_dim, case.spec.rope_pairing, case.spec.attention_factor)
        keys = keys.to(q.dtype)
    keys = keys.repeat_interleave(case.setting.group, dim=1)
    score = torch.matmul(rotated.transpose(0, 1), keys.permute(1, 2, 0)).transpose(0, 1) * case.spec.scale
    if case.spec.temperature is not None and not rotated_already:
        score = score * temperature_of(case.spec.temperature, positions)[:, None, None].to(score.dtype)
    if (softcap := case.spec.softcap) is not None:
        score = softcap * torch.tanh(score / softcap)
    if s.document.bias is not None:  # eager code adds a mask of this kind in the dtype of the scores
        bias = s.document.bias[s.start : s.start + s.length].T.repeat_interleave(case.setting.group, dim=0)
        score = score + bias.to(score.dtype)
    if s.entries is not None:
        return score
    key_positions = s.base + s.start + torch.arange(s.length, device=q.device)
    return score.masked_fill(
        ~visible(case.setting.mask, case.spec.window or case.spec.chunk, positions, key_positions)[:, None, :],
        -torch.inf,
    )
