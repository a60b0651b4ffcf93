"""Measures the attention mass of pages: how much the tokens of a question attend to each page of their documents.

    mass = PageMass(kernel)
    pages = pages_of(lazyrope.Segment(document, base=0))
    question = QuestionPages(kernel.spec, positions, pages, store.pages)  # once for each pass
    _, lse = kernel(q, k_pool, v_pool, step)  # each layer's own attention
    total += mass(question, q, k_pool, v_pool, lse)

The mass of a page is the sum of its attention weights over the question's tokens and the query heads. It decides which
pages :mod:`lazyrope.recovery` computes again at level "guided".

The kernels give no masses themselves. The attention is called once more, with each page as a request: its log-sum-exp
over the page alone, minus that of the whole row, is the logarithm of the page's weight. So the measurement reads each
page's keys and also its values, gathers the queries once for each page, and writes outputs that no one reads. It is
meant for short questions: its work grows with the question's tokens times the pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from ._arguments import StepCapacity
from ._batch import Request, Segment
from ._core import AttentionSpec, Batch, batch
from .errors import SpecError
from .recovery import PAGE

__all__ = ["PageMass", "QuestionPages", "pages_of"]

Tensor = Any
MAX_BYTES = 256 << 20


def pages_of(segment: Segment, size: int = PAGE) -> list[Segment]:
    """Returns the pages of a segment as segments.

    Pages count from the beginning of the segment's document, so the first and the last one may be shorter.

    Args:
        segment: The tokens of a document that the question sees.
        size: The tokens of a page. It is independent of the pool's page size.
    """
    end = segment.document.num_tokens if segment.length is None else segment.start + segment.length
    bounds = [segment.start, *range(segment.start - segment.start % size + size, end, size), end]
    return [
        Segment(segment.document, segment.base, begin, stop - begin, segment.mask_base)
        for begin, stop in pairwise(bounds)
        if begin < stop
    ]


@dataclass(frozen=True)
class _Chunk:
    """Some rows of the question with some pages, which one call measures."""

    rows: slice
    pages: slice
    requests: Batch


class QuestionPages:
    """A question and the pages whose mass is measured, as the requests of one call or of several.

    It is made once for each pass of the model. All attentions with the same sizes of heads may use it.

    Args:
        spec: The spec of the attention.
        positions: The logical positions of the question's tokens, at least one.
        segments: The runs of tokens whose mass is measured, such as those of :func:`pages_of`.
        pages: Page lists, int32 on the pool's device, as of :func:`lazyrope.batch`.
        max_bytes: The most bytes of a call's queries and results. They are counted in float32, so that 16-bit models
            need about half. A question with more pages takes several calls. At least one row of one page is measured
            at a time.

    Raises:
        SpecError: There are no positions, or an argument is illegal, as in :meth:`lazyrope.Batch.fill`.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        positions: Sequence[int],
        segments: Sequence[Segment],
        pages: Tensor,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if not positions:
            raise SpecError("positions are empty; the mass is that of at least one query token")
        self.shape = (len(positions), spec.num_q_heads)
        self.num_segments = len(segments)
        chunks = _chunks(positions, segments, _max_rows(spec, max_bytes))
        self.chunks = [_Chunk(rows, which, batch(requests, pages)) for rows, which, requests in chunks]


