"""Compact documents: some keys of a document with a bias each, and values, fitted to traces.

The method is Attention Matching (arXiv 2602.16284). Keys keep their rotation, so the result is read like any document.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import nnls
from .scores import MAX_SCORES, Scores, States, Usage, biased_states, exact_states, row_chunks

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor

FITS = ("none", "bias", "values")  # each fits what the ones before it fit as well
SELECTIONS = ("mass", "max")
# The least weight that a fitted bias stands for. A weight of 0 has no finite bias.
MIN_WEIGHT = 1e-6
# The ridge of the values' least squares, as a share of the mean diagonal of the normal equations.
RIDGE = 1e-3
MAX_ROWS = 1 << 13  # the queries of a chunk of the normal equations


@dataclass(frozen=True)
class CompactOptions:
    """The arguments of a compact memory.

    Attributes:
        budget: The tokens that it stores, with the exact ones.
        exact: The first tokens of the document that are stored as they are.
        fit: One of FITS, or "auto": the best of them for each KV head on held-out traces.
        selection: One of SELECTIONS, or "auto": the better of them for each KV head on held-out traces.
    """

    budget: int
    exact: int = 4
    fit: str = "auto"
    selection: str = "auto"

    @property
    def fits(self) -> tuple[str, ...]:
        return FITS if self.fit == "auto" else (self.fit,)

    @property
    def selections(self) -> tuple[str, ...]:
        return SELECTIONS if self.selection == "auto" else (self.selection,)


@dataclass(frozen=True)
class CompactHeads:
    """A compact memory of the KV heads of one layer.

    Attributes:
        index: The tokens of the document whose keys are stored, ascending, int64 [kv_heads, budget].
        keys: Their keys, in the document's dtype [kv_heads, budget, d].
        values: Their values, in the document's dtype [kv_heads, budget, d].
        bias: Their biases, float32 [kv_heads, budget].
        output_error: The relative error of the output over held-out traces, one number for each head.
        lse_error: The root mean square error of the log-sum-exp over held-out traces, one for each head.
        chosen: The selection and the fit of each head.
    """

    index: Tensor
    keys: Tensor
    values: Tensor
    bias: Tensor
    output_error: list[float]
    lse_error: list[float]
    chosen: list[tuple[str, str]]


@dataclass
class _Head:
    """The tensors of one KV head, in float32, and its states."""

    k: Tensor
    v: Tensor
    q: Tensor
    held_q: Tensor
    states: States
    held: States
    usage: Usage


@dataclass
class _Candidate:
    """One choice of keys with one fit, for all KV heads of a layer."""

    selection: str
    fit: str
    index: Tensor
    values: Tensor
    bias: Tensor
    output_error: Tensor
    lse_error: Tensor


def compact_heads(
    keys: Tensor, values: Tensor, fitted: Tensor, held: Tensor, scores: Scores, options: CompactOptions
) -> CompactHeads:
    """Makes the compact memory of one layer.

    The greatest matrices are of MAX_SCORES scores (two of float32), and of the normal equations: four of float64
    [kv_heads, budget, budget]. The keys, values and queries of all KV heads are in float32.

    Args:
        keys: The document's keys, rotated by their index, [tokens, kv_heads, d].
        values: Its values, [tokens, kv_heads, d].
        fitted: The queries that the memory is fitted to, [queries, q_heads, d], rotated by their positions where the
            document's token 0 is at position 0.
        held: The held-out queries, [queries, q_heads, d].
        scores: The scores of the layer.
        options: The arguments.
    """
    heads = list(_heads(keys, values, fitted, held, scores))
    candidates = [each for name in options.selections for each in _candidates(name, heads, keys.dtype, scores, options)]
    errors = torch.stack([each.output_error**2 + each.lse_error**2 for each in candidates])
    best = errors.nan_to_num(nan=math.inf, posinf=math.inf).argmin(0).tolist()  # argmin alone prefers NaN

    def of_best(name: str) -> Tensor:
        return torch.stack([getattr(candidates[i], name)[head] for head, i in enumerate(best)])

    index = of_best("index")
    return CompactHeads(
        index,
        torch.stack([keys[:, head][chosen] for head, chosen in enumerate(index)]),
        of_best("values").to(values.dtype),
        of_best("bias"),
        of_best("output_error").tolist(),
        of_best("lse_error").tolist(),
        [(candidates[i].selection, candidates[i].fit) for i in best],
    )


def _heads(keys: Tensor, values: Tensor, fitted: Tensor, held: Tensor, scores: Scores) -> Iterator[_Head]:
    group = fitted.shape[1] // keys.shape[1]
    for head in range(keys.shape[1]):
        k, v = keys[:, head].float(), values[:, head].float()
        of_head = slice(head * group, (head + 1) * group)
        q, held_q = (x[:, of_head].reshape(-1, x.shape[-1]).float() for x in (fitted, held))
        usage = Usage.of_none(k)
        states = exact_states(q, k, v, scores, usage)
        yield _Head(k, v, q, held_q, states, exact_states(held_q, k, v, scores), usage)


def _candidates(
    selection: str, heads: Sequence[_Head], dtype: torch.dtype, scores: Scores, options: CompactOptions
) -> Iterator[_Candidate]:
    index = torch.stack([_selected(selection, head.usage, options) for head in heads])
    keys = torch.stack([head.k[chosen] for head, chosen in zip(heads, index, strict=True)])
    values = torch.stack([head.v[chosen] for head, chosen in zip(heads, index, strict=True)])
    weights = torch.ones_like(index, dtype=torch.float64)
    if "none" in options.fits:
        yield _candidate(selection, "none", heads, index, keys, values, weights, scores)
    if options.fits == ("none",):
        return
    weights = _fitted_weights(heads, keys, weights, scores, options.exact)
    if "bias" in options.fits:
        yield _candidate(selection, "bias", heads, index, keys, values, weights, scores)
    if "values" in options.fits:
        values = _fitted_values(heads, keys, values, weights, scores, options.exact).to(dtype).float()
        yield _candidate(selection, "values", heads, index, keys, values, weights, scores)


def _selected(selection: str, usage: Usage, options: CompactOptions) -> Tensor:
    """Returns the first tokens and those of the greatest mass, or of the greatest weight, in ascending order."""
    rank = (usage.mass if selection == "mass" else usage.peak).clone()
    rank[: options.exact] = math.inf
    return rank.topk(options.budget).indices.sort().values


def _candidate(
    selection: str,
    fit: str,
    heads: Sequence[_Head],
    index: Tensor,
    keys: Tensor,
    values: Tensor,
    weights: Tensor,
    scores: Scores,
) -> _Candidate:
    bias = weights.log().float()
    output, lse = [], []
    for head, k, v, b in zip(heads, keys, values, bias, strict=True):
        states = biased_states(head.held_q, k, v, b, scores)
        output.append((states.out - head.held.out).norm() / head.held.out.norm().clamp_min(1e-30))
        lse.append((states.lse - head.held.lse).square().mean().sqrt())
    return _Candidate(selection, fit, index, values, bias, torch.stack(output), torch.stack(lse))


def _log_shares(head: _Head, k: Tensor, scores: Scores) -> Iterator[tuple[slice, Tensor]]:
    """Yields the logs of the exact softmax weights of chosen keys, float32 [queries, chosen], in chunks of queries.

    Products of a chunk are in float32, and sums over chunks in float64: the ridge and the diagonal scaling leave room
    for the rounding of float32, which is much faster on most devices.
    """
    for rows in row_chunks(len(head.q), len(k), min(MAX_SCORES, MAX_ROWS * len(k))):
        yield rows, scores(head.q[rows], k).sub_(head.states.lse[rows, None])


def _fitted_weights(heads: Sequence[_Head], keys: Tensor, weights: Tensor, scores: Scores, exact: int) -> Tensor:
    """Returns the weight of each key by which the sum of weighted softmax weights comes nearest to 1.

    Each query counts alike, for its row is divided by the sum over the whole document. The first `exact` keys keep
    weight 1.
    """
    grams, targets = [], []
    for head, k in zip(heads, keys, strict=True):
        gram = torch.zeros((len(k), len(k)), dtype=torch.float64, device=k.device)
        total = gram.new_zeros(len(k))
        for _, log_shares in _log_shares(head, k, scores):
            shares = log_shares.exp_()
            gram += shares.T @ shares
            total += shares.sum(0)
        grams.append(gram[exact:, exact:])
        targets.append(total[exact:] - gram[exact:, :exact].sum(1))
    fitted = nnls.solve(torch.stack(grams), torch.stack(targets), weights[:, exact:])
    return torch.cat([weights[:, :exact], fitted.clamp_min(MIN_WEIGHT)], dim=1)


def _fitted_values(
    heads: Sequence[_Head], keys: Tensor, values: Tensor, weights: Tensor, scores: Scores, exact: int
) -> Tensor:
    """Returns the values by which the outputs come nearest to the exact ones. The first `exact` values are kept.

    The ridge draws values to those of the document, so that keys which the traces hardly use keep theirs.
    """
    grams, targets = [], []
    for head, k, v, w in zip(heads, keys, values, weights, strict=True):
        gram = torch.zeros((len(k), len(k)), dtype=torch.float64, device=k.device)
        target = gram.new_zeros(v.shape)
        for rows, log_shares in _log_shares(head, k, scores):
            # softmax subtracts the maximum, so a row does not underflow to 0 / 0 where no chosen key has much weight.
            shares = log_shares.add_(w.log().float()).softmax(-1)
            gram += shares.T @ shares
            target += shares.T @ (head.states.out[rows] - shares @ v)
        grams.append(gram[exact:, exact:])
        targets.append(target[exact:])
    gram = torch.stack(grams)
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    diagonal += RIDGE * diagonal.mean(-1, keepdim=True) + 1e-30
    factor, failed = torch.linalg.cholesky_ex(gram)
    change = torch.cholesky_solve(torch.stack(targets), factor)
    change = torch.where(failed[:, None, None] == 0, change, 0)  # a head without a factor keeps its values
    return torch.cat([values[:, :exact], values[:, exact:] + change.float()], dim=1)
