"""The layout of a request's tokens in the store, and the jobs and moves that produce it: one function for each mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..documents import Document, PageRun
from .work import Job, Move, Segment


@dataclass
class Layout:
    """The work of one request.

    Attributes:
        own: The job of the prompt and of the tokens that are generated after it.
        fills: For each document, the job that must be complete before the prompt runs, or None. A job sees the tokens
            of earlier jobs alone.
        moves: The copies that are made before the prompt runs.
    """

    own: Job
    fills: list[Job | None]
    moves: list[Move] = field(default_factory=list)


@dataclass(frozen=True)
class RequestParts:
    """The tokens, documents and pages of one request.

    Attributes:
        prompt: The token ids of the prompt.
        texts: The token ids of each document.
        documents: The stored documents, if the mode shares them.
        fills: For each stored document, the job that computes it, or None.
        run: The request's own pages.
    """

    prompt: list[int]
    texts: list[list[int]]
    documents: Sequence[Document]
    fills: list[Job | None]
    run: PageRun

    @property
    def bases(self) -> list[int]:
        """The logical position of each document's first token."""
        return list(accumulate(map(len, self.texts), initial=0))[:-1]

    @property
    def position(self) -> int:
        """The logical position of the prompt's first token."""
        return sum(map(len, self.texts))


@dataclass(frozen=True)
class Mode:
    """One way of reading documents.

    Attributes:
        shares: True if documents are in the store. False if each request computes them into its own pages.
        copies: True if the request reads documents in its own pages. Stored documents are released after the copy.
        layout: The function that makes the layout of a request.
    """

    shares: bool
    copies: bool
    layout: Callable[[RequestParts], Layout]


def fill_of(document: Document, tokens: list[int]) -> Job:
    """Returns the job that computes a document alone, at positions from 0."""
    return Job(tokens, 0, document.first_page)


def _lazy(parts: RequestParts) -> Layout:
    segments = [
        Segment(base, 0, document.num_tokens, document.first_page)
        for base, document in zip(parts.bases, parts.documents, strict=True)
    ]
    own = Job(list(parts.prompt), parts.position, parts.run.first_page, segments=segments)
    return Layout(own, parts.fills)


def _after_copies(parts: RequestParts) -> Job:
    """Returns the job of a prompt that follows its documents in one page list."""
    at = parts.position
    return Job(list(parts.prompt), at, parts.run.first_page, slot=at, before=at)


def _block(parts: RequestParts) -> Layout:
    moves = [
        Move(document.num_tokens, source=(document.first_page, 0), target=(parts.run.first_page, base), distance=base)
        for base, document in zip(parts.bases, parts.documents, strict=True)
    ]
    return Layout(_after_copies(parts), parts.fills, moves)


def _recompute(parts: RequestParts) -> Layout:
    jobs: list[Job | None] = [
        Job(text, base, parts.run.first_page, slot=base) for base, text in zip(parts.bases, parts.texts, strict=True)
    ]
    return Layout(_after_copies(parts), jobs)


def _full(parts: RequestParts) -> Layout:
    """Makes an ordinary prefill: each document sees all documents before it.

    The engine runs the jobs in this order. In one pass, each layer stores the keys of all jobs before it attends.
    """
    jobs: list[Job | None] = [
        Job(text, base, parts.run.first_page, slot=base, before=base)
        for base, text in zip(parts.bases, parts.texts, strict=True)
    ]
    return Layout(_after_copies(parts), jobs)


MODES = {
    "lazy": Mode(shares=True, copies=False, layout=_lazy),
    "block": Mode(shares=True, copies=True, layout=_block),
    "recompute": Mode(shares=False, copies=True, layout=_recompute),
    "full": Mode(shares=False, copies=True, layout=_full),
}
