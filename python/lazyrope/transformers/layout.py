"""The layout of a request's tokens in the store, and the jobs and moves that produce it: one function for each mode."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Any

from .._batch import Segment as MemorySegment
from .._precomputed import STATES, Precomputed
from ..documents import Document, PageRun
from ..errors import SpecError
from ..recovery import PAGE, Composition, Part, PartSegment, PrivateSegment, Recovery, recompute
from .work import Group, Job, Move, Question, Segment, private_segment


@dataclass
class Layout:
    """The work of one request.

    Attributes:
        own: The job of the prompt and of the tokens that are generated after it.
        fills: The jobs that must be complete before the prompt runs. A job sees the tokens of earlier jobs alone.
        documents: For each document, the job among the fills that computes it, or None.
        overlays: For each document, the job among the fills that computes its first tokens again, or None.
        recomputed: For each document, the indices of the tokens that are computed again and that the prompt sees.
        moves: The copies that are made before the prompt runs.
        guide: Level "guided" before its tokens are chosen: the choice, which adds a job to the fills. Otherwise None.
        again: The job of the tokens that level "guided" chose, or None.
    """

    own: Job
    fills: list[Job]
    documents: list[Job | None]
    overlays: list[Job | None]
    recomputed: list[Sequence[int]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    guide: Guide | None = None
    again: Job | None = None


@dataclass(frozen=True)
class RequestParts:
    """The tokens, documents and pages of one request.

    Attributes:
        prompt: The token ids of the prompt.
        prefix: The token ids that documents and prompt see before them.
        texts: The token ids of each document, or a memory. Only mode "lazy" has memories, and it does not look here.
        composition: The parts of the request that are stored, and their segments.
        stored: The stored document of each part, if the mode shares them.
        fills: For each stored document, the job that computes it, or None.
        run: The request's own pages.
        page_size: The tokens of a page.
        question: The tokens of the prompt whose attention guides recovery.
        select_layers: The first layers whose attention guides recovery, or None for all.
    """

    prompt: list[int]
    prefix: list[int]
    texts: list[Any]
    composition: Composition
    stored: Sequence[Document]
    fills: list[Job | None]
    run: PageRun
    page_size: int
    question: range
    select_layers: int | None = None

    @property
    def bases(self) -> list[int]:
        """The logical position of each document's first token."""
        return list(accumulate(map(len, self.texts), initial=len(self.prefix)))[:-1]

    @property
    def position(self) -> int:
        """The logical position of the prompt's first token."""
        return self.composition.position

    def job_of(self, part: int | None) -> Job | None:
        """Returns the job that computes a part of the composition, or None."""
        return None if part is None else self.fills[part]


@dataclass(frozen=True)
class Mode:
    """One way of reading documents.

    Attributes:
        shares: True if documents are in the store. False if each request computes them into its own pages.
        copies: True if the request reads documents in its own pages. Stored documents are released after the copy.
        recovers: True if the mode serves every level of recovery. False: level "none" alone.
        layout: The function that makes the layout of a request.
    """

    shares: bool
    copies: bool
    recovers: bool
    layout: Callable[[RequestParts], Layout]


def fill_of(part: Part, document: Document, stored: Sequence[Document], page_size: int) -> Job:
    """Returns the job that computes a part at positions from 0.

    Args:
        part: A part of a composition.
        document: The stored document of the part.
        stored: The stored documents of the composition's parts.
        page_size: The tokens of a page.
    """
    return Job(list(part.tokens), 0, document.first_page, segments=_segments(part.segments, stored, page_size))


def _segments(segments: Sequence[PartSegment], stored: Sequence[Document], page_size: int) -> list[Segment]:
    return [
        Segment(
            segment.base,
            segment.start,
            segment.length,
            stored[segment.part].first_page + segment.start // page_size,
            segment.start % page_size,
        )
        for segment in segments
    ]


def _seen(parts: RequestParts) -> list[Segment]:
    """Returns the segments of documents and of memories that the prompt sees, with their pages."""
    found: list[Segment] = []
    numbers = count(1)
    for segment in parts.composition.rest:
        tokens, document = parts.composition.parts[segment.part].tokens, parts.stored[segment.part]
        if isinstance(tokens, Precomputed):
            number = next(numbers) if tokens.kind == STATES else 0
            found += map(_of_memory, tokens.segments(document, segment.base, parts.page_size, number))
        else:
            found += _segments([segment], parts.stored, parts.page_size)
    return found


def _of_memory(segment: MemorySegment) -> Segment:
    document = segment.document
    return Segment(segment.base, 0, document.num_tokens, document.first_page, document.lead, segment.memory)


def _lazy(parts: RequestParts) -> Layout:
    segments = _seen(parts)
    own = Job(list(parts.prompt), parts.position, parts.run.first_page, segments=segments, group=_group(parts))
    layout = _layout_of(parts, own)
    choice = parts.composition.choice
    if choice is not None and choice.needs_scores:
        layout.guide = Guide(parts, layout)
    elif choice is not None:
        _compute_again(parts, layout, choice.tokens([0.0] * len(choice.pages)))
    return layout


def _group(parts: RequestParts) -> Group | None:
    """Returns the segments to which the prompt attends apart, with their pages."""
    group = parts.composition.group
    if group is None:
        return None
    segments = _segments(group.segments, parts.stored, parts.page_size)
    return Group(segments, group.temperature, group.lse_scale)


