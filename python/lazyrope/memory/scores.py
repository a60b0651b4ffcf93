"""Scores and exact attention states of one KV head, computed in chunks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .._core import AttentionSpec

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor

# The most scores, queries x keys, that are computed at once. Two such matrices of float32 exist at a time.
MAX_SCORES = 1 << 26


@dataclass(frozen=True)
class Scores:
    """The scores of a layer, as its kernel computes them before the key bias.

    Attributes:
        scale: The factor of the inner products.
        softcap: The bound of the scores, or None.
    """

    scale: float
    softcap: float | None

    @classmethod
    def of(cls, spec: AttentionSpec) -> Scores:
        return cls(spec.scale, spec.softcap)

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        """Returns the scores, float32 [..., queries, keys], of queries [..., queries, d] and keys [..., keys, d]."""
        score = (q * self.scale) @ k.transpose(-1, -2)
        return score if self.softcap is None else score.div_(self.softcap).tanh_().mul_(self.softcap)


@dataclass
class States:
    """The attention of queries over a document alone.

    Attributes:
        out: The outputs, float32 [queries, d].
        lse: The natural log-sum-exp of each query's scores, float32 [queries].
    """

    out: Tensor
    lse: Tensor


@dataclass
class Usage:
    """The softmax weight of each key, over all queries that have been counted.

    Attributes:
        mass: The sum of its weights, float32 [keys].
        peak: The greatest of its weights, float32 [keys].
    """

    mass: Tensor
    peak: Tensor

    @classmethod
    def of_none(cls, keys: Tensor) -> Usage:
        return cls(*(torch.zeros(len(keys), dtype=torch.float32, device=keys.device) for _ in range(2)))


def row_chunks(rows: int, columns: int, most: int = MAX_SCORES) -> Iterator[slice]:
    """Yields slices of all rows whose matrices have at most so many elements, and at least one row."""
    step = max(1, most // max(1, columns))
    for begin in range(0, rows, step):
        yield slice(begin, min(rows, begin + step))


def exact_states(q: Tensor, k: Tensor, v: Tensor, scores: Scores, usage: Usage | None = None) -> States:
    """Returns the states of queries over all keys.

    Args:
        q: Queries, float32 [queries, d].
        k: Keys, float32 [keys, d].
        v: Values, float32 [keys, d].
        scores: The scores of the layer.
        usage: If given, the weights of each key are added to it.
    """
    states = States(torch.empty_like(q), q.new_empty(len(q)))
    for rows in row_chunks(len(q), len(k)):
        score = scores(q[rows], k)
        weights = score.softmax(-1)
        # A weight is exp(score - lse). The greatest one loses nothing to underflow.
        most, at = weights.max(-1)
        states.lse[rows] = score.gather(-1, at[:, None]).squeeze(-1) - most.log()
        states.out[rows] = weights @ v
        if usage is not None:
            usage.mass += weights.sum(0)
            usage.peak = torch.maximum(usage.peak, weights.amax(0))
    return states


def biased_states(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scores: Scores) -> States:
    """Returns the states of queries over the keys of a compact memory.

    Args:
        q: Queries, float32 [..., queries, d].
        k: Keys, float32 [..., keys, d].
        v: Values, float32 [..., keys, d].
        bias: The number that is added to the scores of each key, float32 [..., keys].
        scores: The scores of the layer.
    """
    states = States(torch.empty_like(q), q.new_empty(q.shape[:-1]))
    for rows in row_chunks(q.shape[-2], k.shape[:-1].numel()):
        score = scores(q[..., rows, :], k).add_(bias[..., None, :])
        lse = score.logsumexp(-1)
        states.lse[..., rows] = lse
        states.out[..., rows, :] = score.sub_(lse[..., None]).exp_() @ v
    return states
