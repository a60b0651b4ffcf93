"""Attention over position-free documents in fp64, from the formulas of the paper and nothing else.

Token j of a document that begins at logical position b (its base) has key k_j, of which the pool holds
R(j) k_j. The score of a query at position p with it is <R(p - b) q, R(j) k_j> x scale; with queries that
arrive as R(p) q the same is <R(-b) R(p) q, R(j) k_j> x scale. R(p) turns pair i by p x w_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class Segment:
    """Tokens start .. start + length - 1 of a document."""

    keys: torch.Tensor  # [length, kv_heads, head_dim], as the pool holds them
    values: torch.Tensor
    base: int
    start: int


def rotate(x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor, rotary_dim: int) -> torch.Tensor:
    """R(position) applied to x [tokens, heads, head_dim] in NeoX pairing, in fp64."""
    x = x.double()
    half = rotary_dim // 2
    if half == 0:
        return x
    angle = positions.double()[:, None] * frequencies.to(x.device).double()[None, :]
    cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]
    first, second, rest = x[..., :half], x[..., half:rotary_dim], x[..., rotary_dim:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def visible(mask: str, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """[queries, keys]: which logical positions a query sees."""
    if mask == "full":
        return torch.ones(len(query), len(key), dtype=torch.bool, device=query.device)
    assert mask == "causal", mask
    return key[None, :] <= query[:, None]


def attention(
    q: torch.Tensor,
    positions: torch.Tensor,
    segments: list[Segment],
    *,
    frequencies: torch.Tensor,
    rotary_dim: int,
    query_rotated: bool,
    mask: str,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One request: q [tokens, q_heads, head_dim] at logical positions [tokens]. Returns out like q and lse
    [tokens, q_heads], both fp64; a row that sees no key has out 0, lse -inf."""
    tokens, heads, _ = q.shape
    if sum(len(s.keys) for s in segments) == 0:
        return torch.zeros_like(q, dtype=torch.float64), torch.full(
            (tokens, heads), -torch.inf, dtype=torch.float64, device=q.device
        )
    scores, values = [], []
    for s in segments:
        group = heads // s.keys.shape[1]
        turn = -s.base if query_rotated else positions.double() - s.base
        turned = rotate(q, torch.as_tensor(turn, device=q.device).expand(tokens), frequencies, rotary_dim)
        keys = s.keys.double().repeat_interleave(group, dim=1)
        score = torch.einsum("thd,khd->thk", turned, keys) * scale
        key_positions = s.base + s.start + torch.arange(len(s.keys), device=q.device)
        seen = visible(mask, positions, key_positions)
        scores.append(score.masked_fill(~seen[:, None, :], -torch.inf))
        values.append(s.values.double().repeat_interleave(group, dim=1))
    score = torch.cat(scores, dim=-1)
    lse = torch.logsumexp(score, dim=-1)
    weights = torch.exp(score - lse[..., None]).nan_to_num(0.0)
    return torch.einsum("thk,khd->thd", weights, torch.cat(values)), lse
