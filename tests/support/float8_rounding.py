"""Rounds queries and softmax weights to float8_e4m3fn as kernels of 8-bit products do."""

from __future__ import annotations

import torch

LIFT = 3  # the greatest weight of a row is 2^3


def round_queries(rows: torch.Tensor) -> torch.Tensor:
    """Rounds rows to 8 bits, each with a power of two as its scale."""
    _, exponent = torch.frexp(rows.float().abs().amax(dim=-1, keepdim=True))
    scale = torch.exp2((exponent - 8).float())
    return (rows.float() / scale).to(torch.float8_e4m3fn).float() * scale


def softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weights of scores [tokens, heads, keys], rounded to 8 bits before they are normalised, and LSE."""
    scores = scores.float()
    sink = torch.full(scores.shape[1:2], -torch.inf) if sinks is None else sinks.float()
    sink = sink.to(scores.device)
    lse = torch.logsumexp(torch.cat([scores, sink[None, :, None].expand(len(scores), -1, 1)], dim=-1), dim=-1)
    most = scores.amax(dim=-1, keepdim=True).clamp_min(-1e30)
    rounded = torch.exp(scores - most).mul(2.0**LIFT).to(torch.float8_e4m3fn).float() * 2.0**-LIFT
    return (rounded * torch.exp(most - lse[..., None])).nan_to_num(0.0), lse
