"""Tells when the queries of requests leave the traces that a memory was fitted to."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .kmeans import clusters_of, means, nearest, unit

if TYPE_CHECKING:
    from .memories import Memory

    Tensor = Any
else:
    Tensor = torch.Tensor

DIRECTIONS = 32
QUANTILE = 0.05  # the share of held-out queries below the floor


def typical_of(fitted: Tensor, held: Tensor, kv_heads: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns the directions of a layer's typical queries, and the cosine that few held-out queries fall below.

    Args:
        fitted: Queries, [queries, q_heads, d].
        held: Held-out queries, [queries, q_heads, d].
        kv_heads: The KV heads of the layer.
        seed: The seed of k-means.

    Returns:
        The directions, float32 [kv_heads, directions, d], and the floors, float32 [kv_heads].
    """
    generator = torch.Generator().manual_seed(seed)
    count = min(DIRECTIONS, len(fitted))
    directions, floors = [], []
    for q, held_q in zip(_of_heads(fitted, kv_heads), _of_heads(held, kv_heads), strict=True):
        centres = unit(means(q, clusters_of(q, count, generator, iterations=4), count))
        cosines, _ = nearest(held_q, centres)
        floors.append(cosines.sort().values[int(QUANTILE * len(cosines))])
        directions.append(centres)
    return torch.stack(directions), torch.stack(floors)


def _of_heads(queries: Tensor, kv_heads: int) -> Tensor:
    """Returns queries of length 1 by KV head, float32 [kv_heads, queries, d]."""
    return unit(queries.float().transpose(0, 1).unflatten(0, (kv_heads, -1)).flatten(1, 2))


@dataclass(frozen=True)
class Audit:
    """The errors of a memory on some queries, beside those on its held-out traces.

    Attributes:
        output_error: The mean relative error of the output over layers and KV heads.
        lse_error: The mean error of the log-sum-exp over layers and KV heads, in nats: the error of the log of the mass
            that the queries give to the document.
        held_out_output_error: The same on held-out traces.
        held_out_lse_error: The same on held-out traces.
    """

    output_error: float
    lse_error: float
    held_out_output_error: float
    held_out_lse_error: float


class Drift:
    """Counts queries that are unlike the traces of a memory, and warns.

    On held-out traces, 5% of the queries have a cosine with their nearest typical direction below the memory's floor.
    :meth:`observe` warns once when more than `share` of the queries so far are below it. The cosine is cheap but
    indirect; :meth:`audit` compares with the document's own keys and values.

    Args:
        memory: The memory.
        share: The share of queries below the floor that is too much.
        factor: The factor of the held-out errors that is too much in an audit.

    Attributes:
        seen: The queries so far, over all layers and query heads.
        below: Those of them below the floor.
    """

    def __init__(self, memory: Memory, *, share: float = 0.25, factor: float = 2.0) -> None:
        self.memory = memory
        self.seen = 0
        self.below = 0
        self._share = share
        self._factor = factor
        self._has_warned = False

    @property
    def share(self) -> float:
        """The share of the queries so far that are below the floor. Traces have about 0.05."""
        return self.below / max(1, self.seen)

    def observe(self, queries: Sequence[Tensor]) -> float:
        """Counts the queries of some tokens, and warns if too many so far are unlike the traces.

        Args:
            queries: Each layer's queries, [tokens, q_heads, d], rotated by their positions, as
                :meth:`lazyrope.transformers.Engine.record` returns them. The position of the document does not matter
                much: the directions are those of queries that follow it.

        Returns:
            The share of these queries below the floor.
        """
        below = seen = 0
        for q, centres, floor in zip(queries, self.memory.typical, self.memory.floor, strict=True):
            for rows, directions, least in zip(_of_heads(q, len(centres)), centres, floor, strict=True):
                below += int((nearest(rows, directions)[0] < least).sum())
                seen += len(rows)
        self.below += below
        self.seen += seen
        if self.share > self._share and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"memory {self.memory.key[:12]}: {self.share:.0%} of {self.seen} queries are unlike the traces that it "
                f"was fitted to (5% are expected, {self._share:.0%} are allowed): fit it to traces like these requests",
                RuntimeWarning,
                stacklevel=2,
            )
        return below / max(1, seen)

    def audit(self, queries: Sequence[Tensor], document: Sequence[tuple[Tensor, Tensor]]) -> Audit:
        """Compares the memory with the document on some queries, and warns if its errors are too great.

        Args:
            queries: Each layer's queries, [tokens, q_heads, d], rotated by their positions where the document's token 0
                is at position 0.
            document: Each layer's keys, rotated by their index, and values, each [tokens, kv_heads, d].
        """
        from .build import errors_of

        outputs: list[float] = []
        lses: list[float] = []
        for layer, (q, (keys, values)) in enumerate(zip(queries, document, strict=True)):
            found = self.memory.states(layer, q)
            output, lse = errors_of(found, q, keys, values, self.memory.scores[layer])
            outputs += output
            lses += lse
        report = self.memory.report
        audit = Audit(sum(outputs) / len(outputs), sum(lses) / len(lses), report.output_error, report.lse_error)
        too_much = audit.lse_error > self._factor * audit.held_out_lse_error
        if too_much or audit.output_error > self._factor * audit.held_out_output_error:
            warnings.warn(
                f"memory {self.memory.key[:12]}: its errors on these queries are {audit.output_error:.3f} (output) and "
                f"{audit.lse_error:.3f} nats (log-sum-exp), and {audit.held_out_output_error:.3f} and "
                f"{audit.held_out_lse_error:.3f} on held-out traces: fit it to traces like these requests",
                RuntimeWarning,
                stacklevel=2,
            )
        return audit
