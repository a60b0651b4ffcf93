"""Composes requests whose answers come nearer to those of a full prefill, by levels that need no training.

A document that is computed by itself has not seen the text before it. Each level of recovery gives some of that text
back. A composition says which tokens are computed, what each of them sees, and what the prompt sees. An engine with a
store of documents executes it:

    composition = compose([manual, licence], Recovery("first_page", prefix=system_prompt))
    reserved, run = store.reserve(composition.tokens, room, contexts=composition.contexts)
    documents = [document for document, _ in reserved]

    def segments_of(part_segments):  # of a part, or of the prompt
        return [lazyrope.Segment(documents[s.part], s.base, s.start, s.length) for s in part_segments]

Each new document has the tokens of its part, at positions 0, 1, ..., over the part's segments and its own tokens. The
prompt begins at ``composition.position`` and sees ``composition.segments``. The levels:

- "none": documents see nothing before them (the block mask of Block-Attention, arXiv 2409.15355).
- "prefix": each document is computed after one fixed prefix, such as the system prompt. The prefix is stored once, and
  a request shows it once.
- "first_page": as "prefix", if there is a prefix. The first tokens of each document but the first are also computed
  again over everything before them (LegoLink of EPIC, arXiv 2410.15332; MEPIC, arXiv 2512.16822). The result is an
  *overlay*: it replaces these tokens of the shared document in this request.

The module knows no model and computes nothing.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from ._keys import int64_array
from .errors import SpecError

__all__ = ["LEVELS", "Composition", "Part", "PartSegment", "Recovery", "compose"]

LEVELS = ("none", "prefix", "first_page")


@dataclass(frozen=True)
class Recovery:
    """A level of recovery with its parameters.

    Attributes:
        level: One of ``LEVELS``.
        prefix: The token ids of the prefix. Level "none" does not use it, and "first_page" may have none.
        overlay_tokens: The tokens that level "first_page" computes again at the beginning of each document but the
            first, at least 0. Published work uses 16 or 32.

    Raises:
        SpecError: A value is not allowed.
    """

    level: str = "none"
    prefix: tuple[int, ...] = ()
    overlay_tokens: int = 16

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise SpecError(f"recovery = {self.level!r:.80}; it must be one of {', '.join(LEVELS)}")
        count = self.overlay_tokens
        if not hasattr(count, "__index__") or isinstance(count, bool) or operator.index(count) < 0:
            raise SpecError(f"overlay_tokens = {count!r:.80}; it must be an integer, at least 0")
        object.__setattr__(self, "overlay_tokens", operator.index(count))
        prefix = int64_array(self.prefix).tolist() if len(self.prefix) else []
        object.__setattr__(self, "prefix", tuple(prefix))
        if self.level == "prefix" and not prefix:
            raise SpecError(
                'recovery = "prefix" needs prefix=, the tokens that come before each document when it is computed'
            )

    def changed(
        self, level: str | None = None, prefix: Sequence[int] | None = None, overlay_tokens: int | None = None
    ) -> Recovery:
        """Returns the recovery of a request that gives these values instead. None keeps a value.

        Raises:
            SpecError: A value is not allowed, or the level does not use it.
        """
        if level is None and prefix is None and overlay_tokens is None:
            return self
        chosen = self.level if level is None else level
        unused = {"none": {"prefix": prefix, "overlay_tokens": overlay_tokens}}
        unused["prefix"] = {"overlay_tokens": overlay_tokens}
        for name, value in unused.get(chosen, {}).items():
            if value is not None:
                raise SpecError(f'{name} is given; recovery = "{chosen}" does not use it')
        return Recovery(
            chosen,
            self.prefix if prefix is None else tuple(prefix),
            self.overlay_tokens if overlay_tokens is None else overlay_tokens,
        )

    @property
    def shown_prefix(self) -> tuple[int, ...]:
        """The prefix that documents and prompts see. It is empty at level "none"."""
        return () if self.level == "none" else self.prefix


@dataclass(frozen=True)
class PartSegment:
    """A segment of a part whose pages are not known yet: consecutive tokens, where later tokens see them.

    Attributes:
        part: The index of the part in :attr:`Composition.parts`.
        base: The position of the part's token 0, as of :class:`lazyrope.Segment`. A segment that the prompt sees has a
            logical position. A segment that a part sees has a position relative to that part's token 0, so its base is
            negative.
        start: The index in the part of the first token.
        length: The number of tokens, at least 1.
    """

    part: int
    base: int
    start: int
    length: int


@dataclass(frozen=True)
class Part:
    """Tokens that are computed in one run and stored under one key.

    Attributes:
        tokens: The token ids.
        context: The context of the key, as of :meth:`lazyrope.documents.DocumentStore.key`. Parts with equal tokens,
            context and salt have the same keys and values.
        segments: The segments that the tokens see before them, in the order of their positions. They are of earlier
            parts alone. Token i of the part is at position i, so keys are stored rotated by their index.
    """

    tokens: Sequence[int]
    context: str = ""
    segments: tuple[PartSegment, ...] = ()


@dataclass(frozen=True)
class Composition:
    """The stored parts of one request, in an order in which they can be computed, and what the prompt sees.

    All parts and the prompt may be computed in one pass. Each layer must then store the keys and values of all tokens
    before any token attends.

    Attributes:
        parts: The prefix, if there is one, then documents, then overlays: the tokens that are computed again.
        segments: The segments that the prompt sees, in the order of their logical positions.
        position: The logical position of the prompt's first token.
        documents: The index in parts of each document, or None if its overlay replaces it as a whole.
        overlays: The index in parts of each document's overlay, or None.
    """

    parts: tuple[Part, ...]
    segments: tuple[PartSegment, ...]
    position: int
    documents: tuple[int | None, ...]
    overlays: tuple[int | None, ...]

    @property
    def tokens(self) -> list[Sequence[int]]:
        """The tokens of each part."""
        return [part.tokens for part in self.parts]

    @property
    def contexts(self) -> list[str]:
        """The context of each part."""
        return [part.context for part in self.parts]

    @property
    def recomputed_tokens(self) -> int:
        """The tokens of all overlays. A request computes them although their documents are stored."""
        return sum(len(self.parts[i].tokens) for i in self.overlays if i is not None)


def compose(documents: Sequence[Sequence[int]], recovery: Recovery | None = None) -> Composition:
    """Returns the composition of a request that sees documents in this order, and its prompt after them.

    A token of an overlay sees everything that the prompt sees before that token's position: the prefix, the first
    document, and each earlier document with its overlay in place of its first tokens. It also sees the tokens of its
    own overlay before it. All other tokens are those of the shared documents: each saw the prefix, and its own document
    without an overlay. The first document needs no overlay, because its shared tokens have seen everything before them.

    Args:
        documents: The token ids of each document, each at least one.
        recovery: The level and its parameters. None: level "none".

    Raises:
        SpecError: A document has no tokens.
    """
    return _Composer(recovery or Recovery()).compose(documents)


class _Composer:
    """Makes one composition. It adds the segments of the prompt in the order of their positions."""

    def __init__(self, recovery: Recovery) -> None:
        self._prefix = recovery.shown_prefix
        self._overlay_tokens = recovery.overlay_tokens if recovery.level == "first_page" else 0
        self._parts: list[Part] = []
        self._segments: list[PartSegment] = []
        self._position = 0  # the logical position after all segments

    def compose(self, documents: Sequence[Sequence[int]]) -> Composition:
        if not all(len(tokens) for tokens in documents):
            raise SpecError("a document is empty; a document has at least one token")
        before = self._store_prefix()
        context = f"prefix {_digest(self._prefix)}" if self._prefix else ""
        replaced = [min(self._overlay_tokens, len(tokens)) if i else 0 for i, tokens in enumerate(documents)]
        stored = [
            self._add(Part(tokens, context, before)) if count < len(tokens) else None
            for tokens, count in zip(documents, replaced, strict=True)
        ]
        overlays: list[int | None] = []
        chain = f"first_page {self._overlay_tokens} {context}"
        for tokens, count, part in zip(documents, replaced, stored, strict=True):
            overlays.append(self._show_overlay(tokens[:count], chain) if count else None)
            if part is not None:
                self._segments.append(PartSegment(part, self._position, count, len(tokens) - count))
            self._position += len(tokens)
            if self._overlay_tokens:
                chain = _digest(tokens, chain)
        return Composition(tuple(self._parts), tuple(self._segments), self._position, tuple(stored), tuple(overlays))

    def _store_prefix(self) -> tuple[PartSegment, ...]:
        """Adds the prefix, and returns what documents see: the prefix before their own position 0."""
        length = len(self._prefix)
        if length == 0:
            return ()
        part = self._add(Part(self._prefix))
        self._segments.append(PartSegment(part, 0, 0, length))
        self._position = length
        return (PartSegment(part, -length, 0, length),)

    def _show_overlay(self, tokens: Sequence[int], chain: str) -> int:
        """Adds the first tokens of a document, computed over everything that the prompt sees before them."""
        before = tuple(PartSegment(s.part, s.base - self._position, s.start, s.length) for s in self._segments)
        part = self._add(Part(tokens, f"overlay {chain}", before))
        self._segments.append(PartSegment(part, self._position, 0, len(tokens)))
        return part

    def _add(self, part: Part) -> int:
        self._parts.append(part)
        return len(self._parts) - 1


def _digest(tokens: Sequence[int], before: str = "") -> str:
    """Returns a text that identifies tokens and the text before them, which has no zero byte."""
    return hashlib.sha256(before.encode() + b"\0" + int64_array(tokens).tobytes()).hexdigest()
