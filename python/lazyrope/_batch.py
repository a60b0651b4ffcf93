"""The requests of one pass, given on the host: what a :class:`lazyrope.Batch` is filled with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class HasPages(Protocol):
    """Any object that says where its tokens are: a :class:`Document`, or one of
    :class:`lazyrope.documents.DocumentStore`."""

    @property
    def first_page(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def lead(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Document:
    """Where the tokens of a document are. Token t is in slot ``(lead + t) % page_size`` of page
    ``pages[first_page + (lead + t) // page_size]``.

    Attributes:
        first_page: index into the batch's ``pages`` of the document's page list, at least 0.
        num_tokens: tokens of the document, at least 0.
        lead: slot of token 0, counted from slot 0 of the first page, at least 0.
    """

    first_page: int
    num_tokens: int
    lead: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens ``start`` to ``start + length - 1`` of a document, as one request sees them.

    Attributes:
        document: a :class:`Document`, or any object with its three attributes.
        base: logical position at which token 0 of the document would be. It may be negative.
        start: index in the document of the first token, 0 to the document's num_tokens.
        length: tokens; None: all tokens of the document from ``start`` on.
    """

    document: HasPages
    base: int
    start: int = 0
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request of one pass: its query tokens, and what they attend to.

    Attributes:
        positions: logical positions of the query tokens, in any order: a list of ints, a range, or an int for one
            query token.
        segments: what the request sees; it may be empty.
    """

    positions: int | Sequence[int]
    segments: Sequence[Segment] = ()
