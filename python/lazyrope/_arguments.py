"""What a step is made of: device tensors that say what its requests attend to or append, and how much it can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Segments:
    """The segments of all requests of a step, for :meth:`Attention.plan` and :meth:`Step.update`.

    A segment is a run of tokens of one document. Its i-th token is the document's token ``start + i``, sits at logical
    position ``base + start + i``, and is in slot ``(lead + i) % page_size`` of page
    ``pages[first_page + (lead + i) // page_size]``.

    All tensors are int32, one-dimensional, contiguous and on the device that q is on. ``plan`` and ``update`` check
    dtypes and lengths, and with ``check=True`` the values: they raise :class:`SpecError`.

    Attributes:
        indptr: [requests + 1]; request r has segments indptr[r] to indptr[r + 1] - 1. A request may have none.
        base: [segments]; logical position at which token 0 of the document would be. It may be negative; ``base +
            start - lead`` and ``base + start + length`` must be int32.
        start: [segments]; index in the document of the segment's first token, at least 0.
        length: [segments]; tokens, at least 0.
        first_page: [segments]; index into ``pages`` of the page that holds the first token.
        lead: [segments]; slot of the first token in its page, 0 to page_size - 1. All 0 by default.
    """

    indptr: Tensor
    base: Tensor
    start: Tensor
    length: Tensor
    first_page: Tensor
    lead: Tensor | None = None


@dataclass(frozen=True, eq=False, slots=True)
class TokenSpans:
    """Runs of tokens of documents, for :meth:`Attention.plan_append` and :meth:`AppendStep.update`.

    Row i of span s is token ``start[s] + i`` of its document, and is in slot ``(lead[s] + i) % page_size`` of page
    ``pages[first_page[s] + (lead[s] + i) // page_size]``.

    All tensors are int32, one-dimensional, contiguous and on the device that the pool is on. ``plan_append`` and
    ``update`` check dtypes and lengths, and with ``check=True`` the values: they raise :class:`SpecError`.

    Attributes:
        indptr: [spans + 1]; span s is rows indptr[s] to indptr[s + 1] - 1 of k and v.
        start: [spans]; index in the document of the first row, at least 0. Keys are rotated by their index.
        first_page: [spans]; index into ``pages``.
        lead: [spans]; slot of the first row, counted from slot 0 of that page, at least 0. It may be greater than
            the page. All 0 by default.
    """

    indptr: Tensor
    start: Tensor
    first_page: Tensor
    lead: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepCapacity:
    """The most that a :class:`Step` can hold. Its memory is allocated once, for this capacity.

    A capacity that is negative, or too large for the kernels, is a :class:`SpecError` of the call that takes it.

    Attributes:
        requests: requests of one update.
        segments: segments of all requests together.
        query_tokens: query tokens of all requests together.
        tokens_per_request: query tokens of any one request; None: query_tokens. A small number makes the step
            smaller: with 1, it has no room for prefill.
    """

    requests: int
    segments: int
    query_tokens: int
    tokens_per_request: int | None = None


@dataclass(frozen=True, slots=True)
class AppendCapacity:
    """The most that an :class:`AppendStep` can hold. Its memory is allocated once, for this capacity.

    A negative capacity is a :class:`SpecError` of the call that takes it.

    Attributes:
        tokens: tokens of all spans together.
        spans: spans of one update; None: any number.
    """

    tokens: int
    spans: int | None = None
