"""Computes attention over position-free documents in fp64 with the formulas of the documentation.

Token j of a document that begins at logical position b (its base) has the key k_j; the pool stores R(j) k_j. Its score
with a query at position p is <R(p - b) q, R(j) k_j> x scale. Queries that arrive as R(p) q have the same score, written
as <R(-b) R(p) q, R(j) k_j> x scale. R(p) rotates pair i by the angle p x w_i. Stored keys, and queries of either form,
also have the attention factor once. If the pool holds raw keys, the score is <R(p) q, R(b + j) k_j> x scale. The scaled
score of a raw query is multiplied by its temperature. A softcap is applied after that, and the bias of a key is added
last. Of the entries of a memory only that with the greatest score counts, and its LSE is its score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lazyrope
import torch

from tests.support.states import Entries, are_clear, look_up


@dataclass
class Segment:
    """Tokens start .. start + length - 1 of a document."""

    keys: torch.Tensor  # [length, kv_heads, head_dim], as the pool stores them
    values: torch.Tensor
    base: int
    start: int
    mask_base: int | None = None  # None: base
    bias: torch.Tensor | None = None  # [length, kv_heads], added to the scores of each key
    entries: Entries | None = None  # the keys and values are entries of a memory


def rotate(
    x: torch.Tensor,
    positions: torch.Tensor,
    frequencies: torch.Tensor,
    rotary_dim: int,
    pairing: str = "half",
    factor: float = 1.0,
) -> torch.Tensor:
    """Rotates token t of x [tokens, heads, head_dim] by positions[t] x frequencies, in fp64.

    The columns of rotated pairs are also multiplied by factor.
    """
    x = x.double()
    half = rotary_dim // 2
    if half == 0:
        return x
    angle = positions.double()[:, None] * frequencies.to(x.device).double()[None, :]
    cos, sin = factor * angle.cos()[:, None, :], factor * angle.sin()[:, None, :]
    columns = torch.arange(rotary_dim, device=x.device)
    first, second = (columns[:half], columns[half:]) if pairing == "half" else (columns[::2], columns[1::2])
    rotated = x.clone()
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., second] * cos + x[..., first] * sin
    return rotated


def visible(mask: str, size: int | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Returns a bool [queries, keys]: whether the query sees the key. `query` and `key` hold logical positions.

    `size` is that of the window or of the chunks.
    """
    if mask == "full":
        return torch.ones(len(query), len(key), dtype=torch.bool, device=query.device)
    seen = key[None, :] <= query[:, None]
    if mask == "sliding_window":
        return seen & (query[:, None] - key[None, :] < size)
    if mask == "chunked":
        return seen & (query[:, None] // size == key[None, :] // size)
    assert mask == "causal", mask
    return seen


def temperature_of(temperature: lazyrope.QueryTemperature, positions: torch.Tensor) -> torch.Tensor:
    """Returns the factors of the scores of queries at the positions, in fp64."""
    intervals = torch.floor((positions.double() + temperature.offset) / temperature.interval)
    return 1.0 + temperature.beta * torch.log1p(intervals.clamp_min(0.0))


def attention(
    q: torch.Tensor, positions: torch.Tensor, segments: list[Segment], **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes one request, with the arguments of softmax().

    Returns out, shaped like q, and lse [tokens, q_heads], both fp64. A row that sees neither key nor sink has out 0 and
    lse -inf.
    """
    weights, lse = softmax(q, positions, segments, **options)
    values = [s.values.double().repeat_interleave(q.shape[1] // s.values.shape[1], dim=1) for s in segments]
    empty = torch.zeros((0, *q.shape[1:]), dtype=torch.float64, device=q.device)
    return torch.einsum("thk,khd->thd", weights, torch.cat([empty, *values])), lse


def softmax(
    q: torch.Tensor,
    positions: torch.Tensor,
    segments: list[Segment],
    *,
    frequencies: torch.Tensor,
    rotary_dim: int,
    query_rotated: bool,
    keys_raw: bool = False,
    mask: str,
    scale: float,
    pairing: str = "half",
    attention_factor: float = 1.0,
    mask_size: int | None = None,
    temperature: lazyrope.QueryTemperature | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the weights of one request.

    q is [tokens, q_heads, head_dim], positions are [tokens], and sinks, if given, [q_heads]. Returns the weights of the
    keys of all segments, [tokens, q_heads, keys], and lse [tokens, q_heads], both fp64.
    """
    tokens, heads, _ = q.shape
    sink = torch.full((heads,), -torch.inf, dtype=torch.float64, device=q.device) if sinks is None else sinks.double()
    scores = _scores(
        q,
        positions,
        segments,
        frequencies=frequencies,
        rotary_dim=rotary_dim,
        query_rotated=query_rotated,
        keys_raw=keys_raw,
        scale=scale,
        pairing=pairing,
        attention_factor=attention_factor,
        temperature=temperature,
        softcap=softcap,
    )
    entries = [s.entries for s in segments]
    scores = look_up(scores, entries, heads // segments[0].keys.shape[1]) if any(entries) else scores
    for i, s in enumerate(segments):
        if s.entries is not None:
            continue
        base = s.base if s.mask_base is None else s.mask_base
        seen = visible(mask, mask_size, positions, base + s.start + torch.arange(len(s.keys), device=q.device))
        scores[i] = scores[i].masked_fill(~seen[:, None, :], -torch.inf)
    score = torch.cat([sink[None, :, None].expand(tokens, heads, 1), *scores], dim=-1)
    lse = torch.logsumexp(score, dim=-1)
    return torch.exp(score[..., 1:] - lse[..., None]).nan_to_num(0.0), lse


def _scores(
    q: torch.Tensor,
    positions: torch.Tensor,
    segments: list[Segment],
    *,
    frequencies: torch.Tensor,
    rotary_dim: int,
    query_rotated: bool,
    keys_raw: bool,
    scale: float,
    pairing: str,
    attention_factor: float,
    temperature: lazyrope.QueryTemperature | None,
    softcap: float | None,
    **_: Any,
) -> list[torch.Tensor]:
    """Returns the scores of the keys of each segment, fp64 [tokens, q_heads, keys], without the mask."""
    tokens, heads, _dim = q.shape
    scores = []
    for s in segments:
        group = heads // s.keys.shape[1]
        base = 0 if keys_raw else s.base
        angle_position = -base if query_rotated else positions.double() - base
        factor = 1.0 if query_rotated else attention_factor
        by = torch.as_tensor(angle_position, device=q.device).expand(tokens)
        rotated = rotate(q, by, frequencies, rotary_dim, pairing, factor)
        keys = s.keys.double()
        if keys_raw:
            at = s.base + s.start + torch.arange(len(keys), device=q.device)
            keys = rotate(keys, at, frequencies, rotary_dim, pairing, attention_factor)
        score = torch.einsum("thd,khd->thk", rotated, keys.repeat_interleave(group, dim=1)) * scale
        if temperature is not None and not query_rotated:
            score = score * temperature_of(temperature, positions)[:, None, None]
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if s.bias is not None:
            score = score + s.bias.double().T.repeat_interleave(group, dim=0)
        scores.append(score)
    return scores


def clear_look_ups(
    q: torch.Tensor, positions: torch.Tensor, segments: list[Segment], *, softcap: float | None = None, **options: Any
) -> torch.Tensor:
    """Returns whether rounding cannot change the look-ups of each row, [tokens, q_heads]."""
    if not any(s.entries for s in segments):
        return torch.ones(q.shape[:2], dtype=torch.bool, device=q.device)
    scores = _scores(q, positions, segments, softcap=None, **options)
    return are_clear(scores, [s.entries for s in segments], q.shape[1] // segments[0].keys.shape[1])
