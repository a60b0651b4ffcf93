"""The part of _core.pyi that is about steps. There is no such module at run time: import from lazyrope."""

from collections.abc import Sequence
from typing import Any, final, overload

from ._arguments import AppendCapacity, Segments, StepCapacity, TokenSpans
from ._batch import Request
from ._core import Tensor

@final
class Batch:
    """The requests of one pass of the model, given on the host. :meth:`Attention.plan` and :meth:`Step.update` take a
    batch in place of the four tensors.

    A batch has arrays on the device and pinned buffers on the host, all of a fixed capacity. :meth:`fill` checks the
    requests and keeps them; ``plan`` and ``update`` copy them to the device, in one asynchronous copy on the stream.
    Two buffers alternate, so a batch may be filled and given to ``update`` again while the last copy is under way. A
    batch serves one thread and one stream at a time.
    """

    def __init__(self, pages: Tensor, *, capacity: StepCapacity) -> None:
        """
        Args:
            pages: [any], int32 on the device; page lists: indices of pages of the pool. Documents' first_page are
                indices into it. The batch refers to it, and reads it only on the device.
            capacity: the most that the batch can hold.

        Raises:
            SpecError: the capacity or the tensor is illegal.
            DriverError: there is too little memory.
        """

    def fill(self, requests: Sequence[Request]) -> None:
        """Replaces the requests. Steps see them after the next ``update``.

        Args:
            requests: in the order of their query tokens in q.

        Raises:
            SpecError: a position is no int32; a segment's start or length is negative or beyond its document; or the
                capacity does not suffice. The message names request and segment, and the batch has the requests that
                it had.
        """

    @property
    def capacity(self) -> StepCapacity:
        """The most that the batch can hold."""

    @property
    def pages(self) -> Any:
        """The page lists that it was made with."""

    @property
    def num_requests(self) -> int: ...
    @property
    def num_segments(self) -> int:
        """Segments of all requests."""

    @property
    def num_tokens(self) -> int:
        """Query tokens of all requests."""

@final
class Step:
    """The requests that one pass of a model serves, in device memory of a fixed capacity. Made by
    :meth:`Attention.plan`, used by the attention of every layer, refilled by :meth:`update`. Serves one stream at a
    time."""

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
        """Refills the step in place, on the stream and without waiting, so that a captured graph replays with these
        requests. Arguments and errors are those of :meth:`Attention.plan`; the step's capacity must suffice. A batch
        is refused while the stream is captured."""

    @overload
    def update(self, batch: Batch, *, check: bool = False, stream: int | None = None) -> None: ...
    @property
    def capacity(self) -> StepCapacity:
        """The most that the step can hold."""

    @property
    def page_size(self) -> int: ...
    @property
    def layout(self) -> str: ...
    @property
    def num_tokens(self) -> int:
        """Query tokens of the latest update."""

    @property
    def nbytes(self) -> int:
        """Device memory that the step takes."""

    @property
    def handle(self) -> int:
        """As :attr:`Attention.handle`."""

@final
class AppendStep:
    """Where the new keys and values of one pass go, the same for every layer. Made by :meth:`Attention.plan_append`.
    Or where those lie that a :class:`Reposition` copies, and where they go."""

    def update(
        self,
        spans: TokenSpans,
        pages: Tensor,
        *,
        check: bool = False,
        stream: int | None = None,
    ) -> None:
        """Refills the step in place, as :meth:`Step.update`. Arguments and errors are those of
        :meth:`Attention.plan_append`."""

    @property
    def capacity(self) -> AppendCapacity:
        """The most that the step can hold."""

    @property
    def page_size(self) -> int: ...
    @property
    def layout(self) -> str: ...
    @property
    def handle(self) -> int:
        """As :attr:`Attention.handle`."""

def batch(requests: Sequence[Request], pages: Tensor, capacity: StepCapacity | None = None) -> Batch:
    """Makes a batch and fills it.

    Args:
        requests: in the order of their query tokens in q.
        pages: as of :class:`Batch`.
        capacity: the most that the batch can hold; by default exactly what these requests take.

    Raises:
        SpecError: as :meth:`Batch.fill`, or the capacity is illegal.
        DriverError: there is too little memory.
    """
