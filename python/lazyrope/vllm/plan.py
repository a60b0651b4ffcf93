"""The segments that the requests of one vLLM pass see: the arrays of a step of lazyrope.

All positions are those of vLLM, which has rotated the queries and the new keys by them. A key that this request did not
write is rotated by another position, so its block has a shift: the position at which this request sees the block, minus
the block's home. Neighbouring blocks of equal shift are one segment, whose base is the shift.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .homes import Homes
from .layout import PromptLayout

Ints = Any  # a NumPy array, int32


class Run(NamedTuple):
    """Tokens in consecutive slots of a request's blocks that have one shift.

    Attributes:
        slot: The slot of the first token, counted from slot 0 of the request's first block.
        base: The shift: the position at which the request sees the first token, minus ``start``.
        start: The position by which the first key is rotated.
        length: The number of tokens.
    """

    slot: int
    base: int
    start: int
    length: int

    def is_continued_by(self, other: Run) -> bool:
        """Returns True if the other run has the same shift and is in the slots after this one."""
        return (self.base, self.start + self.length, self.slot + self.length) == (other.base, other.start, other.slot)


class RequestView:
    """A view gives the segments that the rows of one request see.

    A view is made when vLLM admits the request, and again when it resumes it after a preemption: between these moments
    the homes of its blocks do not change.
    """

    def __init__(self, layout: PromptLayout, cached_homes: Homes) -> None:
        """
        Args:
            layout: The documents of the request.
            cached_homes: The homes of the blocks that the request found in the cache, its first ones, int32 [blocks].
                The request writes all later blocks itself.
        """
        self.layout = layout
        self._cached = cached_homes
        self._own = max(layout.question, len(cached_homes) * layout.block_size)
        # The segments that the question sees. Between passes, only the length of the last one grows. Most requests of a
        # pass need them, so they are kept.
        self._seen: Ints | None = None
        self._seen_without_own = 0  # the length of the last one without the request's own tokens

    def pieces(self, first: int, count: int) -> Iterator[tuple[int, int, Ints]]:
        """Divides query rows where one document ends and the next one, or the question, begins.

        Args:
            first: The position of the first row.
            count: The number of rows.

        Yields:
            The first row's position, the position after the last row, and the segments that these rows see, as in
            :meth:`_segments`. A row sees a token of them if the token's position is not after its own.
        """
        end = first + count
        bounds = (*self.layout.starts, self.layout.question) if first < self.layout.question else ()
        for begin, stop in pairwise(bounds):
            low, high = max(first, begin), min(end, stop)
            if low < high:
                yield low, high, self._segments(merged(self._runs(begin, high - begin, begin)))
        low = max(first, self.layout.question)
        if low < end:
            yield low, end, self._seen_by_question(end)

    def _seen_by_question(self, end: int) -> Ints:
        """Returns the segments of the question's rows before a position. The last one has the request's own tokens."""
        if self._seen is None:
            self._seen = self._segments(appended(merged(self._found()), Run(self._own, 0, self._own, 0)))
            self._seen_without_own = int(self._seen[-1, 2])
        self._seen[-1, 2] = self._seen_without_own + end - self._own
        return self._seen.copy()

    def _segments(self, runs: Sequence[Run]) -> Ints:
        """Returns base, start, length and the column of the block table of each run, int32 [runs, 4]."""
        size = self.layout.block_size
        rows = [(run.base, run.start, run.length, run.slot // size) for run in runs]
        return np.array(rows, dtype=np.int32).reshape(-1, 4)

    def _found(self) -> Iterator[Run]:
        """Yields the runs of the documents, and of the question's tokens that were found in the cache."""
        layout = self.layout
        for begin, length, seen in zip(layout.starts, layout.lengths, layout.seen_from, strict=True):
            yield from self._runs(begin, length, seen)
        yield from self._runs(layout.question, self._own - layout.question, layout.question)

    def _runs(self, begin: int, length: int, seen: int) -> Iterator[Run]:
        """Yields the runs of tokens that begin at a block, and that the request sees from position `seen` on."""
        size = self.layout.block_size
        first, count = begin // size, -(-length // size)
        home = self._homes(first, count)
        shift = seen + np.arange(count, dtype=np.int32) * size - home
        heads = [0, *(np.flatnonzero(np.diff(shift)) + 1).tolist(), count] if count else []
        for head, after in pairwise(heads):
            tokens = min(after * size, length) - head * size
            yield Run((first + head) * size, int(shift[head]), int(home[head]), tokens)

    def _homes(self, first: int, count: int) -> Homes:
        """Returns the homes of the request's blocks first to first + count - 1."""
        found = self._cached[first : first + count]
        written: Any = np.arange(first + len(found), first + count, dtype=np.int32) * self.layout.block_size
        return np.concatenate([found, written])


def merged(runs: Iterable[Run]) -> list[Run]:
    """Joins neighbouring runs of equal shift whose tokens are in consecutive slots."""
    result: list[Run] = []
    for run in runs:
        result[-1:] = appended(result[-1:], run)
    return result


def appended(runs: list[Run], last: Run) -> list[Run]:
    """Returns the runs and one more, which is joined to the last of them if it continues it."""
    if not runs or not runs[-1].is_continued_by(last):
        return [*runs, last]
    joined = runs[-1]._replace(length=runs[-1].length + last.length)
    return [*runs[:-1], joined]


@dataclass(frozen=True)
class Rows:
    """The query rows of one request in a pass.

    Attributes:
        view: What the request sees. None: a request of a graph capture, which sees nothing.
        first: The position of the first row.
        count: The number of rows.
    """

    view: RequestView | None
    first: int
    count: int


@dataclass(frozen=True)
class Plan:
    """The arrays of a step of lazyrope, int32: ``q_indptr``, and :class:`lazyrope.Segments` without ``lead``.

    A request of vLLM is several requests of the step if its rows see different things.

    Attributes:
        q_indptr: [requests + 1].
        indptr: [requests + 1].
        base: [segments].
        start: [segments].
        length: [segments].
        first_page: [segments]. It counts in the block table of all requests, row after row.
        shifted: The number of segments that are read at other positions than those at which they were written.
    """

    q_indptr: Ints
    indptr: Ints
    base: Ints
    start: Ints
    length: Ints
    first_page: Ints

    @property
    def shifted(self) -> int:
        return int(np.count_nonzero(self.base))


def plan(rows: Sequence[Rows], table_width: int) -> Plan:
    """Makes the arrays of a pass.

    Args:
        rows: The rows of each request, in the order of the queries and of the block table.
        table_width: The columns of the block table.
    """
    tables: list[Ints] = []  # the segments of each request of the step
    counts: list[int] = []  # its rows
    for table_row, each in enumerate(rows):
        if each.view is None:
            tables.append(np.zeros((0, 4), np.int32))
            counts.append(each.count)
            continue
        for low, high, segments in each.view.pieces(each.first, each.count):
            segments[:, 3] += table_row * table_width
            tables.append(segments)
            counts.append(high - low)
    columns = np.concatenate([np.zeros((0, 4), np.int32), *tables]).T
    base, start, length, first_page = (np.ascontiguousarray(column) for column in columns)
    return Plan(_indptr(counts), _indptr([len(table) for table in tables]), base, start, length, first_page)


def _indptr(counts: Sequence[int]) -> Ints:
    return np.cumsum([0, *counts], dtype=np.int32)
