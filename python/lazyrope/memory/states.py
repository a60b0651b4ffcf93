"""Attention-state memories: the attention of typical queries over a document, looked up by the query.

The method is that of arXiv 2605.18226.

A query takes the output and the log-sum-exp of the entry whose mean query has the greatest cosine with it. Entries are
averaged in log space: the log-sum-exp of an entry is the mean of its queries' ones, and its output is the mean of their
outputs. The paper averages exponentials instead, which outliers dominate; ``average="paper"`` does so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .kmeans import clusters_of, filled_clusters_of, means, nearest, unit
from .scores import MAX_SCORES, Scores, States, biased_states, exact_states, row_chunks

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor

LOOKUPS = ("group", "head")
AVERAGES = ("log", "paper")
ROOM = 1.25  # the entries that a cell has room for, divided by their mean number


@dataclass(frozen=True)
class StatesOptions:
    """The arguments of an attention-state memory.

    Attributes:
        entries: The number of entries for each query head.
        exact: The first tokens of the document, whose keys and values are kept. Entries do not cover them.
        lookup: "group": an entry has one mean query for the query heads of a KV head. "head": one for each query head.
        average: "log" or "paper".
        tangent: If True, an entry also has the gradient of its log-sum-exp by the query.
        two_level: If True, entries are in cells, and a look-up scans the entries of the nearest cell alone.
        seed: The seed of k-means.
    """

    entries: int
    exact: int = 4
    lookup: str = "group"
    average: str = "log"
    tangent: bool = False
    two_level: bool = False
    seed: int = 0


@dataclass(frozen=True)
class StateHeads:
    """The entries of one layer.

    With two levels, cell c has entries c * m to c * m + m - 1, where m is the number of entries divided by the number
    of cells. In a cell that has fewer entries, one of them is repeated.

    Attributes:
        keys: The mean queries, of length 1, in the document's dtype [kv_heads or q_heads, entries, d].
        out: The outputs, in the document's dtype [q_heads, entries, d].
        lse: The log-sum-exps, float32 [q_heads, entries]. With a tangent: those of a query of zeros.
        tangent: The gradients of the log-sum-exps, in the document's dtype [q_heads, entries, d], or [q_heads, 0, d].
        centres: The means of the keys of each cell, of length 1, in the document's dtype
            [kv_heads or q_heads, cells, d]. Without two levels there are none.
        exact_keys: The keys of the exact tokens, [kv_heads, exact, d].
        exact_values: The values of the exact tokens, [kv_heads, exact, d].
    """

    keys: Tensor
    out: Tensor
    lse: Tensor
    tangent: Tensor
    centres: Tensor
    exact_keys: Tensor
    exact_values: Tensor


def state_heads(keys: Tensor, values: Tensor, fitted: Tensor, scores: Scores, options: StatesOptions) -> StateHeads:
    """Makes the entries of one layer.

    Args:
        keys: The document's keys, rotated by their index, [tokens, kv_heads, d].
        values: Its values, [tokens, kv_heads, d].
        fitted: The queries, [queries, q_heads, d], rotated by their positions where the document's token 0 is at
            position 0.
        scores: The scores of the layer.
        options: The arguments.
    """
    # The cells have a generator of their own, so that both kinds of look-up have the same entries.
    generator, of_cells = (torch.Generator().manual_seed(options.seed + i) for i in range(2))
    q_heads, kv_heads = fitted.shape[1], keys.shape[1]
    group, dtype = q_heads // kv_heads, keys.dtype
    found: dict[str, list[Tensor]] = {name: [] for name in StateHeads.__dataclass_fields__}
    for head in range(kv_heads):
        k, v = keys[options.exact :, head].float(), values[options.exact :, head].float()
        q = fitted[:, head * group : (head + 1) * group].float().transpose(0, 1)  # [group, queries, d]
        shared = None
        if options.lookup == "group":
            shared = clusters_of(unit(q).transpose(0, 1).flatten(1), options.entries, generator)
            order = _add_key(found, unit(q).mean(0), shared, dtype, options, of_cells)
        for rows in q:
            cluster = clusters_of(rows, options.entries, generator) if shared is None else shared
            if shared is None:
                order = _add_key(found, unit(rows), cluster, dtype, options, of_cells)
            for name, value in _entries(rows, k, v, cluster, scores, options).items():
                ordered = value[order] if len(value) else value
                found[name].append(ordered if name == "lse" else ordered.to(dtype))
        found["exact_keys"].append(keys[: options.exact, head])
        found["exact_values"].append(values[: options.exact, head])
    return StateHeads(**{name: torch.stack(parts) for name, parts in found.items()})


def cells_of(entries: int) -> tuple[int, int]:
    """Returns how many cells K entries have with two levels, and the entries of a cell.

    A look-up scans the centres and one cell, which is least where both have about as many keys.
    """
    cells = math.ceil(math.sqrt(entries))
    return cells, math.ceil(ROOM * entries / cells)


def _filled(cluster: Tensor, entries: int) -> Tensor:
    """Returns for each entry the entry that it equals: itself, or some other one if its cluster has no queries.

    An entry without queries has no state. Its key would be a vector of zeros, which is the nearest one of a query that
    all other keys point away from.
    """
    own = torch.arange(entries, device=cluster.device)
    return torch.where(torch.bincount(cluster, minlength=entries) > 0, own, cluster[0])


def _add_key(
    found: dict[str, list[Tensor]],
    directions: Tensor,
    cluster: Tensor,
    dtype: torch.dtype,
    options: StatesOptions,
    generator: torch.Generator,
) -> Tensor:
    """Adds the keys of entries, and the centres of their cells. Returns the entry that each place in the keys has."""
    key = unit(means(directions, cluster, options.entries))[_filled(cluster, options.entries)]
    order, centres = torch.arange(len(key), device=key.device), key[:0]
    if options.two_level:
        cells, most = cells_of(len(key))
        cell = filled_clusters_of(key, cells, most, generator)
        order = _in_cells(cell, cells, most)
        is_empty = torch.bincount(cell, minlength=cells) == 0
        repeated = key[order.view(cells, most)[:, 0]]
        centres = torch.where(is_empty[:, None], repeated, unit(means(key, cell, cells)))
    found["keys"].append(key[order].to(dtype))
    found["centres"].append(centres.to(dtype))
    return order


def _in_cells(cell: Tensor, cells: int, most: int) -> Tensor:
    """Returns the entry of each place in cells of `most` places each. Places without an entry repeat one.

    Args:
        cell: The cell of each entry.
        cells: The number of cells. A cell without entries repeats that of another one.
        most: The places of a cell.
    """
    by_cell = cell.argsort(stable=True)
    count = torch.bincount(cell, minlength=cells)
    first = count.cumsum(0) - count
    place = torch.arange(most, device=cell.device) % count.clamp_min(1)[:, None]
    return by_cell[(first[:, None] + place).clamp_max(len(cell) - 1)].flatten()


def _entries(
    q: Tensor, k: Tensor, v: Tensor, cluster: Tensor, scores: Scores, options: StatesOptions
) -> dict[str, Tensor]:
    """Returns the outputs, the log-sum-exps and the tangents of one query head's entries."""
    states = exact_states(q, k, v, scores)
    count = options.entries
    if options.average == "paper":
        most = torch.full((count,), -torch.inf, device=q.device).scatter_reduce_(0, cluster, states.lse, "amax")
        weight = torch.exp(states.lse - most[cluster])
        mean = means(weight, cluster, count).clamp_min(1e-30)
        out = means(weight[:, None] * states.out, cluster, count) / mean[:, None]
        lse = most + mean.log()
    else:
        out, lse = means(states.out, cluster, count), means(states.lse, cluster, count)
    filled = _filled(cluster, count)
    if not options.tangent:
        return {"out": out[filled], "lse": lse[filled], "tangent": out[:0]}
    # The gradient of the log-sum-exp by the query is the mean key under softmax, times the scale.
    gradient = means(exact_states(q, k, k, scores).out, cluster, count) * scores.scale
    lse = lse - (means(q, cluster, count) * gradient).sum(-1)
    return {"out": out[filled], "lse": lse[filled], "tangent": gradient[filled]}