class Guide:
    """Chooses the tokens that level "guided" computes again, by the attention of the question.

    Attributes:
        job: The job of the prompt up to the end of its question, over the documents as they are stored. It stores its
            keys where the chosen tokens and the prompt will be stored after it.
    """

    def __init__(self, parts: RequestParts, layout: Layout) -> None:
        self._parts = parts
        self._layout = layout
        tokens = parts.prompt[: parts.question.stop]
        question = Question(_pages(parts), parts.question.start, parts.select_layers)
        own = layout.own
        self.job = Job(tokens, own.position, own.first_page, segments=own.segments, question=question)

    def choose(self) -> None:
        """Adds the job of the chosen tokens to the layout. The guide's job must be complete."""
        choice, question = self._parts.composition.choice, self.job.question
        assert choice is not None and question is not None and question.mass is not None
        _compute_again(self._parts, self._layout, choice.tokens(question.mass.tolist()))
        self._layout.guide = None


def _pages(parts: RequestParts) -> list[tuple[int, int]]:
    """Returns the pages that the request's choice chooses from, as a question has them.

    The prompt sees each document as one segment, from its first token on.
    """
    composition = parts.composition
    assert composition.choice is not None
    segment_of: dict[int | None, int] = {segment.part: i for i, segment in enumerate(composition.segments)}
    firsts = [base - len(parts.prefix) for base in parts.bases]  # pages count the tokens of all documents
    found = []
    for page in composition.choice.pages:
        document = bisect_right(firsts, page.start) - 1
        found.append((segment_of[composition.documents[document]], (page.start - firsts[document]) // PAGE))
    return found


def _compute_again(parts: RequestParts, layout: Layout, chosen: Sequence[int]) -> None:
    """Adds a job that computes the chosen tokens of a request again, and makes the prompt see them."""
    again = recompute(parts.composition, chosen)
    layout.recomputed = [*again.indices]
    if not chosen:
        return
    stored = [segment for segment in again.segments if isinstance(segment, PartSegment)]
    segments = _segments(stored, parts.stored, parts.page_size)
    layout.again = Job(
        again.tokens,
        again.positions[0],
        parts.run.first_page,
        segments=[segment for segment in segments if segment.base + segment.start < again.positions[-1]],
        positions=again.positions,
        hidden=None if layout.own.hidden is None else [],
    )
    layout.fills.append(layout.again)
    layout.own.slot = len(chosen)
    layout.own.segments = [_placed(segment, parts) for segment in again.segments]


def _placed(segment: PartSegment | PrivateSegment, parts: RequestParts) -> Segment:
    """Returns a segment of the prompt with its pages."""
    if isinstance(segment, PartSegment):
        return _segments([segment], parts.stored, parts.page_size)[0]
    positions = range(segment.position, segment.position + segment.length)
    return private_segment(positions, parts.run.first_page, segment.slot, parts.page_size)


def _layout_of(parts: RequestParts, own: Job, moves: Sequence[Move] = ()) -> Layout:
    """Returns the layout of a request whose documents are stored."""
    composition = parts.composition
    documents, overlays = map(parts.job_of, composition.documents), map(parts.job_of, composition.overlays)
    recomputed = [range(0 if i is None else len(composition.parts[i].tokens)) for i in composition.overlays]
    fills = [job for job in parts.fills if job]
    return Layout(own, fills, [*documents], [*overlays], [*recomputed], [*moves])


def _after_copies(parts: RequestParts) -> Job:
    """Returns the job of a prompt that follows its documents in one page list."""
    at = parts.position
    return Job(list(parts.prompt), at, parts.run.first_page, slot=at, before=at)


def _block(parts: RequestParts) -> Layout:
    moves = [
        Move(document.num_tokens, source=(document.first_page, 0), target=(parts.run.first_page, base), distance=base)
        for base, document in zip(parts.bases, parts.stored, strict=True)
    ]
    return _layout_of(parts, _after_copies(parts), moves)


def _recompute(parts: RequestParts) -> Layout:
    jobs = [
        Job(text, base, parts.run.first_page, slot=base) for base, text in zip(parts.bases, parts.texts, strict=True)
    ]
    return Layout(_after_copies(parts), jobs, [*jobs], *_nothing_again(parts))


def _full(parts: RequestParts) -> Layout:
    """Makes an ordinary prefill: each document sees the prefix and all documents before it.

    The engine runs the jobs in this order. In one pass, each layer stores the keys of all jobs before it attends.
    """
    jobs = [
        Job(text, base, parts.run.first_page, slot=base, before=base)
        for base, text in zip((0, *parts.bases), (parts.prefix, *parts.texts), strict=True)
    ]
    return Layout(_after_copies(parts), [job for job in jobs if job.tokens], [*jobs[1:]], *_nothing_again(parts))


def _nothing_again(parts: RequestParts) -> tuple[list[Job | None], list[Sequence[int]]]:
    """Returns the overlays and the tokens that are computed again of a request without stored documents."""
    return [None] * len(parts.texts), [()] * len(parts.texts)


MODES = {
    "lazy": Mode(shares=True, copies=False, recovers=True, layout=_lazy),
    "block": Mode(shares=True, copies=True, recovers=False, layout=_block),
    "recompute": Mode(shares=False, copies=True, recovers=False, layout=_recompute),
    "full": Mode(shares=False, copies=True, recovers=True, layout=_full),
}


def check_recovers(mode: str, recovery: Recovery) -> None:
    """Raises SpecError if the mode does not serve this level of recovery."""
    if recovery.level != "none" and not MODES[mode].recovers:
        able = ", ".join(name for name, each in MODES.items() if each.recovers)
        raise SpecError(
            f'mode = "{mode}" with recovery = "{recovery.level}"; the modes with recovery are: {able}. '
            'Give one of them, or recovery="none"'
        )
