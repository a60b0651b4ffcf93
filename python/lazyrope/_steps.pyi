"""Describes steps, a part of _core.pyi. This module does not exist at run time: import the names from lazyrope."""

from collections.abc import Sequence
from typing import Any, Literal, final, overload

from ._arguments import AppendCapacity, Segments, StepCapacity, TokenSlots, TokenSpans
from ._batch import Request
from ._core import Tensor

@final
class Batch:
    """The requests of one pass of the model, given as host lists.

    :meth:`Attention.plan` and :meth:`Step.update` take a batch in place of the four device tensors.

    A batch has device arrays and pinned host buffers of a fixed capacity. :meth:`fill` checks the requests and stores
    them. ``plan`` and ``update`` copy them to the device, in one asynchronous copy on the stream. Two buffers
    alternate, so a batch may be filled and given to ``update`` again while the last copy is in flight. A batch serves
    one thread and one stream at a time.

    Example:
        ```python
        batch = lazyrope.Batch(pages, capacity=lazyrope.StepCapacity(requests=8, segments=64, query_tokens=8))
        batch.fill([lazyrope.Request(140, [lazyrope.Segment(document, base=0)])])
        step = kernel.plan(batch)
        batch.fill([lazyrope.Request(141, [lazyrope.Segment(document, base=1)])])
        step.update(batch)
        ```
    """

    def __init__(self, pages: Tensor, *, capacity: StepCapacity) -> None:
        """
        Args:
            pages: Page lists, int32 on the device, of any length: indices of pages of the pool. A document's first_page
                is an index into this tensor. The batch refers to it and reads it only on the device.
            capacity: The most that the batch can hold.

        Raises:
            SpecError: The capacity or the tensor is illegal.
            DriverError: There is too little memory.
        """

    def fill(self, requests: Sequence[Request]) -> None:
        """Replaces the requests. Steps use them after the next ``update``.

        Args:
            requests: The requests, in the order of their query tokens in q.

        Raises:
            SpecError: A position is no int32; a segment's start or length is negative or beyond its document; or the
                capacity does not suffice. The message names the request and the segment, and the batch keeps its
                previous requests.
        """

    @property
    def capacity(self) -> StepCapacity:
        """The most that the batch can hold."""

    @property
    def pages(self) -> Any:
        """The tensor of page lists that the batch was made with."""

    @property
    def num_requests(self) -> int:
        """The number of requests of the latest fill."""

    @property
    def num_segments(self) -> int:
        """The number of segments of all requests."""

    @property
    def num_tokens(self) -> int:
        """The number of query tokens of all requests."""

    @property
    def page_indptr(self) -> list[int]:
        """The place of each segment's first page in the masses of pages, [segments + 1].

        The last number is that of all pages. A page here is a run of 16 slots of the segment's page list, whatever the
        page size of the pool: the first page has the segment's first token, and a segment that begins inside a page
        has only some of its tokens.
        """

    @property
    def mass_pages(self) -> int:
        """The ``mass_pages`` of a :class:`StepCapacity` that has room for the masses of these requests."""

    @property
    def _values(self) -> dict[str, list[int]]: ...

@final
class Step:
    """The requests that one pass of a model serves, in device memory of a fixed capacity.

    :meth:`Attention.plan` makes a step, the attention of every layer uses it, and :meth:`update` refills it. A step
    serves one stream at a time.
    """

    @overload
    def update(
        self,
        q_indptr: Tensor,
        q_position: Tensor,
        segments: Segments,
        pages: Tensor,
        *,
        check: bool = False,
        stream: int | None = None,
    ) -> None:
        """Refills the step in place, so that a captured CUDA graph replays with these requests.

        The call runs on the stream and does not wait for it. The requests must fit the step's capacity. A batch is
        refused during stream capture.

        Args:
            q_indptr: Offsets into q, int32 [requests + 1].
            q_position: Logical positions of the query tokens, int32 [query tokens].
            segments: The segments of all requests.
            pages: Page lists, int32: indices of pages of the pool.
            check: If True, the call waits for the stream and checks all values. It is refused during stream capture.
            stream: A cudaStream_t or CUstream. The default is the current stream of q_indptr's framework, or that of
                the batch's ``pages``.

        Raises:
            SpecError: As in :meth:`Attention.plan`.
            DriverError: A call of the driver failed.
        """

    @overload
    def update(self, batch: Batch, *, check: bool = False, stream: int | None = None) -> None: ...
    @property
    def capacity(self) -> StepCapacity:
        """The most that the step can hold."""

    @property
    def page_size(self) -> int:
        """The number of slots of a page."""

    @property
    def layout(self) -> Literal["NHD", "HND"]:
        """The order of the pool's dimensions, "NHD" or "HND", as in :meth:`Attention.plan`."""

    @property
    def num_tokens(self) -> int:
        """The number of query tokens of the latest update."""

    @property
    def nbytes(self) -> int:
        """The bytes of device memory that the step takes."""

    @property
    def handle(self) -> int:
        """The number of this object in the operators of :mod:`lazyrope.torch`, unique in this process."""

@final
class AppendStep:
    """The slots of the new keys and values of one pass, the same for every layer.

    :meth:`Attention.plan_append` makes it. A :class:`Reposition` takes two of them: the slots that it reads and the
    slots that it writes.
    """

    @overload
    def update(
        self,
        spans: TokenSpans,
        pages: Tensor,
        *,
        check: bool = False,
        stream: int | None = None,
    ) -> None:
        """Refills the step in place, so that a captured CUDA graph replays with these tokens.

        The tokens are given as spans with their page lists, or as one :class:`TokenSlots`. A graph may capture this
        call. Its replay reads the tensors again.

        Args:
            spans: The tokens of the rows of k and v, and their slots.
            pages: Page lists, int32: indices of pages of the pool.
            check: If True, the call waits for the stream and checks all values. It is refused during stream capture.
            stream: A cudaStream_t or CUstream. The default is the current stream of the framework of spans.indptr, or
                of slots.slot_mapping.

        Raises:
            SpecError: As in :meth:`Attention.plan_append`.
            DriverError: A call of the driver failed.
        """

    @overload
    def update(self, slots: TokenSlots, *, check: bool = False, stream: int | None = None) -> None: ...
    @property
    def capacity(self) -> AppendCapacity:
        """The most that the step can hold."""

    @property
    def page_size(self) -> int:
        """The number of slots of a page."""

    @property
    def layout(self) -> Literal["NHD", "HND"]:
        """The order of the pool's dimensions, "NHD" or "HND", as in :meth:`Attention.plan`."""

    @property
    def handle(self) -> int:
        """The number of this object in the operators of :mod:`lazyrope.torch`, unique in this process."""

def batch(requests: Sequence[Request], pages: Tensor, capacity: StepCapacity | None = None) -> Batch:
    """Makes a batch and fills it.

    Args:
        requests: The requests, in the order of their query tokens in q.
        pages: Page lists, int32 on the device, of any length: indices of pages of the pool.
        capacity: The most that the batch can hold. The default is exactly what these requests need.

    Returns:
        The batch, ready for :meth:`Attention.plan`.

    Raises:
        SpecError: As in :meth:`Batch.fill`, or the capacity is illegal.
        DriverError: There is too little memory.

    Example:
        ```python
        request = lazyrope.Request([140, 141], [lazyrope.Segment(document, base=0)])
        step = kernel.plan(lazyrope.batch([request], pages))
        ```
    """
