"""The work of one pass of the model, and its packed form: one int32 array for each pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy

from ..recovery import PAGE, runs_of

Tensor = Any


@dataclass(frozen=True)
class Segment:
    """A run of stored tokens. Its fields are the columns of :class:`lazyrope.Segments`."""

    base: int
    start: int
    length: int
    first_page: int
    lead: int = 0
    memory: int = 0


@dataclass
class Question:
    """The measurement of a job's attention to pages of the documents that it sees, as recovery has them.

    Attributes:
        pages: The pages: for each the index of a segment of the job, whose first token begins a page, and the number of
            the page in that segment.
        first: The index of the first token of the job whose attention counts.
        layers: The first layers of the model whose attention counts, or None for all.
        mass: The mass of each page, summed over tokens, query heads and layers so far: float32 [pages]. None before the
            first pass.
    """

    pages: Sequence[tuple[int, int]]
    first: int
    layers: int | None = None
    mass: Tensor | None = None


@dataclass(frozen=True)
class Group:
    """Segments to which a job attends apart from all other keys (:class:`lazyrope.recovery.SegmentGroup`).

    Attributes:
        segments: The segments. They are not among those of the job.
        temperature: The number by which scores are divided.
        lse_scale: The factor of the log-sum-exp of these scores.
    """

    segments: Sequence[Segment]
    temperature: float
    lse_scale: float


@dataclass
class Job:
    """A run of tokens that the model processes in order, in one pass or in several.

    Attributes:
        tokens: The token ids. The list grows while a text is generated.
        position: The logical position of tokens[0].
        positions: The logical position of each token, in ascending order, if they are not consecutive. None: they
            follow position.
        first_page: The index of the page list that holds their keys and values.
        slot: The slot of tokens[0], counted from the start of that page list.
        before: The number of tokens before tokens[0] in the same page list and at the positions before it. The job
            sees them.
        segments: The other segments that the job sees.
        done: The number of tokens that are processed.
        hidden: The model's last hidden states of each pass, [tokens, hidden size], or None if no one asked for them.
        logits_from: The index of the first token whose logits are kept, or None.
        logits: The kept logits of each pass, float32 [tokens, vocabulary size].
        question: The measurement of the job's attention to pages, or None.
        group: The segments to which the job attends apart, or None.
        queries: For each layer the queries of each pass, [tokens, num_q_heads, head_dim], rotated by their positions.
            None if no one asked for them.
    """

    tokens: list[int]
    position: int
    first_page: int
    slot: int = 0
    before: int = 0
    segments: Sequence[Segment] = ()
    done: int = 0
    hidden: list[Tensor] | None = None
    logits_from: int | None = None
    logits: list[Tensor] = field(default_factory=list)
    positions: Sequence[int] | None = None
    question: Question | None = None
    group: Group | None = None
    queries: list[list[Tensor]] | None = None

    @property
    def left(self) -> int:
        """The number of tokens that are not processed yet."""
        return len(self.tokens) - self.done

    def kept(self, n: int) -> range:
        """Returns which of the next n tokens have logits that are kept, counted from the first of them."""
        return range(n if self.logits_from is None else min(n, max(0, self.logits_from - self.done)), n)

    def measured(self, n: int) -> range:
        """Returns which of the next n tokens have attention that is measured, counted from the first of them."""
        return range(n if self.question is None else min(n, max(0, self.question.first - self.done)), n)

    @property
    def max_pages(self) -> int:
        """At most so many pages have a mass in one pass."""
        return sum(segment.length // PAGE + 2 for segment in self.segments) + len(self.tokens) // PAGE + 2

    def measurable(self, pairs: int) -> int:
        """Returns how many of the next tokens one pass may have if it measures at most so many pairs.

        A pair is a token of the question and a page. Tokens before the question take none.
        """
        before = 0 if self.question is None else max(0, self.question.first - self.done)
        return min(self.left, before + pairs // self.max_pages)

    def next_positions(self, n: int) -> Sequence[int]:
        """Returns the logical positions of the next n tokens."""
        if self.positions is not None:
            return self.positions[self.done : self.done + n]
        return range(self.position + self.done, self.position + self.done + n)


@dataclass
class Move:
    """A copy of stored tokens to other slots. It rotates their keys by the difference of the indices."""

    length: int
    source: tuple[int, int]  # its first_page and lead
    target: tuple[int, int]
    distance: int  # target index minus source index, in tokens


@dataclass
class Work:
    """The work of one pass: the jobs with the number of their next tokens, and the moves that come before."""

    rows: list[tuple[Job, int]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(n for _, n in self.rows)

    @property
    def has_groups(self) -> bool:
        """True if a job attends to a group of segments apart."""
        return any(job.group is not None for job, _ in self.rows)

    @property
    def measures(self) -> bool:
        """True if the pass has tokens of a question whose attention to pages is measured."""
        return any(job.question is not None and len(job.measured(n)) > 0 for job, n in self.rows)

    @property
    def num_layers(self) -> int | None:
        """The first layers of the model that the pass needs, or None for all.

        A job with a question needs the layers that are measured. If other jobs make it run through more, its tokens may
        read keys there that were never written. Their states are not used, and no other job sees them.
        """
        questions = [job.question for job, _ in self.rows]
        layers = [question.layers for question in questions if question is not None and question.layers is not None]
        return max(layers) if layers and len(layers) == len(questions) else None


# The arrays of a pass, in the order in which they are packed.
SEGMENTS = ("indptr", "base", "start", "length", "first_page", "lead", "memory")
SPANS = ("indptr", "start", "first_page", "lead")


@dataclass(frozen=True)
class Masses:
    """The measurement of one pass.

    Attributes:
        questions: The questions that are measured.
        num_pages: The number of pages of all segments of the pass. Each has a mass.
        room: The capacity of a step that has room for the masses: tokens of questions times pages.
    """

    questions: list[Question]
    num_pages: int
    room: int


@dataclass(frozen=True)
class Packed:
    """The metadata of a pass as slices of one array, so that one copy transfers it to the device.

    Attributes:
        data: The array.
        at: The slice of each array in data, by its name.
        max_rows: The most tokens of one job.
        masses: The pages whose attention mass is measured, or None.
    """

    data: numpy.ndarray[Any, numpy.dtype[numpy.int32]]
    at: dict[str, slice]
    max_rows: int
    masses: Masses | None = None

    def views(self, data: Tensor) -> dict[str, Tensor]:
        """Returns the arrays as views of data, a copy of the packed array on a device."""
        return {name: data[where] for name, where in self.at.items()}

    def size(self, name: str) -> int:
        where = self.at[name]
        return int(where.stop - where.start)


def pack(work: Work, page_size: int) -> Packed:
    """Packs the metadata of a pass.

    Its arrays are "ids", "positions", "last" (the last row of each job), "kept" (the rows whose logits are kept),
    "q_indptr", "q_position", "segments.*", "append.*" and, if there are moves, "source.*" and "target.*". In a pass
    that measures attention, the segments have "mass_tokens", and "mass_pages" has the numbers of the pages that each
    question asks for, one question after another. If there are groups of segments, "group.*" are the columns of these
    segments and, for each token, "group.inverse_temperature" and "group.lse_scale": the bits of float32. Both are 1 for
    a token without a group.
    """
    arrays = _rows(work.rows, page_size)
    masses = None
    if work.measures:
        masses = _add_masses(arrays, work.rows)
    if work.has_groups:
        arrays |= _groups(work.rows)
    if work.moves:
        lengths = [m.length for m in work.moves]
        arrays |= _append("source", lengths, [(0, *m.source) for m in work.moves])
        arrays |= _append("target", lengths, [(m.distance, *m.target) for m in work.moves])
    at, end = {}, 0
    for name, values in arrays.items():
        at[name] = slice(end, end + len(values))
        end += len(values)
    data = numpy.concatenate([numpy.asarray(values, dtype=numpy.int32) for values in arrays.values()])
    return Packed(data, at, max((n for _, n in work.rows), default=0), masses)


def _rows(rows: list[tuple[Job, int]], page_size: int) -> dict[str, Sequence[int]]:
    ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    spans = [0]
    for job, n in rows:
        ids += job.tokens[job.done : job.done + n]
        positions += job.next_positions(n)
        segments += [*job.segments, *_own(job, n, page_size)]
        spans.append(len(segments))
    lengths = [n for _, n in rows]
    indptr = _indptr(lengths)
    # The model has rotated the keys, so append() copies them and does not use the positions of a span's later tokens.
    targets = [(job.next_positions(n)[0], job.first_page, job.slot + job.done) for job, n in rows]
    return {
        "ids": ids,
        "positions": positions,
        "last": [end - 1 for end in indptr[1:]],
        "kept": [first + i for first, (job, n) in zip(indptr, rows, strict=False) for i in job.kept(n)],
        "q_indptr": indptr,
        "q_position": positions,
        **_columns("segments", spans, segments),
        **_append("append", lengths, targets),
    }


def _groups(rows: list[tuple[Job, int]]) -> dict[str, Sequence[int]]:
    none = Group((), 1.0, 1.0)
    groups = [(job.group or none, n) for job, n in rows]
    segments = [segment for group, _ in groups for segment in group.segments]
    factors = numpy.asarray([(1 / group.temperature, group.lse_scale) for group, _ in groups], dtype=numpy.float32)
    of_tokens = factors.repeat([n for _, n in groups], axis=0).view(numpy.int32)
    return {
        **_columns("group", _indptr(len(group.segments) for group, _ in groups), segments),
        "group.inverse_temperature": of_tokens[:, 0],
        "group.lse_scale": of_tokens[:, 1],
    }


def _columns(name: str, indptr: Sequence[int], segments: Sequence[Segment]) -> dict[str, Sequence[int]]:
    columns = list(zip(*((s.base, s.start, s.length, s.first_page, s.lead, s.memory) for s in segments), strict=True))
    return {
        f"{name}.{column}": values
        for column, values in zip(SEGMENTS, (indptr, *(columns or [()] * (len(SEGMENTS) - 1))), strict=True)
    }


def _add_masses(arrays: dict[str, Sequence[int]], rows: list[tuple[Job, int]]) -> Masses:
    """Adds the arrays of a pass that measures attention. Pages are numbered over the segments of all jobs."""
    counted = [0 if job.question is None else len(job.measured(n)) for job, n in rows]
    columns = zip(arrays["segments.lead"], arrays["segments.length"], strict=True)
    indptr = _indptr(-(-(lead % PAGE + length) // PAGE) if length else 0 for lead, length in columns)
    questions, pages, room = [], [], 0
    for (job, _), count, (first, end) in zip(rows, counted, pairwise(arrays["segments.indptr"]), strict=True):
        if job.question is not None and count > 0:
            questions.append(job.question)
            pages += [indptr[first + segment] + page for segment, page in job.question.pages]
            room += count * (indptr[end] - indptr[first])
    arrays |= {"segments.mass_tokens": counted, "mass_pages": pages}
    return Masses(questions, indptr[-1], room)


def _own(job: Job, n: int, page_size: int) -> list[Segment]:
    """Returns the segments of the job's own tokens after this pass."""
    first, slot = job.position - job.before, job.slot - job.before
    runs = [range(first, job.position + job.done + n)]
    if job.positions is not None:
        runs = runs_of(job.positions[: job.done + n])
    slots = accumulate(map(len, runs), initial=slot)
    return [private_segment(run, job.first_page, slot, page_size) for run, slot in zip(runs, slots, strict=False)]


def private_segment(positions: range, first_page: int, slot: int, page_size: int) -> Segment:
    """Returns a segment of private tokens. Its base is 0, for these keys are rotated by their logical positions.

    Args:
        positions: The logical positions of the tokens.
        first_page: The index of the page list that holds them.
        slot: The slot of the first token, counted from the start of that page list.
        page_size: The tokens of a page.
    """
    return Segment(0, positions.start, len(positions), first_page + slot // page_size, slot % page_size)


def _append(name: str, lengths: list[int], rows: Sequence[tuple[int, ...]]) -> dict[str, Sequence[int]]:
    columns = (_indptr(lengths), *zip(*rows, strict=True))
    return {f"{name}.{column}": values for column, values in zip(SPANS, columns, strict=True)}


def power_of_two(n: int) -> int:
    """Returns the least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def _indptr(lengths: Iterable[int]) -> list[int]:
    indptr = [0]
    for length in lengths:
        indptr.append(indptr[-1] + length)
    return indptr
