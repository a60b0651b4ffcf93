"""The arguments of ``plan`` and ``plan_append``: tensors of segments, spans and slots, and capacities.

Example:
    segments = lazyrope.Segments(indptr, base, start, length, first_page)
    step = kernel.plan(q_indptr, q_position, segments, pages, capacity=lazyrope.StepCapacity(8, 64, 1024))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Segments:
    """The segments of all requests of a step, for :meth:`Attention.plan` and :meth:`Step.update`.

    A segment is a run of tokens of one document. Its token i, from 0, is the document's token ``start + i`` and has
    the logical position ``base + start + i``. It is in slot ``(lead + i) % page_size`` of page
    ``pages[first_page + (lead + i) // page_size]``.

    All tensors are int32, one-dimensional, contiguous and on the device of q. ``plan`` and ``update`` raise
    :class:`SpecError` for wrong dtypes and lengths, and with ``check=True`` also for illegal values.

    Attributes:
        indptr: Offsets, [requests + 1]. Request r has segments indptr[r] to indptr[r + 1] - 1. It may have none.
        base: The logical position at which token 0 of the document would be, [segments]. It may be negative.
            ``base + start - lead`` and ``base + start + length`` must be int32, and so with mask_base.
        start: The index in the document of the segment's first token, [segments], at least 0.
        length: The number of tokens, [segments], at least 0.
        first_page: The index in ``pages`` of the page that holds the first token, [segments].
        lead: The slot of the first token in its page, [segments], 0 to page_size - 1. None: all 0.
        mask_base: The position of token 0 of the document in the order of the mask, [segments], if that order is not
            the order of RoPE's positions: the tokens of an image share positions (M-RoPE). ``q_position`` then counts
            in the order of the mask, and ``base`` is the rotation alone. It needs rotated queries. None: base.
        mass_tokens: The last query tokens of each request whose attention counts in the masses of pages, [requests]
            (:attr:`AttentionSpec.page_mass`). A negative number counts as 0, and more than there are as all. None: all.
        memory: What each segment has, [segments], in specs with :attr:`AttentionSpec.states`. 0: tokens. 1 to 4:
            entries of the request's memory of that number. Add 8 if each entry serves one query head: entry i serves
            head ``i % group_size`` of each KV head. Add 16 m for a look-up of two levels: the segment then has cells of
            m entries each, and after them a key for each cell, its centre. A query finds the best centre, and then the
            best entry of that cell. With 8, centre i and its cell serve head ``i % group_size``. Segments of a request
            that have the same number are one memory. All
            query tokens of the request see all entries; ``base`` is that of the document for which the entries stand,
            and ``start`` is ignored. None: all 0.
    """

    indptr: Tensor
    base: Tensor
    start: Tensor
    length: Tensor
    first_page: Tensor
    lead: Tensor | None = None
    mask_base: Tensor | None = None
    mass_tokens: Tensor | None = None
    memory: Tensor | None = None


@dataclass(frozen=True, eq=False, slots=True)
class TokenSpans:
    """Runs of tokens of documents, for :meth:`Attention.plan_append` and :meth:`AppendStep.update`.

    Row i of span s, from 0, is token ``start[s] + i`` of its document. It goes to slot ``(lead[s] + i) % page_size`` of
    page ``pages[first_page[s] + (lead[s] + i) // page_size]``.

    All tensors are int32, one-dimensional, contiguous and on the device of the pool. ``plan_append`` and ``update``
    raise :class:`SpecError` for wrong dtypes and lengths, and with ``check=True`` also for illegal values.

    Attributes:
        indptr: Offsets, [spans + 1]. Span s has rows indptr[s] to indptr[s + 1] - 1 of k and v.
        start: The index in the document of the first row, [spans], at least 0. Keys are rotated by their index.
        first_page: An index in ``pages``, [spans]. Slots are counted from slot 0 of that page.
        lead: The slot of the first row, [spans], at least 0. It may be beyond the first page. None: all 0.
    """

    indptr: Tensor
    start: Tensor
    first_page: Tensor
    lead: Tensor | None = None


@dataclass(frozen=True, eq=False, slots=True)
class TokenSlots:
    """A slot for each token, for :meth:`Attention.plan_append` and :meth:`AppendStep.update`.

    Row i of k and v goes to slot ``slot_mapping[i] % page_size`` of page ``slot_mapping[i] // page_size``. A row with a
    negative entry is skipped. vLLM's ``slot_mapping`` serves as it is.

    Both tensors are int64, one-dimensional, contiguous and on the device of the pool. ``plan_append`` and ``update``
    raise :class:`SpecError` for wrong dtypes and lengths. With ``check=True``, an index that is negative or no int32 is
    also an error, and so is a slot on a page that is no int32. :meth:`Attention.append` with ``check=True`` checks that
    every page is in the pool.

    Attributes:
        slot_mapping: ``page * page_size + slot`` of each row of k and v, [tokens].
        index: The index of each token in its document, [tokens], at least 0. Raw keys are rotated by it. In an engine
            without documents, it is the token's position. The index of a skipped row is ignored.
    """

    slot_mapping: Tensor
    index: Tensor


@dataclass(frozen=True, slots=True)
class StepCapacity:
    """The most that a :class:`Step` can hold. Its memory is allocated once, for this capacity.

    A call raises :class:`SpecError` if the capacity is negative or too large for the kernels.

    Attributes:
        requests: The requests of one update.
        segments: The segments of all requests together.
        query_tokens: The query tokens of all requests together.
        tokens_per_request: The query tokens of any one request. None: query_tokens. A small number makes the step
            smaller: with 1, it has no memory for prefill.
        rotated_tokens: Tokens that a step for pools of raw keys has scratch for on Hopper: those of the segments of
            prefill requests, in whole runs of 16 slots of each segment. Their keys are rotated once in each call, and
            prefill is about as fast as with local keys. The scratch takes the memory of so many tokens in the pool. If
            the tokens of an update exceed it, kernels rotate keys at each use, as they do with 0. With
            :attr:`AttentionSpec.packed_prefill`, the same number is the scratch for packed keys, whose tokens count
            one by one, at most 4194304. If they exceed it, prefill reads the pool. All other steps ignore it.
        mass_pages: Room for masses of pages, in steps of specs with :attr:`AttentionSpec.page_mass`: the sum over the
            requests of the query tokens that count times the pages of 16 slots of the request. Each takes 4 bytes for
            each query head. If a request of an update has no room, it and those after it get NaN. All other steps
            ignore it.
    """

    requests: int
    segments: int
    query_tokens: int
    tokens_per_request: int | None = None
    rotated_tokens: int = 0
    mass_pages: int = 0


@dataclass(frozen=True, slots=True)
class AppendCapacity:
    """The most that an :class:`AppendStep` can hold. Its memory is allocated once, for this capacity.

    A call raises :class:`SpecError` if the capacity is negative.

    Attributes:
        tokens: The tokens of one update: of all spans together, or the elements of a slot mapping.
        spans: The spans of one update. None: any number.
    """

    tokens: int
    spans: int | None = None
