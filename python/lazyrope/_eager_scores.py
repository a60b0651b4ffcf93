"""Plain PyTorch masks scores by logical positions here, and modifies them as the spec says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._core import AttentionSpec, QueryTemperature

Tensor = Any


def _after(_: AttentionSpec, query: Tensor, key: Tensor) -> Tensor:
    return key > query


def _outside_window(spec: AttentionSpec, query: Tensor, key: Tensor) -> Tensor:
    return (key > query) | (key <= query - spec.window)


def _outside_chunk(spec: AttentionSpec, query: Tensor, key: Tensor) -> Tensor:
    return (key > query) | (key < query - query % spec.chunk)


# For each mask, a function that returns True where a query does not see a key. It takes the logical positions of
# both, which are broadcast. None: every query sees every key.
HIDDEN: dict[str, Callable[[AttentionSpec, Tensor, Tensor], Tensor] | None] = {
    "causal": _after,
    "full": None,
    "sliding_window": _outside_window,
    "chunked": _outside_chunk,
}


def modified(spec: AttentionSpec, score: Tensor, positions: Tensor, bias: Tensor | None) -> Tensor:
    """Applies to scaled scores, in this order: the temperature of raw queries, the softcap, and the bias of keys.

    Args:
        spec: The spec.
        score: The scores, float32 [kv_heads, group, rows, keys].
        positions: The logical positions of the rows, [rows].
        bias: The bias of each key, float32 [kv_heads, keys], or None.

    Returns:
        The logits, of the shape of score.
    """
    if spec.temperature is not None and spec.query_form == "raw":
        score = score * temperature_of(spec.temperature, positions)[:, None]
    if spec.softcap is not None:
        score = torch.tanh(score / spec.softcap) * spec.softcap
    return score if bias is None else score + bias[:, None, None]


def temperature_of(temperature: QueryTemperature, positions: Tensor) -> Tensor:
    """Returns the factor of the scores of queries.

    Args:
        temperature: The parameters of the factor.
        positions: The logical positions of the queries, [...].

    Returns:
        The factors, float32, of the shape of positions.
    """
    intervals = (positions.long() + temperature.offset).clamp_min(0) // temperature.interval
    return 1.0 + temperature.beta * torch.log1p(intervals.float())


def softmax_of(score: Tensor, sinks: Tensor | None, with_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Returns the softmax of scores and, if wanted, their log-sum-exp. A row without visible keys has weights 0.

    Args:
        score: The scores, [kv_heads, group, rows, keys].
        sinks: A logit of each query head, [q_heads], or None.
        with_lse: Whether the log-sum-exp is wanted.

    Returns:
        The weights, of the shape of score, and the log-sum-exp, [kv_heads, group, rows, 1], or None.
    """
    if sinks is None and not with_lse:
        return score.softmax(-1).nan_to_num_(0.0), None
    shape = score.shape[:3]
    every = score if sinks is None else torch.cat([score, sinks.view(*shape[:2], 1, 1).expand(*shape, 1)], dim=-1)
    lse = every.logsumexp(-1, keepdim=True) if every.shape[-1] else every.new_full((*shape, 1), -torch.inf)
    return torch.exp(score - lse).nan_to_num_(0.0), lse
