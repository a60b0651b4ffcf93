"""What one pass of the model is asked to do, and its packed form: one array of int32 a pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

Tensor = Any


@dataclass(frozen=True)
class Segment:
    """A run of stored tokens as :meth:`lazyrope.Attention.plan` takes it."""

    base: int
    start: int
    length: int
    first_page: int
    lead: int = 0


@dataclass
class Job:
    """Tokens that pass through the model in their order, all at once or some in each pass.

    Attributes:
        tokens: their ids; grows while a text is generated.
        position: logical position of tokens[0].
        first_page: of the page list that holds their keys and values.
        slot: of tokens[0] in that list.
        before: tokens that lie before tokens[0] in the same list, at the positions before it, and are seen.
        segments: what else they see.
        done: tokens that have passed.
        hidden: the model's last hidden states of each pass [tokens, hidden size], where they are asked for.
    """

    tokens: list[int]
    position: int
    first_page: int
    slot: int = 0
    before: int = 0
    segments: Sequence[Segment] = ()
    done: int = 0
    hidden: list[Tensor] | None = None

    @property
    def left(self) -> int:
        return len(self.tokens) - self.done


@dataclass
class Move:
    """Stored tokens that are copied to other slots, their keys rotated by the difference of the indices."""

    length: int
    source: tuple[int, int]  # first_page, lead
    target: tuple[int, int]
    distance: int  # tokens


@dataclass
class Work:
    """The next n tokens of each of some jobs, and what has to be moved before they look at it."""

    rows: list[tuple[Job, int]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(n for _, n in self.rows)


# The arrays of a pass, in the order in which they are packed.
SEGMENTS = ("indptr", "base", "start", "length", "first_page", "lead")
SPANS = ("indptr", "start", "first_page", "lead")


@dataclass(frozen=True)
class Packed:
    """A pass as slices of one array, so that one copy brings all of it to the device."""

    data: numpy.ndarray[Any, numpy.dtype[numpy.int32]]
    at: dict[str, slice]
    max_rows: int  # of one job

    def views(self, data: Tensor) -> dict[str, Tensor]:
        """Of the same array on a device."""
        return {name: data[where] for name, where in self.at.items()}

    def size(self, name: str) -> int:
        where = self.at[name]
        return int(where.stop - where.start)


def pack(work: Work, page_size: int) -> Packed:
    """Arrays "ids", "positions", "last" (the last row of each job), "q_indptr", "q_position", "segments.*",
    "append.*", and, if there are moves, "source.*" and "target.*"."""
    arrays = _rows(work.rows, page_size)
    if work.moves:
        lengths = [m.length for m in work.moves]
        arrays |= _append("source", lengths, [(0, *m.source) for m in work.moves])
        arrays |= _append("target", lengths, [(m.distance, *m.target) for m in work.moves])
    at, end = {}, 0
    for name, values in arrays.items():
        at[name] = slice(end, end + len(values))
        end += len(values)
    data = numpy.concatenate([numpy.asarray(values, dtype=numpy.int32) for values in arrays.values()])
    return Packed(data, at, max((n for _, n in work.rows), default=0))


def _rows(rows: list[tuple[Job, int]], page_size: int) -> dict[str, Sequence[int]]:
    ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    spans = [0]
    for job, n in rows:
        ids += job.tokens[job.done : job.done + n]
        first = job.position + job.done
        positions += range(first, first + n)
        segments += [*job.segments, _own(job, n, page_size)]
        spans.append(len(segments))
    columns = zip(*((s.base, s.start, s.length, s.first_page, s.lead) for s in segments), strict=True)
    lengths = [n for _, n in rows]
    indptr = _indptr(lengths)
    targets = [(job.position + job.done, job.first_page, job.slot + job.done) for job, _ in rows]
    return {
        "ids": ids,
        "positions": positions,
        "last": [end - 1 for end in indptr[1:]],
        "q_indptr": indptr,
        "q_position": positions,
        **{f"segments.{name}": values for name, values in zip(SEGMENTS, (spans, *columns), strict=True)},
        **_append("append", lengths, targets),
    }


def _own(job: Job, n: int, page_size: int) -> Segment:
    """The job's own tokens after this pass. They were stored as their positions rotated them: base 0."""
    slot = job.slot - job.before
    length = job.before + job.done + n
    return Segment(0, job.position - job.before, length, job.first_page + slot // page_size, slot % page_size)


def _append(name: str, lengths: list[int], rows: Sequence[tuple[int, ...]]) -> dict[str, Sequence[int]]:
    columns = (_indptr(lengths), *zip(*rows, strict=True))
    return {f"{name}.{column}": values for column, values in zip(SPANS, columns, strict=True)}


def _indptr(lengths: Iterable[int]) -> list[int]:
    indptr = [0]
    for length in lengths:
        indptr.append(indptr[-1] + length)
    return indptr
