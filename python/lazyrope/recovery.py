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
- "guided": as "prefix", if there is a prefix. The prompt first runs over the documents as they are stored, and the
  attention call gives the mass of each page of 16 tokens (``lazyrope.AttentionSpec.page_mass``). The pages with the
  most attention and each document's first tokens are then computed again over everything before them, for this request
  alone (ProphetKV, arXiv 2602.02579). ``composition.choice`` chooses them, and :func:`recompute` says what the prompt
  then sees.
- "ape": as "prefix", if there is a prefix. Nothing is computed again. The prompt and the tokens after it attend to the
  documents apart from all other keys, with a temperature, and the log-sum-exp of these scores is scaled before both
  parts are merged (Adaptive Parallel Encoding, arXiv 2502.05431). ``composition.group`` has the documents' segments,
  ``composition.rest`` all others, and :func:`lazyrope.merging.merge` merges the two.

The module knows no model and computes nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from ._checks import as_count
from ._keys import int64_array
from ._precomputed import Precomputed, positions_of
from .errors import SpecError

__all__ = [
    "LEVELS",
    "PAGE",
    "Composition",
    "PageChoice",
    "Part",
    "PartSegment",
    "PrivateSegment",
    "Recomputation",
    "Recovery",
    "SegmentGroup",
    "compose",
    "recompute",
    "runs_of",
]

PAGE = 16  # tokens of a page that level "guided" chooses, whatever the page size of the pool
# The parameters of each level that a request may change.
PARAMETERS = {
    "none": (),
    "prefix": ("prefix",),
    "first_page": ("prefix", "overlay_tokens"),
    "guided": ("prefix", "overlay_tokens", "share"),
    "ape": ("prefix", "attention_temperature", "lse_scale"),
}
LEVELS = tuple(PARAMETERS)


@dataclass(frozen=True)
class Recovery:
    """A level of recovery with its parameters.

    Attributes:
        level: One of ``LEVELS``.
        prefix: The token ids of the prefix. Level "none" does not use it, and "first_page" may have none.
        overlay_tokens: The tokens that levels "first_page" and "guided" compute again at the beginning of each document
            but the first, at least 0. Published work uses 16 or 32.
        share: The share of all tokens of the documents that level "guided" computes again, 0 to 1: pages are chosen
            until there are so many. The documents' first tokens count, and are computed again even if they are more.
        question_tokens: The last tokens of the prompt whose attention chooses the pages of level "guided", at least 1.
        attention_temperature: The number by which level "ape" divides scores with documents, greater than 0. Below 1,
            attention is sharper.
        lse_scale: The factor of the log-sum-exp of these scores at level "ape", greater than 0. Below 1, the documents
            have less weight if their log-sum-exp is positive.
        select_layers: The first layers of the model whose attention chooses the pages of level "guided", at least 1.
            None: all layers.

    Raises:
        SpecError: A value is not allowed.
    """

    level: str = "none"
    prefix: tuple[int, ...] = ()
    overlay_tokens: int = 16
    share: float = 0.15
    question_tokens: int = 128
    attention_temperature: float = 0.9
    lse_scale: float = 0.9
    select_layers: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.level, str) or self.level not in LEVELS:
            raise SpecError(f"recovery = {self.level!r:.80}; it must be one of {', '.join(LEVELS)}")
        object.__setattr__(self, "overlay_tokens", as_count("overlay_tokens", self.overlay_tokens, least=0))
        object.__setattr__(self, "question_tokens", as_count("question_tokens", self.question_tokens, least=1))
        if self.select_layers is not None:
            object.__setattr__(self, "select_layers", as_count("select_layers", self.select_layers, least=1))
        object.__setattr__(self, "share", _share(self.share))
        for name in ("attention_temperature", "lse_scale"):
            object.__setattr__(self, name, _positive(name, getattr(self, name)))
        prefix = int64_array(self.prefix).tolist() if _num_tokens("prefix", self.prefix) else []
        object.__setattr__(self, "prefix", tuple(prefix))
        if self.level == "prefix" and not prefix:
            raise SpecError(
                'recovery = "prefix" needs prefix=, the tokens that come before each document when it is computed'
            )

    def changed(
        self,
        level: str | None = None,
        prefix: Sequence[int] | None = None,
        overlay_tokens: int | None = None,
        share: float | None = None,
        attention_temperature: float | None = None,
        lse_scale: float | None = None,
    ) -> Recovery:
        """Returns the recovery of a request that gives these values instead. None keeps a value.

        Raises:
            SpecError: A value is not allowed, or the level does not use it.
        """
        values = {
            "prefix": prefix,
            "overlay_tokens": overlay_tokens,
            "share": share,
            "attention_temperature": attention_temperature,
            "lse_scale": lse_scale,
        }
        given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        chosen = self.level if level is None else level
        for name in given:
            if name not in PARAMETERS.get(chosen, values):
                raise SpecError(f'{name} is given; recovery = "{chosen}" does not use it')
        if prefix is not None:
            given["prefix"] = tuple(prefix) if _num_tokens("prefix", prefix) else ()
        return replace(self, level=chosen, **given)

    @property
    def shown_prefix(self) -> tuple[int, ...]:
        """The prefix that documents and prompts see. It is empty at level "none"."""
        return () if self.level == "none" else self.prefix


