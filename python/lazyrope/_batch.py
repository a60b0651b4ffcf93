"""The requests of one pass as host objects. They fill a :class:`lazyrope.Batch`.

Example:
    document = lazyrope.Document(first_page=0, num_tokens=40)
    request = lazyrope.Request([140, 141], [lazyrope.Segment(document, base=100)])
    step = kernel.plan(lazyrope.batch([request], pages))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import SpecError

MAX_MEMORIES = 4  # memories of attention states that a request can have
KEY_PER_HEAD = 8  # is added to the number of a memory in which each entry serves one query head
CELL_ENTRY = 16  # is added to it for each entry of a cell, if entries are in cells
MAX_CELL_ENTRIES = 65535


class HasPages(Protocol):
    """Any object that has these attributes: a :class:`Document`, or a document of
    :class:`lazyrope.documents.DocumentStore`."""

    @property
    def first_page(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def lead(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Document:
    """A document in the pool: its page list and its length.

    Token t is in slot ``(lead + t) % page_size`` of page ``pages[first_page + (lead + t) // page_size]``.

    Attributes:
        first_page: The index in the batch's ``pages`` at which the document's page list begins, at least 0.
        num_tokens: The number of tokens, at least 0.
        lead: The slot of token 0, counted from slot 0 of the first page, at least 0.
    """

    first_page: int
    num_tokens: int
    lead: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens ``start`` to ``start + length - 1`` of a document, as one request sees them.

    Attributes:
        document: A :class:`Document`, or any object with its three attributes.
        base: The logical position at which token 0 of the document would be. It may be negative.
        start: The index in the document of the segment's first token, 0 to the document's num_tokens.
        length: The number of tokens. None: all tokens of the document from ``start`` on.
        mask_base: The position of token 0 of the document in the order of the mask, if that order is not the order of
            RoPE's positions (:class:`Segments`). None: base.
        memory: 0 if the segment has tokens, or the number of a memory of the request, 1 to 4, if it has entries of
            attention states (:class:`Segments`). Add 8 if each entry serves one query head, and 16 m if the entries are
            in cells of m.
    """

    document: HasPages
    base: int
    start: int = 0
    length: int | None = None
    mask_base: int | None = None
    memory: int = 0

    def __post_init__(self) -> None:
        if self.start or self.length is not None:
            _refuse_slice_of_memory(self.document)
        if getattr(self.document, "has_entries", False):
            raise SpecError(
                "a segment is of a memory of attention states, which has tokens and entries; give the segments that "
                "memory.segments(document, base, page_size) returns"
            )


def _refuse_slice_of_memory(document: HasPages) -> None:
    """Raises SpecError for a memory in a store: its slots are no consecutive tokens."""
    num_positions = getattr(document, "num_positions", None)
    if num_positions is not None and num_positions != document.num_tokens:
        raise SpecError("a segment with start or length is of a memory, which has no slices; give neither")


@dataclass(frozen=True, slots=True)
class Request:
    """A request of one pass: the positions of its query tokens, and the segments that they attend to.

    Attributes:
        positions: The logical positions of the query tokens, in any order: a list of ints, a range, or an int for one
            query token.
        segments: The segments that the request sees. There may be none.
        mass_tokens: The last query tokens whose attention counts in the masses of pages, at least 0
            (:attr:`AttentionSpec.page_mass`). None, or a greater number than there are tokens: all.
    """

    positions: int | Sequence[int]
    segments: Sequence[Segment] = ()
    mass_tokens: int | None = None