class PageMass:
    """Measures the attention mass of pages with one attention.

    It keeps a step for its calls, which grows to the largest of them. So make one for each attention, and not for each
    pass. It serves one thread and one stream at a time.

    Args:
        attention: A :class:`lazyrope.Attention` or a :class:`lazyrope.eager.EagerAttention`.
        page_size: The slots of a page of the pool.
        layout: The layout of the pool, "NHD" or "HND".
    """

    def __init__(self, attention: Any, *, page_size: int = 16, layout: str = "NHD") -> None:
        self._attention = attention
        self._pool = {"page_size": page_size, "layout": layout}
        self._step: Any = None
        self._capacity = StepCapacity(1, 1, 1, 1)
        self._planned: Batch | None = None

    def __call__(
        self,
        question: QuestionPages,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        lse: Tensor,
        *,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
    ) -> Tensor:
        """Returns the mass of each segment of a question in one layer, float32 [segments].

        A segment that no token of the question sees, for example because of a window, has mass 0.

        Args:
            question: The question and its segments.
            q: The question's queries, [tokens, num_q_heads, head_dim], as for the attention.
            k_pool: The layer's keys, as for the attention.
            v_pool: The layer's values.
            lse: The log-sum-exp of the question's rows over everything that they see, float32 [tokens, num_q_heads].
                It includes sinks, as the attention returns it, so that the weights are those of the model.
            k_scale: As for the attention.
            v_scale: As for the attention.

        Raises:
            SpecError: q or lse has another shape.
        """
        for name, given in (("q", tuple(q.shape[:2])), ("lse", tuple(lse.shape))):
            if given != question.shape:
                raise SpecError(f"{name} has {list(given)} tokens and heads; the question has {list(question.shape)}")
        mass = torch.zeros(question.num_segments, dtype=torch.float32, device=q.device)
        options = {"k_scale": k_scale, "v_scale": v_scale, "sinks": self._no_sinks(q)}
        for chunk in question.chunks:
            self._plan(chunk.requests)
            count = chunk.pages.stop - chunk.pages.start
            rows, whole = q[chunk.rows].repeat(count, 1, 1), lse[chunk.rows]
            _, part = self._attention(rows, k_pool, v_pool, self._step, **options)
            mass[chunk.pages] += _weights(part.view(count, *whole.shape), whole).sum((1, 2))
        return mass

    def _plan(self, requests: Batch) -> None:
        """Updates the step, unless the last call had the same requests. A step that is too small is replaced."""
        if requests is self._planned:
            return
        self._planned = None  # an error may leave the step without a plan
        needed = requests.capacity
        grown = StepCapacity(*(max(pair) for pair in zip(_numbers(self._capacity), _numbers(needed), strict=True)))
        if self._step is None or grown != self._capacity:
            self._step = self._attention.plan(requests, capacity=grown, **self._pool)
            self._capacity = grown
        else:
            self._step.update(requests)
        self._planned = requests

    def _no_sinks(self, q: Tensor) -> Tensor | None:
        """Returns sinks that add nothing to a sum: a sink's weight is no part of a page's mass."""
        if not self._attention.spec.sinks:
            return None
        return torch.full((q.shape[1],), -torch.inf, dtype=torch.float32, device=q.device)


def _numbers(capacity: StepCapacity) -> tuple[int, int, int, int]:
    per_request = capacity.query_tokens if capacity.tokens_per_request is None else capacity.tokens_per_request
    return capacity.requests, capacity.segments, capacity.query_tokens, per_request


def _max_rows(spec: AttentionSpec, max_bytes: int) -> int:
    """Returns the rows of all requests of one call: each has a query, an output, a log-sum-exp and a weight."""
    row: int = 4 * spec.num_q_heads * (2 * spec.head_dim + 2)  # bytes
    return max(1, max_bytes // row)


def _chunks(
    positions: Sequence[int], segments: Sequence[Segment], max_rows: int
) -> list[tuple[slice, slice, list[Request]]]:
    """Divides rows and segments among calls of at most max_rows rows in all requests together."""
    at_once = min(len(positions), max_rows)
    count = max(1, max_rows // at_once)
    return [
        (
            slice(row, row + len(own)),
            slice(first, first + len(some)),
            [Request(own, [segment]) for segment in some],
        )
        for row in range(0, len(positions), at_once)
        for own in [list(positions[row : row + at_once])]
        for first in range(0, len(segments), count)
        for some in [segments[first : first + count]]
    ]


def _weights(part: Tensor, whole: Tensor) -> Tensor:
    """Returns exp(part - whole): 0 where nothing is seen, even if both are -inf."""
    return torch.where(part == -torch.inf, 0.0, torch.exp(part - whole))
