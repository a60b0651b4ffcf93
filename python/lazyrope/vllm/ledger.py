"""A ledger has what a worker knows of its requests: their documents, their blocks, and where blocks were written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import SpecError
from .homes import BlockHomes
from .layout import PromptLayout
from .plan import RequestView, Rows


class _Request:
    def __init__(self, layout: PromptLayout, blocks: list[int], computed: int) -> None:
        self.layout = layout
        self.blocks = blocks
        self.computed = computed
        self.view: RequestView | None = None


class Ledger:
    """The requests of a worker, in the order of its passes.

    For each pass, the worker reports what the scheduler has decided, by :meth:`drop`, :meth:`admit` and
    :meth:`extend`, and then calls :meth:`begin_pass`. The attention's metadata is made of :meth:`rows`. A ledger serves
    one thread.
    """

    def __init__(self, homes: BlockHomes) -> None:
        self._homes = homes
        self._requests: dict[str, _Request] = {}
        self._counts: Mapping[str, int] | None = None
        self._admitted: list[_Request] = []  # the requests that have no view yet

    @property
    def homes(self) -> BlockHomes:
        """The positions at which the blocks of the cache were written."""
        return self._homes

    @property
    def block_size(self) -> int:
        """The slots of a block."""
        return self._homes.block_size

    @property
    def num_requests(self) -> int:
        """The number of known requests, running or preempted."""
        return len(self._requests)

    def __contains__(self, request: str) -> bool:
        return request in self._requests

    @property
    def is_in_pass(self) -> bool:
        """True between :meth:`begin_pass` and :meth:`end_pass`."""
        return self._counts is not None

    def layout_of(self, request: str) -> PromptLayout:
        """Returns the documents of a known request."""
        return self._known(request).layout

    def admit(self, request: str, layout: PromptLayout, blocks: Sequence[int], computed: int) -> None:
        """Records a new request, or one that is resumed after a preemption.

        Args:
            request: The request's name. What was known under this name is replaced.
            layout: The documents of its prompt.
            blocks: Its block table.
            computed: The tokens that it found in the cache, whole blocks.

        Raises:
            SpecError: The tokens that were found are no whole blocks.
        """
        if computed % self.block_size:
            raise SpecError(f"request {request} found {computed} tokens in the cache; these are no whole blocks")
        self._requests[request] = _Request(layout, list(blocks), computed)
        self._admitted.append(self._requests[request])

    def extend(self, request: str, blocks: Sequence[int], computed: int) -> None:
        """Records the new blocks of a known request, and the tokens that it has computed in earlier passes."""
        known = self._known(request)
        known.blocks += blocks
        known.computed = computed

    def drop(self, request: str) -> None:
        """Forgets a finished request. It may be unknown: not every request ran here."""
        self._requests.pop(request, None)

    def begin_pass(self, counts: Mapping[str, int]) -> None:
        """Begins a pass: records the homes of all blocks that it writes, and then what its new requests see.

        The order matters. A request may find a block that another request writes in this same pass.

        Args:
            counts: The tokens that each request of the pass computes.
        """
        running = [(self._known(request), count) for request, count in counts.items()]
        self._homes.write([(known.blocks, known.computed, count) for known, count in running])
        for known in self._admitted:
            cached = known.blocks[: known.computed // self.block_size]
            known.view = RequestView(known.layout, self._homes.read(cached))
        self._admitted = []
        self._counts = counts

    def end_pass(self) -> None:
        """Ends a pass. Metadata that is made after it belongs to no request."""
        self._counts = None

    def rows(self, requests: Sequence[str]) -> list[Rows]:
        """Returns the query rows of the pass, in the order of these requests.

        Raises:
            SpecError: No pass has begun, or a request is not in it.
        """
        counts = self._counts
        if counts is None:
            raise SpecError("rows() is called outside of a pass")
        if not counts.keys() >= set(requests):
            missing = next(request for request in requests if request not in counts)
            raise SpecError(f"request {missing} is not in this pass")
        running = [(self._known(request), counts[request]) for request in requests]
        return [Rows(known.view, known.computed, count) for known, count in running]

    def _known(self, request: str) -> _Request:
        try:
            return self._requests[request]
        except KeyError:
            raise SpecError(f"request {request} is unknown to this worker") from None
