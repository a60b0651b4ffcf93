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
class _Pick:
    """The keys that a selection chooses for one KV head, float32, with their values and indices."""

    head: _Head
    index: Tensor
    k: Tensor
    v: Tensor


@dataclass
class _Candidate:
    """One fit of all picks: of the KV heads of a layer, selection after selection."""

    fit: str
    values: Tensor
    bias: Tensor
    output_error: Tensor
    lse_error: Tensor


def compact_heads(
    keys: Tensor, values: Tensor, fitted: Tensor, held: Tensor, scores: Scores, options: CompactOptions
) -> CompactHeads:
    """Makes the compact memory of one layer.

    The greatest matrices are of MAX_SCORES scores (two of float32), and of the normal equations: four of float64
    [selections * kv_heads, budget, budget]. The keys, values and queries of all KV heads are in float32.

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
    picks = [_pick(name, head, options) for name in options.selections for head in heads]
    candidates = list(_candidates(picks, keys.dtype, scores, options))
    errors = torch.stack([each.output_error**2 + each.lse_error**2 for each in candidates])
    errors = errors.nan_to_num(nan=math.inf, posinf=math.inf)  # argmin alone prefers NaN
    # For each head, the number of the candidate and of the selection: candidates outside, selections inside.
    best = errors.view(-1, len(heads)).argmin(0).tolist()
    chosen = [(candidates[i // len(options.selections)], i % len(options.selections)) for i in best]

    def of_best(name: str) -> Tensor:
        rows = [getattr(each, name)[selection * len(heads) + head] for head, (each, selection) in enumerate(chosen)]
        return torch.stack(rows)

    index = torch.stack([picks[selection * len(heads) + head].index for head, (_, selection) in enumerate(chosen)])
    return CompactHeads(
        index,
        torch.stack([keys[:, head][of_head] for head, of_head in enumerate(index)]),
        of_best("values").to(values.dtype),
        of_best("bias"),
        of_best("output_error").tolist(),
        of_best("lse_error").tolist(),
        [(options.selections[selection], each.fit) for each, selection in chosen],
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


def _pick(selection: str, head: _Head, options: CompactOptions) -> _Pick:
    """Chooses the first tokens and those of the greatest mass, or of the greatest weight, in ascending order."""
    rank = (head.usage.mass if selection == "mass" else head.usage.peak).clone()
    rank[: options.exact] = math.inf
    index = rank.topk(options.budget).indices.sort().values
    return _Pick(head, index, head.k[index], head.v[index])


def _candidates(
    picks: Sequence[_Pick], dtype: torch.dtype, scores: Scores, options: CompactOptions
) -> Iterator[_Candidate]:
    """Yields the fits of all picks. All of them are solved in one batch."""
    values = torch.stack([pick.v for pick in picks])
    weights = torch.ones(values.shape[:2], dtype=torch.float64, device=values.device)
    if "none" in options.fits:
        yield _candidate("none", picks, values, weights, scores)
    if options.fits == ("none",):
        return
    weights = _fitted_weights(picks, weights, scores, options.exact)
    if "bias" in options.fits:
        yield _candidate("bias", picks, values, weights, scores)
    if "values" in options.fits:
        values = _fitted_values(picks, values, weights, scores, options.exact).to(dtype).float()
        yield _candidate("values", picks, values, weights, scores)


def _candidate(fit: str, picks: Sequence[_Pick], values: Tensor, weights: Tensor, scores: Scores) -> _Candidate:
    bias = weights.log().float()
    output, lse = [], []
    for pick, v, b in zip(picks, values, bias, strict=True):
        held = pick.head.held
        states = biased_states(pick.head.held_q, pick.k, v, b, scores)
        output.append((states.out - held.out).norm() / held.out.norm().clamp_min(1e-30))
        lse.append((states.lse - held.lse).square().mean().sqrt())
    return _Candidate(fit, values, bias, torch.stack(output), torch.stack(lse))


def _log_shares(pick: _Pick, scores: Scores) -> Iterator[tuple[slice, Tensor]]:
    """Yields the logs of the exact softmax weights of chosen keys, float32 [queries, chosen], in chunks of queries.

    Products of a chunk are in float32, and sums over chunks in float64: the ridge and the diagonal scaling leave room
    for the rounding of float32, which is much faster on most devices.
    """
    head = pick.head
    for rows in row_chunks(len(head.q), len(pick.k), min(MAX_SCORES, MAX_ROWS * len(pick.k))):
        yield rows, scores(head.q[rows], pick.k).sub_(head.states.lse[rows, None])


def _fitted_weights(picks: Sequence[_Pick], weights: Tensor, scores: Scores, exact: int) -> Tensor:
    """Returns the weight of each key by which the sum of weighted softmax weights comes nearest to 1.

    Each query counts alike, for its row is divided by the sum over the whole document. The first `exact` keys keep
    weight 1.
    """
    grams, targets = [], []
    for pick in picks:
        budget = len(pick.k)
        gram = torch.zeros((budget, budget), dtype=torch.float64, device=pick.k.device)
        total = gram.new_zeros(budget)
        for _, log_shares in _log_shares(pick, scores):
            shares = log_shares.exp_()
            gram += shares.T @ shares
            total += shares.sum(0)
        grams.append(gram[exact:, exact:])
        targets.append(total[exact:] - gram[exact:, :exact].sum(1))
    fitted = nnls.solve(torch.stack(grams), torch.stack(targets), weights[:, exact:])
    return torch.cat([weights[:, :exact], fitted.clamp_min(MIN_WEIGHT)], dim=1)


def _fitted_values(picks: Sequence[_Pick], values: Tensor, weights: Tensor, scores: Scores, exact: int) -> Tensor:
    """Returns the values by which the outputs come nearest to the exact ones. The first `exact` values are kept.

    The ridge draws values to those of the document, so that keys which the traces hardly use keep theirs.
    """
    grams, targets = [], []
    for pick, v, w in zip(picks, values, weights, strict=True):
        gram = torch.zeros((len(v), len(v)), dtype=torch.float64, device=v.device)
        target = gram.new_zeros(v.shape)
        for rows, log_shares in _log_shares(pick, scores):
            # softmax subtracts the maximum, so a row does not underflow to 0 / 0 where no chosen key has much weight.
            shares = log_shares.add_(w.log().float()).softmax(-1)
            gram += shares.T @ shares
            target += shares.T @ (pick.head.states.out[rows] - shares @ v)
        grams.append(gram[exact:, exact:])
        targets.append(target[exact:])
    gram = torch.stack(grams)
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    diagonal += RIDGE * diagonal.mean(-1, keepdim=True) + 1e-30
    factor, failed = torch.linalg.cholesky_ex(gram)
    change = torch.cholesky_solve(torch.stack(targets), factor)
    change = torch.where(failed[:, None, None] == 0, change, 0)  # a head without a factor keeps its values
    return torch.cat([values[:, :exact], values[:, exact:] + change.float()], dim=1)