def looked_up(heads: StateHeads, q: Tensor, scores: Scores) -> tuple[States, Tensor]:
    """Returns the states of queries by look-up, and the cosine of each with its entry: the evaluation in PyTorch.

    Args:
        heads: The entries of a layer.
        q: Queries, [queries, q_heads, d].
        scores: The scores of the layer.

    Returns:
        The states, float32 [q_heads, queries, d] and [q_heads, queries], and the cosines, float32 [q_heads, queries].
    """
    q_heads, kv_heads = q.shape[1], len(heads.exact_keys)
    group, keys_each = q_heads // kv_heads, q_heads // len(heads.keys)
    outs, lses, cosines = [], [], []
    for head in range(q_heads):
        rows, at = q[:, head].float(), head // keys_each
        cosine, entry = _best(heads, at, rows)
        out, lse = heads.out[head].float()[entry], heads.lse[head][entry]
        if heads.tangent.shape[1]:
            lse = lse + (rows * heads.tangent[head].float()[entry]).sum(-1)
        if heads.exact_keys.shape[1]:
            k, v = heads.exact_keys[head // group].float(), heads.exact_values[head // group].float()
            first = biased_states(rows, k, v, k.new_zeros(len(k)), scores)
            both = torch.logaddexp(lse, first.lse)
            out = (lse - both).exp()[:, None] * out + (first.lse - both).exp()[:, None] * first.out
            lse = both
        outs.append(out)
        lses.append(lse)
        cosines.append(cosine)
    return States(torch.stack(outs), torch.stack(lses)), torch.stack(cosines)


def _best(heads: StateHeads, at: int, q: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the cosine of each query with its entry, and the number of the entry."""
    q, keys, centres = unit(q), heads.keys[at].float(), heads.centres[at].float()
    if not len(centres):
        return nearest(q, keys)
    _, cell = nearest(q, centres)
    best = q.new_empty(len(q)), torch.empty(len(q), dtype=torch.long, device=q.device)
    entry_cell = torch.arange(len(keys), device=q.device) // (len(keys) // len(centres))
    for rows in row_chunks(len(q), len(keys), MAX_SCORES):
        product = (q[rows] @ keys.T).masked_fill(entry_cell != cell[rows, None], -torch.inf)
        torch.max(product, dim=-1, out=(best[0][rows], best[1][rows]))
    return best
