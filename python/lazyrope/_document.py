"""The documents and page runs of a document store, and its statistics."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ._checks import checked
from ._monitor import Monitor
from ._paging import Pages, count
from .errors import InsertError, StoreError


class State(enum.Enum):
    FILLING = "being filled"
    READY = "ready"
    ABANDONED = "abandoned by its filler"
    EVICTED = "evicted"


@dataclass(eq=False)
class PageRun(Pages):
    """Private pages of a request. :meth:`DocumentStore.allocate` makes them.

    Attributes:
        num_tokens: The number of tokens that the caller asked for.
        num_bytes: The bytes of the pages: all layers, keys and values.
        first_page: The index in the store's ``pages`` at which the page list begins.
        page_ids: The page list: indices of pages of the pool.
    """


@dataclass(eq=False)
class Document(Pages):
    """A document in the store. :meth:`DocumentStore.acquire` returns it, and it stays while the caller has a reference.

    Attributes:
        key: The hexadecimal key of its tokens, salt and model.
        num_tokens: The number of tokens. Token i is in slot i % page_size of page page_ids[i // page_size].
        num_bytes: The bytes of its pages: all layers, keys and values.
        first_page: The index in the store's ``pages`` at which its page list begins.
        page_ids: The page list: indices of pages of the pool.
        num_positions: The positions that it takes in a request: its tokens, or those of the document that a memory
            stands for. What follows it begins at its base + num_positions.
        has_entries: True for a memory of attention states, which is read by :meth:`Precomputed.segments`.
    """

    key: str
    _monitor: Monitor = field(repr=False)
    # The store's monitor guards these fields.
    _state: State = State.FILLING
    _references: int = 0
    _pins: int = 0
    # A use is a reference, and a thread that waits for the filler is a pin. They are sets, so that adding and removing
    # is one step that can be repeated after an exception.
    _uses: set[Use] = field(default_factory=set, repr=False)
    _waiters: set[Use] = field(default_factory=set, repr=False)
    num_positions: int = 0
    has_entries: bool = False

    def __post_init__(self) -> None:
        self.num_positions = self.num_positions or self.num_tokens

    @property
    def is_ready(self) -> bool:
        """True if the document is committed and has not been evicted since."""
        return self._state is State.READY

    @checked
    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the document is ready.

        Args:
            timeout: The most seconds to wait. None: no limit.

        Raises:
            InsertError: The caller that filled the document abandoned it.
            TimeoutError: The document is still being filled.
            StoreError: The document is evicted, for the caller had no reference.
        """
        state = self._monitor.run(lambda: self._settled_state(timeout))
        if state is State.FILLING:
            raise TimeoutError(f"{self._name} is still being filled after {timeout} s")
        if state is State.ABANDONED:
            raise InsertError(f"{self._name} was abandoned by its filler: release it, then acquire it to fill it")
        if state is State.EVICTED:
            raise StoreError(f"{self._name} was evicted: wait for a document only while holding a reference to it")

    def _require_state(self, monitor: Monitor, action: str, *states: State) -> None:
        """Raises StoreError if the document is not of the store with this monitor, or in none of these states."""
        if self._monitor is not monitor:
            raise StoreError(f"cannot {action} {self._name}: it belongs to another store")
        if self._state not in states:
            raise StoreError(f"cannot {action} {self._name}: it is {self._state.value}")

    def _settled_state(self, timeout: float | None = None) -> State:
        self._monitor.changed.wait_for(self._is_settled, timeout)
        return self._state

    def _is_settled(self) -> bool:
        return self._state is not State.FILLING

    @property
    def _is_referenced(self) -> bool:
        return self._references > 0 or bool(self._uses)

    @property
    def _is_pinned(self) -> bool:
        return self._pins > 0 or bool(self._waiters)

    @property
    def _name(self) -> str:
        return f"document {self.key[:12]} ({self.num_tokens} tokens)"


class Use:
    """One with statement of :meth:`DocumentStore.use`.

    Attributes:
        document: The document that it uses or waits for, or None.
    """

    def __init__(self) -> None:
        self.document: Document | None = None


@dataclass(frozen=True)
class Stats:
    """The state of a store at one moment, and its counts since it was made.

    Attributes:
        hits: The acquires and lookups that found their document, ready or being filled.
        misses: The acquires that made a document, and the lookups that found none.
        evictions: The number of evicted documents.
        documents: The number of documents that can be found, ready or being filled.
        resident_bytes: The bytes of documents' pages, including abandoned documents that are not released yet.
        private_bytes: The bytes of page runs.
        free_bytes: The bytes of all other pages. The three add up to the pool.
        bytes_copied: The sum of the arguments of ``count_copied()``.
        pinned: The number of documents with a pin.
        referenced: The number of documents with a reference, including abandoned ones that are not released yet.
    """

    hits: int
    misses: int
    evictions: int
    documents: int
    resident_bytes: int
    private_bytes: int
    free_bytes: int
    bytes_copied: int
    pinned: int
    referenced: int

    @property
    def hit_rate(self) -> float:
        """The hits divided by the hits and misses, or 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)


@dataclass
class Counts:
    """The counts of a store since it was made, as :class:`Stats` has them."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes_copied: int = 0

    def stats(
        self,
        documents: Collection[Document],
        abandoned: Collection[Document],
        runs: Collection[PageRun],
        num_free: int,
        page_bytes: int,
    ) -> Stats:
        """Returns these counts with the present state of a store."""
        owners = [*documents, *abandoned]
        return Stats(
            **vars(self),
            documents=len(documents),
            resident_bytes=count(owners) * page_bytes,
            private_bytes=count(runs) * page_bytes,
            free_bytes=num_free * page_bytes,
            pinned=sum(document._is_pinned for document in documents),
            referenced=sum(document._is_referenced for document in owners),
        )


def check_owners(
    owners: Sequence[Pages], documents: Mapping[str, Document], abandoned: Collection[Document], page_size: int
) -> None:
    """Asserts the invariants of all documents and page runs of a store.

    Args:
        owners: All that have pages.
        documents: The documents that can be found, by their keys.
        abandoned: The abandoned documents that still have references.
        page_size: The tokens of a page.
    """
    for owner in owners:
        assert owner.num_pages == -(-owner.num_tokens // page_size), f"{owner} has {owner.num_pages} pages"
    for key, document in documents.items():
        assert document.key == key and document._state in (State.FILLING, State.READY), document
        assert document._pins >= 0 and document._references >= 0, document
        assert document.is_ready or document._is_referenced, document
    for document in abandoned:
        assert document._state is State.ABANDONED and document._is_referenced, document


def occupancy(
    num_pages: int,
    num_free: int,
    documents: Sequence[Document],
    evictable: Sequence[Document],
    runs: Collection[PageRun],
    kept: Collection[Document],
) -> str:
    """Returns the text of an error that says what the pages of a store are in use for.

    Args:
        num_pages: The pages of the store.
        num_free: The free pages.
        documents: All documents that have pages.
        evictable: Those of them that may be evicted.
        runs: The page runs.
        kept: Documents that count as referenced.
    """
    referenced = [document for document in documents if document._is_referenced or document in kept]
    pinned = [document for document in documents if document._is_pinned and document not in referenced]
    return (
        f"of {num_pages}, {num_free} are free, {count(evictable)} evictable, {count(pinned)} pinned, "
        f"{count(referenced)} referenced and {count(runs)} private: release, unpin or free some, or raise the budget"
    )
