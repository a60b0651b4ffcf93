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
class Mode:
    """
    Attributes:
        shares: whether documents lie in the store, or anew in the request's own pages.
        copies: whether the request's own pages hold all documents too, and it sees those: the stored ones are let go.
        layout: of (prompt, documents' tokens, stored documents, jobs that fill those, own pages).
    """

    shares: bool
    copies: bool
    layout: Callable[[list[int], list[list[int]], Sequence[Document], list[Job | None], PageRun], Layout]


def bases(documents: Sequence[Sequence[int]]) -> list[int]:
    """Logical position of each document's first token, and of what comes behind them."""
    return list(accumulate(map(len, documents), initial=0))


def fill_of(document: Document, tokens: list[int]) -> Job:
    """A document by itself, at positions from 0."""
    return Job(tokens, 0, document.first_page)


def _lazy(
    prompt: list[int],
    texts: list[list[int]],
    documents: Sequence[Document],
    fills: list[Job | None],
    run: PageRun,
) -> Layout:
    *base, position = bases(texts)
    segments = [Segment(b, 0, d.num_tokens, d.first_page) for b, d in zip(base, documents, strict=True)]
    return Layout(Job(list(prompt), position, run.first_page, segments=segments), fills)


def _block(
    prompt: list[int],
    texts: list[list[int]],
    documents: Sequence[Document],
    fills: list[Job | None],
    run: PageRun,
) -> Layout:
    *base, position = bases(texts)
    moves = [
        Move(d.num_tokens, source=(d.first_page, 0), target=(run.first_page, b), turn=b)
        for b, d in zip(base, documents, strict=True)
    ]
    return Layout(Job(list(prompt), position, run.first_page, position, before=position), fills, moves)


def _full(
    prompt: list[int],
    texts: list[list[int]],
    documents: Sequence[Document],
    fills: list[Job | None],
    run: PageRun,
) -> Layout:
    *base, position = bases(texts)
    jobs: list[Job | None] = [Job(t, b, run.first_page, slot=b) for b, t in zip(base, texts, strict=True)]
    return Layout(Job(list(prompt), position, run.first_page, position, before=position), jobs)


MODES = {
    "lazy": Mode(shares=True, copies=False, layout=_lazy),
    "block": Mode(shares=True, copies=True, layout=_block),
    "full": Mode(shares=False, copies=True, layout=_full),
}
