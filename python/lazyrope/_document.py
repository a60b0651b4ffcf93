"""What a document store hands out."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field

from ._paging import Pages
from .errors import InsertError, StoreError


class State(enum.Enum):
    FILLING = "being filled"
    READY = "ready"
    ABANDONED = "abandoned by its filler"
    EVICTED = "evicted"


@dataclass(eq=False)
class PageRun(Pages):
    """Private pages, from :meth:`DocumentStore.allocate`. ``num_tokens`` is what they were asked to have room for;
    ``first_page``, ``page_ids``, ``num_pages`` and ``num_bytes`` are as a :class:`Document`'s."""


@dataclass(eq=False)
class Document(Pages):
    """A document in the store, from :meth:`DocumentStore.acquire`. It stays while the caller has a reference.

    Attributes:
        key: hexadecimal; of its tokens, salt and model.
        num_tokens: its tokens; token i lies in slot i % page_size of page page_ids[i // page_size].
        first_page: index into the store's ``pages`` of its page list.
        page_ids: the page list: indices of pages of the pool.
        num_pages, num_bytes: its pages, and their bytes: all layers, keys and values.
    """

    key: str
    _changed: threading.Condition = field(repr=False)
    # What changes, under the store's lock.
    _state: State = State.FILLING
    _references: int = 1
    _pins: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether it is committed, and not evicted since."""
        return self._state is State.READY

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the document is ready, or for so many seconds at most.

        Raises:
            InsertError: its filler abandoned it.
            TimeoutError: it is still being filled.
            StoreError: it is evicted: the caller had no reference.
        """
        with self._changed:
            self._changed.wait_for(self._is_settled, timeout)
            if self._state is State.FILLING:
                raise TimeoutError(f"{self._name} is still being filled after {timeout} s")
            if self._state is State.ABANDONED:
                raise InsertError(f"{self._name} was abandoned by its filler: release it, then acquire it to fill it")
            if self._state is State.EVICTED:
                raise StoreError(f"{self._name} was evicted: wait for a document only while holding a reference to it")

    def _is_settled(self) -> bool:
        return self._state is not State.FILLING

    @property
    def _name(self) -> str:
        return f"document {self.key[:12]} ({self.num_tokens} tokens)"


@dataclass(frozen=True)
class Stats:
    """A store at one moment, and what it has counted since it was made.

    Attributes:
        hits: acquires and lookups that found their document, ready or being filled.
        misses: acquires that made a document, and lookups that found none.
        evictions: documents evicted.
        documents: documents that can be found, ready or being filled.
        resident_bytes: pages of documents, with those abandoned but not yet released.
        private_bytes: pages of page runs.
        free_bytes: the other pages; the three add up to all pages.
        bytes_copied: what count_copied() was told.
        pinned: documents with a pin.
        referenced: documents with a reference, with those abandoned but not yet released.
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
        """Hits over hits and misses; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)
