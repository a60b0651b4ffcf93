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
