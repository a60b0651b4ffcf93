"""Where a request's tokens lie in the store, and what brings them there: one function for each mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..documents import Document, PageRun
from .work import Job, Move, Segment


@dataclass
class Layout:
    """
    Attributes:
        own: the prompt, and what is generated after it.
        fills: of each document, the tokens that must have passed before the prompt does, or None where nothing must.
        moves: what is copied before the prompt passes.
    """

    own: Job
    fills: list[Job | None]
    moves: list[Move] = field(default_factory=list)


@dataclass(frozen=True)
class RequestParts:
    """
    Attributes:
        prompt: its token ids.
        texts: those of each document.
        documents: the stored ones, where the mode shares them.
        fills: the jobs under way that compute those, or None.
        run: the request's own pages.
    """

    prompt: list[int]
    texts: list[list[int]]
    documents: Sequence[Document]
    fills: list[Job | None]
    run: PageRun

    @property
    def bases(self) -> list[int]:
        """Logical position of each document's first token."""
        return list(accumulate(map(len, self.texts), initial=0))[:-1]

    @property
    def position(self) -> int:
        """Logical position of the prompt's first token."""
        return sum(map(len, self.texts))


@dataclass(frozen=True)
class Mode:
    """
    Attributes:
        shares: whether documents lie in the store, or anew in the request's own pages.
        copies: whether the request's own pages hold all documents too, and it sees those: the stored ones are let go.
        layout: of a request's parts.
    """

    shares: bool
    copies: bool
    layout: Callable[[RequestParts], Layout]


def fill_of(document: Document, tokens: list[int]) -> Job:
    """A document by itself, at positions from 0."""
    return Job(tokens, 0, document.first_page)


def _lazy(parts: RequestParts) -> Layout:
    segments = [
        Segment(base, 0, document.num_tokens, document.first_page)
        for base, document in zip(parts.bases, parts.documents, strict=True)
    ]
    own = Job(list(parts.prompt), parts.position, parts.run.first_page, segments=segments)
    return Layout(own, parts.fills)


def _after_copies(parts: RequestParts) -> Job:
    """The prompt behind its documents in one page list."""
    at = parts.position
    return Job(list(parts.prompt), at, parts.run.first_page, slot=at, before=at)


def _block(parts: RequestParts) -> Layout:
    moves = [
        Move(document.num_tokens, source=(document.first_page, 0), target=(parts.run.first_page, base), distance=base)
        for base, document in zip(parts.bases, parts.documents, strict=True)
    ]
    return Layout(_after_copies(parts), parts.fills, moves)


def _full(parts: RequestParts) -> Layout:
    jobs: list[Job | None] = [
        Job(text, base, parts.run.first_page, slot=base) for base, text in zip(parts.bases, parts.texts, strict=True)
    ]
    return Layout(_after_copies(parts), jobs)


MODES = {
    "lazy": Mode(shares=True, copies=False, layout=_lazy),
    "block": Mode(shares=True, copies=True, layout=_block),
    "full": Mode(shares=False, copies=True, layout=_full),
}
