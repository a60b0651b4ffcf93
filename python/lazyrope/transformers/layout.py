"""The layout of a request's tokens in the store, and the jobs and moves that produce it: one function for each mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..documents import Document, PageRun
from ..recovery import Composition, Part, PartSegment
from .work import Job, Move, Segment


@dataclass
class Layout:
    """The work of one request.

    Attributes:
        own: The job of the prompt and of the tokens that are generated after it.
        fills: The jobs that must be complete before the prompt runs. A job sees the tokens of earlier jobs alone.
        documents: For each document, the job among the fills that computes it, or None.
        overlays: For each document, the job among the fills that computes its first tokens again, or None.
        moves: The copies that are made before the prompt runs.
    """

    own: Job
    fills: list[Job]
    documents: list[Job | None]
    overlays: list[Job | None]
    moves: list[Move] = field(default_factory=list)


@dataclass(frozen=True)
class RequestParts:
    """The tokens, documents and pages of one request.

    Attributes:
        prompt: The token ids of the prompt.
        prefix: The token ids that documents and prompt see before them.
        texts: The token ids of each document.
        composition: The parts of the request that are stored, and their segments.
        stored: The stored document of each part, if the mode shares them.
        fills: For each stored document, the job that computes it, or None.
        run: The request's own pages.
        page_size: The tokens of a page.
    """

    prompt: list[int]
    prefix: list[int]
    texts: list[list[int]]
    composition: Composition
    stored: Sequence[Document]
    fills: list[Job | None]
    run: PageRun
    page_size: int

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


def _lazy(parts: RequestParts) -> Layout:
    segments = _segments(parts.composition.segments, parts.stored, parts.page_size)
    own = Job(list(parts.prompt), parts.position, parts.run.first_page, segments=segments)
    return _layout_of(parts, own)


def _layout_of(parts: RequestParts, own: Job, moves: Sequence[Move] = ()) -> Layout:
    """Returns the layout of a request whose documents are stored."""
    documents, overlays = map(parts.job_of, parts.composition.documents), map(parts.job_of, parts.composition.overlays)
    return Layout(own, [job for job in parts.fills if job], [*documents], [*overlays], [*moves])


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
    return Layout(_after_copies(parts), jobs, [*jobs], [None] * len(jobs))


def _full(parts: RequestParts) -> Layout:
    """Makes an ordinary prefill: each document sees the prefix and all documents before it.

    The engine runs the jobs in this order. In one pass, each layer stores the keys of all jobs before it attends.
    """
    jobs = [
        Job(text, base, parts.run.first_page, slot=base, before=base)
        for base, text in zip((0, *parts.bases), (parts.prefix, *parts.texts), strict=True)
    ]
    return Layout(_after_copies(parts), [job for job in jobs if job.tokens], [*jobs[1:]], [None] * len(parts.texts))


MODES = {
    "lazy": Mode(shares=True, copies=False, recovers=True, layout=_lazy),
    "block": Mode(shares=True, copies=True, recovers=False, layout=_block),
    "recompute": Mode(shares=False, copies=True, recovers=False, layout=_recompute),
    "full": Mode(shares=False, copies=True, recovers=True, layout=_full),
}