def _share(value: Any) -> float:
    if not _is_number(value) or not 0 <= value <= 1:
        raise SpecError(f"share = {value!r:.80}; it must be a number, 0 to 1")
    return float(value)


def _positive(name: str, value: Any) -> float:
    if not _is_number(value) or not 0 < value < math.inf:
        raise SpecError(f"{name} = {value!r:.80}; it must be a finite number greater than 0")
    return float(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
        tokens: The token ids, or a memory.
        context: The context of the key, as of :meth:`lazyrope.documents.DocumentStore.key`. Parts with equal tokens,
            context and salt have the same keys and values.
        segments: The segments that the tokens see before them, in the order of their positions. They are of earlier
            parts alone. Token i of the part is at position i, so keys are stored rotated by their index.
    """

    tokens: Sequence[int]
    context: str = ""
    segments: tuple[PartSegment, ...] = ()


@dataclass(frozen=True)
class PageChoice:
    """Chooses the tokens that level "guided" computes again. It numbers tokens over all documents in their order.

    No token of the first document is chosen, because these tokens have seen everything before them.

    Attributes:
        lengths: The tokens of each document.
        share: As in :class:`Recovery`.
        overlay_tokens: As in :class:`Recovery`.
    """

    lengths: tuple[int, ...]
    share: float
    overlay_tokens: int

    @cached_property
    def always(self) -> list[int]:
        """The first tokens of each document but the first, which are always chosen."""
        return [i for document in self._documents for i in document[: self.overlay_tokens]]

    @cached_property
    def pages(self) -> list[range]:
        """The pages to choose from: the tokens of each. Pages count from their document's beginning.

        The last page of a document may be shorter. Pages whose tokens are all in :attr:`always` are left out.
        """
        return [
            range(begin, min(begin + PAGE, document.stop))
            for document in self._documents
            for begin in range(document.start, document.stop, PAGE)
            if min(begin + PAGE, document.stop) > document.start + self.overlay_tokens
        ]

    @property
    def needs_scores(self) -> bool:
        """If False, the choice is the same whatever the scores are: the share asks for no more pages, or for all."""
        return len(self.always) < self._wanted < self._eligible

    @property
    def max_tokens(self) -> int:
        """The most tokens that may be chosen."""
        return min(max(len(self.always), self._wanted + PAGE - 1), self._eligible)

    def tokens(self, scores: Sequence[float]) -> list[int]:
        """Returns the tokens of the pages with the greatest scores, in order, and those that are always chosen.

        Pages are chosen until the tokens are at least ``share`` of all tokens. Of equal scores, the first page is
        better.

        Args:
            scores: The score of each of :attr:`pages`, such as its attention mass. If not :attr:`needs_scores`, any
                numbers give the same tokens.
        """
        chosen = set(self.always)
        for _, page in sorted(zip(scores, self.pages, strict=True), key=lambda each: each[0], reverse=True):
            if len(chosen) >= self._wanted:
                break
            chosen.update(page)
        return sorted(chosen)

    @property
    def _documents(self) -> list[range]:
        """The tokens of each document but the first."""
        ends = accumulate(self.lengths, initial=0)
        return [range(begin, end) for begin, end in pairwise(ends)][1:]

    @property
    def _wanted(self) -> int:
        return math.ceil(self.share * sum(self.lengths))

    @property
    def _eligible(self) -> int:
        return sum(self.lengths[1:])


@dataclass(frozen=True)
class SegmentGroup:
    """The segments to which level "ape" attends apart from all other keys.

    The attention to these segments divides its scores by the temperature: the caller divides the queries by it, or
    compiles a spec whose scale is divided by it. The attention to all other keys, with the sinks of the model, is as
    ever. :func:`lazyrope.merging.merge` merges both by their log-sum-exp, that of the group times ``lse_scale``.

    The paper gives all documents the same positions. Here, as at every other level, one follows the other.

    Attributes:
        segments: The segments of the documents, as the prompt sees them.
        temperature: As ``attention_temperature`` of :class:`Recovery`.
        lse_scale: As in :class:`Recovery`.
    """

    segments: tuple[PartSegment, ...]
    temperature: float
    lse_scale: float


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
        choice: Level "guided": the choice of the tokens that the request computes again after the prompt's first pass.
        group: Level "ape": those of ``segments`` to which the prompt attends apart from all other keys.
    """

    parts: tuple[Part, ...]
    segments: tuple[PartSegment, ...]
    position: int
    documents: tuple[int | None, ...]
    overlays: tuple[int | None, ...]
    choice: PageChoice | None = None
    group: SegmentGroup | None = None

    @property
    def rest(self) -> tuple[PartSegment, ...]:
        """The segments that the prompt sees and that are in no group."""
        return self.segments if self.group is None else tuple(s for s in self.segments if s not in self.group.segments)

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
        """The number of all overlays' tokens. A request computes them although their documents are stored.

        The tokens that ``choice`` chooses do not count.
        """
        return sum(len(self.parts[i].tokens) for i in self.overlays if i is not None)


def compose(documents: Sequence[Sequence[int] | Precomputed], recovery: Recovery | None = None) -> Composition:
    """Returns the composition of a request that sees documents in this order, and its prompt after them.

    A token of an overlay sees everything that the prompt sees before that token's position: the prefix, the first
    document, and each earlier document with its overlay in place of its first tokens. It also sees the tokens of its
    own overlay before it. All other tokens are those of the shared documents: each saw the prefix, and its own document
    without an overlay. The first document needs no overlay, because its shared tokens have seen everything before them.

    Each overlay lists everything before it, so the parts of "first_page" together have a number of segments that grows
    with the square of the number of documents.

    A part sees other parts at negative positions, for its own tokens begin at position 0. Masks and temperatures of
    queries that depend on positions themselves, and not on distances, see these positions. With the mask "chunked", a
    negative position is in another chunk than position 0: a part sees nothing of what is before it, and "prefix" and
    "first_page" gain nothing. The module does not know the mask, so it does not refuse this.

    Args:
        documents: The token ids of each document, each at least one. At level "none" also memories of
            :mod:`lazyrope.memory`, each in place of its document.
        recovery: The level and its parameters. None: level "none".

    Raises:
        SpecError: A value is not allowed, a document has no tokens, or the level has no memories.
    """
    if recovery is not None and not isinstance(recovery, Recovery):
        raise SpecError(f'recovery = {recovery!r:.80}; it must be a Recovery, such as Recovery("first_page")')
    if not isinstance(documents, Iterable) or isinstance(documents, str | bytes):
        raise SpecError(f"documents = {documents!r:.80}; it must be a list, and each document a sequence of token ids")
    given, how = list(documents), recovery or Recovery()
    if how.level != "none" and any(isinstance(document, Precomputed) for document in given):
        raise SpecError(
            f'documents has a memory with recovery = "{how.level}"; its document saw nothing before it, and its tokens '
            'cannot be computed again: give recovery="none", or the document itself'
        )
    return _Composer(how).compose(given)


@dataclass(frozen=True)
class PrivateSegment:
    """Consecutive tokens among those that a request computes again into its own pages.

    Attributes:
        position: The logical position of the first token.
        slot: The index of the first token among all tokens that are computed again.
        length: The number of tokens, at least 1.
    """

    position: int
    slot: int
    length: int


@dataclass(frozen=True)
class Recomputation:
    """The tokens that a request computes again by level "guided", and what they and the prompt see.

    One request of the attention computes all these tokens: each sees the segments up to its own position. They and the
    prompt may be computed in one pass, as the parts of a :class:`Composition` may.

    An engine stores their keys and values in a page run of the request, in this order. Keys that are rotated by their
    logical positions are read with ``lazyrope.Segments`` of base 0 and start ``position``. Keys that are rotated by
    their index in the run are read with ``lazyrope.Segment(run, position - slot, slot, length)``.

    Attributes:
        tokens: The token ids.
        positions: The logical position of each, in ascending order.
        segments: The segments that the prompt sees, in the order of their logical positions. Private ones replace
            tokens of the documents.
        indices: For each document, the indices of its tokens that are computed again.
    """

    tokens: list[int]
    positions: list[int]
    segments: tuple[PartSegment | PrivateSegment, ...]
    indices: list[list[int]]


def recompute(composition: Composition, chosen: Sequence[int]) -> Recomputation:
    """Returns what a request at level "guided" sees after it has chosen the tokens to compute again.

    Args:
        composition: The composition of level "guided".
        chosen: The tokens, as of :meth:`PageChoice.tokens`: numbers over all documents, in ascending order.
    """
    texts = [composition.parts[part].tokens for part in composition.documents if part is not None]
    ends = list(accumulate(map(len, texts), initial=0))
    prefix = composition.position - ends[-1]
    indices = [[i - begin for i in chosen if begin <= i < end] for begin, end in pairwise(ends)]
    positions = [prefix + i for i in chosen]
    return Recomputation(
        [text[i] for text, own in zip(texts, indices, strict=True) for i in own],
        positions,
        tuple(_replaced(composition.segments, runs_of(positions))),
        indices,
    )


def runs_of(positions: Sequence[int]) -> list[range]:
    """Returns ascending positions as runs of consecutive ones."""
    starts = [i for i in range(len(positions)) if i == 0 or positions[i] != positions[i - 1] + 1]
    return [range(positions[i], positions[i] + end - i) for i, end in pairwise([*starts, len(positions)])]


def _replaced(segments: Sequence[PartSegment], runs: Sequence[range]) -> list[PartSegment | PrivateSegment]:
    """Returns segments with private ones in place of the tokens at the positions of runs. A run is one segment."""
    found: list[PartSegment | PrivateSegment] = []
    slots = dict(zip((run.start for run in runs), accumulate(map(len, runs), initial=0), strict=False))

    def show(segment: PartSegment, begin: int, end: int) -> None:
        if begin < end:
            found.append(PartSegment(segment.part, segment.base, begin - segment.base, end - begin))

    for segment in segments:
        at, end = segment.base + segment.start, segment.base + segment.start + segment.length
        for run in runs:
            if run.stop <= at or run.start >= end:
                continue
            show(segment, at, run.start)
            if run.start >= at:  # a run that began in the segment before is there already
                found.append(PrivateSegment(run.start, slots[run.start], len(run)))
            at = min(run.stop, end)
        show(segment, at, end)
    return found


class _Composer:
    """Makes one composition. It adds the segments of the prompt in the order of their positions."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._prefix = recovery.shown_prefix
        self._overlay_tokens = recovery.overlay_tokens if recovery.level == "first_page" else 0
        self._parts: list[Part] = []
        self._segments: list[PartSegment] = []
        self._position = 0  # the logical position after all segments

    def compose(self, documents: Sequence[Any]) -> Composition:
        if not all([_num_tokens(f"documents[{i}]", tokens) for i, tokens in enumerate(documents)]):
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
            self._position += positions_of(tokens)
            if self._overlay_tokens:
                chain = _digest(tokens, chain)
        return Composition(
            tuple(self._parts),
            tuple(self._segments),
            self._position,
            tuple(stored),
            tuple(overlays),
            self._choice(documents),
            self._group(len(before)),
        )

    def _choice(self, documents: Sequence[Sequence[int]]) -> PageChoice | None:
        if self._recovery.level != "guided":
            return None
        return PageChoice(tuple(map(len, documents)), self._recovery.share, self._recovery.overlay_tokens)

    def _group(self, prefix_segments: int) -> SegmentGroup | None:
        if self._recovery.level != "ape":
            return None
        segments = tuple(self._segments[prefix_segments:])
        return SegmentGroup(segments, self._recovery.attention_temperature, self._recovery.lse_scale)

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


def _num_tokens(name: str, tokens: Any) -> int:
    """Returns the length of a sequence of token ids. It does not look at the tokens."""
    try:
        if not isinstance(tokens, str | bytes):
            return len(tokens)
    except TypeError:
        pass
    raise SpecError(f"{name} = {tokens!r:.80}; it must be a sequence of token ids")


def _digest(tokens: Sequence[int], before: str = "") -> str:
    """Returns a text that identifies tokens and the text before them, which has no zero byte."""
    return hashlib.sha256(before.encode() + b"\0" + int64_array(tokens).tobytes()).hexdigest()
