"""The segments that the requests of one vLLM pass see: the arrays of a step of lazyrope.

All positions are those of vLLM, which has rotated the queries and the new keys by them. A key that this request did not
write is rotated by another position, so its block has a shift: the position at which this request sees the block, minus
the block's home. Neighbouring blocks of equal shift are one segment, whose base is the shift.

Overlays are in the request's tail, and vLLM rotates their queries and keys by positions of the tail. The rows of an
overlay see what the question sees before the overlay. As their own positions are shifted, so are the bases of all
segments that they see.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from .homes import Homes
from .layout import PromptLayout

Ints = Any  # a NumPy array, int32
COLUMNS = 5
BASE, START, LENGTH, LEAD, TABLE_COLUMN = range(COLUMNS)  # the columns of a segment in RequestView
NO_SEGMENTS: Ints = np.zeros((0, COLUMNS), np.int32)
NO_PIECE = (NO_SEGMENTS, 0, 0, 0, 0)


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
            layout: The documents of the request. The question begins at ``question``.
            cached_homes: The homes of the blocks that the request found in the cache, its first ones, int32 [blocks].
                The request writes all later blocks itself.
        """
        self.layout = layout
        self._cached = cached_homes
        self._own = max(layout.question, len(cached_homes) * layout.block_size)
        self.question = layout.question

    def pieces(self, first: int, count: int) -> Iterator[tuple[int, int, Ints]]:
        """Divides query rows where one document or overlay ends, and the next one, or the question, begins.

        Args:
            first: The position of the first row.
            count: The number of rows.

        Yields:
            The first row's position, the position after the last row, and the segments that these rows see, as in
            :meth:`_segments`. A row sees a token of them if the token's position is not after its own.
        """
        layout, end = self.layout, first + count
        if first < layout.tail:
            for i, (begin, stop) in enumerate(pairwise((*layout.starts, layout.tail))):
                low, high = max(first, begin), min(end, stop)
                if low < high:
                    yield low, high, self._segments(merged(self._seen_by_document(i, high)))
        if first < self.question:
            for begin, stop, shift in self._overlays():
                low, high = max(first, begin), min(end, stop)
                if low < high:
                    segments = self._seen_before(high - shift)
                    segments[:, BASE] += shift
                    yield low, high, segments
        low = max(first, self.question)
        if low < end:
            yield low, end, self._seen_before(end)

    def _seen_by_document(self, i: int, end: int) -> Iterator[Run]:
        """Yields the runs that the rows of a document before a position see: the prefix, and the document."""
        begin = self.layout.starts[i]
        if self.layout.has_prefix and i > 0:
            length = self.layout.lengths[0]
            yield from self._runs(0, length, begin - length)
        yield from self._runs(begin, end - begin, begin)

    def _overlays(self) -> Iterator[tuple[int, int, int]]:
        """Yields the position of the first row and the one after the last row of overlays, and their shift.

        The shift is the position of a row minus the position at which the question sees it. An overlay that is its
        whole document has the shift of the next overlay, and both are one piece.
        """
        layout = self.layout
        overlays = zip(layout.overlay_starts, layout.overlays, layout.seen_from, strict=True)
        found = [(begin, begin + count, begin - seen) for begin, count, seen in overlays if count > 0]
        for shift, group in groupby(found, key=itemgetter(2)):
            pieces = list(group)
            yield pieces[0][0], pieces[-1][1], shift

    def _seen_before(self, end: int) -> Ints:
        """Returns the segments that a row of the question would see if it were just before this position."""
        segments, begins = self._seen
        count = bisect_left(begins, end)
        seen = segments[:count].copy()
        seen[-1, LENGTH] = end - begins[count - 1]  # the last segment may be longer, and the own tokens' has no end
        return seen

    @cached_property
    def _seen(self) -> tuple[Ints, list[int]]:
        """The segments that the question sees, by position, and the position at which it sees each begin."""
        segments = self._segments(appended(merged(self._found()), Run(self._own, 0, self._own, 0)))
        return segments, (segments[:, BASE] + segments[:, START]).tolist()

    @cached_property
    def seen_by_question(self) -> tuple[Ints, int]:
        """The segments that the question sees, and the position at which it sees the last one begin.

        The last one has the request's own tokens. Its length grows from pass to pass, and is not set.
        """
        segments, begins = self._seen
        return segments, begins[-1]

    def _segments(self, runs: Sequence[Run]) -> Ints:
        """Returns base, start, length, lead and the column of the block table of each run, int32 [runs, 5]."""
        size = self.layout.block_size
        rows = [(run.base, run.start, run.length, run.slot % size, run.slot // size) for run in runs]
        return np.array(rows, dtype=np.int32).reshape(-1, COLUMNS)

    def _found(self) -> Iterator[Run]:
        """Yields the runs of the documents with their overlays, and of the question's tokens found in the cache."""
        layout = self.layout
        for begin, length, overlay_begin, overlay, seen in zip(
            layout.starts, layout.lengths, layout.overlay_starts, layout.overlays, layout.seen_from, strict=True
        ):
            yield from self._runs(overlay_begin, overlay, seen)
            yield from self._runs(begin + overlay, length - overlay, seen + overlay)
        yield from self._runs(layout.question, self._own - layout.question, layout.question)

    def _runs(self, begin: int, length: int, seen: int) -> Iterator[Run]:
        """Yields the runs of tokens that are in the slots from `begin` on, and seen from position `seen` on."""
        if length == 0:
            return
        size, end = self.layout.block_size, begin + length
        first, after_last = begin // size, -(-end // size)
        home = self._homes(first, after_last - first)
        shift = seen - begin + np.arange(first, after_last, dtype=np.int32) * size - home
        heads = [0, *(np.flatnonzero(np.diff(shift)) + 1).tolist(), after_last - first]
        for head, after in pairwise(heads):
            block = (first + head) * size
            slot = max(begin, block)
            yield Run(slot, int(shift[head]), int(home[head]) + slot - block, min((first + after) * size, end) - slot)

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


class Rows(NamedTuple):
    """The query rows of one request in a pass.

    Attributes:
        view: What the request sees. None: a request of a graph capture, which sees nothing.
        first: The position of the first row.
        num_rows: The number of rows.
    """

    view: RequestView | None
    first: int
    num_rows: int


@dataclass(frozen=True)
class Plan:
    """The arrays of a step of lazyrope, int32: those of its rows, and those of :class:`lazyrope.Segments`.

    A request of vLLM is several requests of the step if its rows see different things.

    Attributes:
        q_indptr: [requests + 1].
        position: [rows].
        indptr: [requests + 1].
        base: [segments].
        start: [segments].
        length: [segments].
        first_page: [segments]. It counts in the block table of all requests, row after row.
        lead: [segments].
        is_of_questions: True if all rows are behind the documents: then their segments but the last ones stay.
        shifted: The number of segments that are read at other positions than those at which they were written.
    """

    q_indptr: Ints
    position: Ints
    indptr: Ints
    base: Ints
    start: Ints
    length: Ints
    first_page: Ints
    lead: Ints
    is_of_questions: bool

    @property
    def shifted(self) -> int:
        return int(np.count_nonzero(self.base))


def plan(rows: Sequence[Rows], table_width: int) -> Plan:
    """Makes the arrays of a pass.

    Args:
        rows: The rows of each request, in the order of the queries and of the block table.
        table_width: The columns of the block table.
    """
    pieces = [NO_PIECE, *_pieces(rows, table_width)]
    tables, *numbers = zip(*pieces, strict=True)
    first, num_rows, lengths, first_pages = np.array(numbers, dtype=np.int32)[:, 1:]
    sizes = np.array([len(table) for table in tables[1:]], dtype=np.int32)
    q_indptr, indptr = _indptr(num_rows), _indptr(sizes)
    base, start, length, lead, first_page = np.ascontiguousarray(np.concatenate(tables).T)
    first_page += np.repeat(first_pages, sizes)
    has_segments = sizes > 0
    length[indptr[1:][has_segments] - 1] = lengths[has_segments]
    position: Ints = np.repeat(first - q_indptr[:-1], num_rows) + np.arange(q_indptr[-1], dtype=np.int32)
    is_of_questions = all(view is None or begin >= view.question for view, begin, _ in rows)
    return Plan(q_indptr, position, indptr, base, start, length, first_page, lead, is_of_questions)


def plan_again(made: Plan, before: Sequence[Rows], rows: Sequence[Rows]) -> Plan | None:
    """Makes the arrays of a pass from those of an earlier pass with the same requests, as decoding has many.

    Args:
        made: The arrays of the earlier pass. The block table has as many columns as then.
        before: Its rows.
        rows: The rows of the pass.

    Returns:
        The arrays, or None if more has changed than the positions of the rows in their questions.
    """
    if not made.is_of_questions or len(before) != len(rows) or not rows:
        return None
    (old_views, old_first, old_counts), (views, first, counts) = zip(*before, strict=True), zip(*rows, strict=True)
    if views != old_views or counts != old_counts:
        return None
    moved: Ints = np.array(first, dtype=np.int32) - np.array(old_first, dtype=np.int32)
    has_segments = np.diff(made.indptr) > 0
    length = made.length.copy()
    length[made.indptr[1:][has_segments] - 1] += moved[has_segments]
    return replace(made, position=made.position + np.repeat(moved, counts), length=length)


def _pieces(rows: Sequence[Rows], table_width: int) -> Iterator[tuple[Ints, int, int, int, int]]:
    """Yields what a request of the step sees, for each request of vLLM one or several.

    Yields:
        Its segments, the position of its first row, the number of its rows, the length of its last segment, and the
        first entry of its block table.
    """
    for table_row, (view, first, num_rows) in enumerate(rows):
        entry = table_row * table_width
        if view is None:
            yield NO_SEGMENTS, first, num_rows, 0, entry
        elif first >= view.question:  # most requests of most passes: their segments are not copied one by one
            segments, last_begin = view.seen_by_question
            yield segments, first, num_rows, first + num_rows - last_begin, entry
        else:
            for low, high, segments in view.pieces(first, num_rows):
                yield segments, low, high - low, int(segments[-1, LENGTH]), entry


def _indptr(counts: Any) -> Ints:
    result: Ints = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=result[1:])
    return result
