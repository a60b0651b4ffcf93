"""Documents in a paged pool: each is stored once, whatever requests use it and wherever they put it.

    store = DocumentStore(spec, num_layers=32, budget="8GiB", model="meta-llama/Llama-3.1-8B")
    with store.use(tokens, fill) as document:  # fill(document) runs only if the store does not have it
        ...  # attention over store.k_pool(layer), store.v_pool(layer), store.pages, document.first_page

The store hands out memory and knows nothing of the work on it. On CUDA, put all work on the pool and on the page lists
on one stream, or order it yourself: pages that one document gives up are another's at once, a page list is written from
the stream that is current when its pages are allocated, and a document is ready as soon as commit() says so.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ._core import AttentionSpec
from ._document import Document, PageRun, State, Stats
from ._keys import Keys, int64_array
from ._paging import Paging, bytes_of, count
from .errors import DocumentTooLarge, InsertError, SpecError, StoreError, StoreFull

__all__ = [
    "Document",
    "DocumentStore",
    "DocumentTooLarge",
    "InsertError",
    "PageRun",
    "Stats",
    "StoreError",
    "StoreFull",
]


class DocumentStore:
    """The KV of documents, each once, and private pages of requests: a paged pool of all layers under one budget.

    A document is found by its tokens. It stays while it is referenced or pinned, or until its pages are needed:
    unreferenced, unpinned documents are evicted, the least recently used first. All methods may be called from several
    threads; for the order of work on the device see the module.

    Attributes:
        pages: int32 on the device; all page lists. A document's is written once, when its pages are allocated.
        page_size, page_bytes: tokens and bytes of a page: all layers, keys and values.
        num_pages: pages of the pool.
        budget: bytes given; the pool takes num_pages * page_bytes of them. The page lists come on top.
        device, dtype: torch's, of the pool.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        *,
        num_layers: int,
        budget: int | str,
        model: str = "",
        page_size: int = 16,
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cuda",
    ) -> None:
        """
        Args:
            spec: the attention of every layer.
            num_layers: at least 1.
            budget: bytes, or text: a number followed by nothing, K, M, G or T (powers of 1024) or KiB, MiB, GiB, TiB.
            model: name and revision; a part of every key.
            page_size: tokens of a page, a multiple of 16.
            dtype: of the pool, a torch floating-point type; the spec's kv_dtype by default.
            device: of the pool.

        Raises:
            SpecError: a value is not allowed, or the budget is less than one page.
        """
        dtype = getattr(torch, spec.kv_dtype) if dtype is None else dtype
        _require(num_layers >= 1, f"num_layers is {num_layers}; it must be at least 1")
        _require(page_size >= 16 and page_size % 16 == 0, f"page_size is {page_size}; it must be a multiple of 16")
        _require(dtype.is_floating_point, f"dtype is {dtype}; a pool holds a floating-point type")
        page = (page_size, spec.num_kv_heads, spec.head_dim)
        self.budget, self.page_size, self.dtype = bytes_of(budget), page_size, dtype
        self.page_bytes = num_layers * 2 * math.prod(page) * dtype.itemsize
        self.num_pages = self.budget // self.page_bytes
        _require(
            self.num_pages >= 1,
            f"budget is {budget!r}, {self.budget} bytes; one page of {page_size} tokens takes {self.page_bytes} bytes: "
            f"{num_layers} layers, {spec.num_kv_heads} KV heads, head_dim {spec.head_dim}, {dtype}. Give at least that",
        )
        pool = torch.empty((num_layers, 2, self.num_pages, *page), dtype=dtype, device=device)
        self._layers = [layer.unbind() for layer in pool.unbind()]
        self.device = pool.device
        self._paging = Paging(self.num_pages, self.device)
        self.pages = self._paging.lists.array
        self._keys = Keys(spec, num_layers, model, dtype)
        self._changed = threading.Condition()
        self._documents: OrderedDict[str, Document] = OrderedDict()  # the latest release last
        self._abandoned: set[Document] = set()  # with references still
        self._runs: set[PageRun] = set()
        self._hits = self._misses = self._evictions = self._bytes_copied = 0

    def k_pool(self, layer: int) -> torch.Tensor:
        """Keys of a layer: [num_pages, page_size, kv_heads, head_dim], a view."""
        return self._layers[layer][0]

    def v_pool(self, layer: int) -> torch.Tensor:
        """Values of a layer: [num_pages, page_size, kv_heads, head_dim], a view."""
        return self._layers[layer][1]

    def key(self, tokens: Sequence[int] | torch.Tensor, *, salt: str = "") -> str:
        """SHA-256, hexadecimal, of all that decides a document's KV: tokens, salt, model, layers, KV heads, head_dim,
        the pool's dtype, RoPE and key form.

        Args:
            tokens: integers: a sequence, or a one-dimensional tensor or array; at least one.
            salt: keeps documents apart that have the same tokens, those of two tenants for one.

        Raises:
            SpecError: there are no tokens, or they are no 64-bit integers.
        """
        return self._keys.key(int64_array(tokens), salt)

    def acquire(self, tokens: Sequence[int] | torch.Tensor, *, salt: str = "") -> tuple[Document, bool]:
        """A reference to the document with these tokens; :meth:`release` gives it back.

        Args:
            tokens, salt: as in :meth:`key`.

        Returns:
            The document, and whether it is new. If so, the caller fills its pages and then calls :meth:`commit`, or
            :meth:`abandon`. Otherwise it is ready, or another caller is filling it: :meth:`Document.wait`.

        Raises:
            SpecError: as :meth:`key`.
            DocumentTooLarge, StoreFull: there is no room for it; nothing has changed.
        """
        values = int64_array(tokens)
        key = self._keys.key(values, salt)
        with self._changed:
            return self._acquire(key, len(values))

    def reserve(
        self, documents: Sequence[Sequence[int] | torch.Tensor], num_tokens: int, *, salt: str = ""
    ) -> tuple[list[tuple[Document, bool]], PageRun]:
        """All that a request needs, or nothing: a request that waits for room holds none, and is not counted.

        Args:
            documents: tokens of each, as in :meth:`key`; the same one may be there twice.
            num_tokens: of private pages, as in :meth:`allocate`.
            salt: as in :meth:`key`.

        Returns:
            What :meth:`acquire` returns, of each document, and what :meth:`allocate` returns.

        Raises:
            SpecError: as :meth:`key` and :meth:`allocate`.
            DocumentTooLarge: all of it together is larger than the whole budget.
            StoreFull: there is no room for all of it now. In either case, nothing has changed.
        """
        _require(num_tokens >= 1, f"num_tokens is {num_tokens}; it must be at least 1")
        wanted = [(self._keys.key(values, salt), len(values)) for values in map(int64_array, documents)]
        with self._changed:
            self._make_room_for_all(wanted, num_tokens)
            found: list[tuple[Document, bool]] = []
            try:
                for key, length in wanted:
                    found.append(self._acquire(key, length))
                return found, self.allocate(num_tokens)
            except BaseException:  # the device's
                for document, is_new in reversed(found):
                    if is_new:
                        self.abandon(document)
                    self.release(document)
                raise

    def lookup(self, tokens: Sequence[int] | torch.Tensor, *, salt: str = "") -> Document | None:
        """A reference to the document with these tokens, ready or being filled, or None. Allocates nothing; arguments
        and SpecErrors are those of :meth:`key`."""
        key = self.key(tokens, salt=salt)
        with self._changed:
            document = self._reference(key)
            self._misses += document is None
            return document

    def commit(self, document: Document) -> None:
        """Says that a new document's pages are filled (on CUDA: that the work which fills them is on the stream).
        A StoreError if it is not being filled."""
        with self._changed:
            self._require_state(document, "commit", State.FILLING)
            document._state = State.READY
            self._changed.notify_all()

    def abandon(self, document: Document) -> None:
        """Says that filling a new document failed: it can be acquired anew at once, :meth:`Document.wait` raises
        InsertError, and its pages return when the last reference (the filler's is one) is released. A StoreError if it
        is not being filled."""
        with self._changed:
            self._require_state(document, "abandon", State.FILLING)
            del self._documents[document.key]
            self._abandoned.add(document)
            document._state = State.ABANDONED
            self._changed.notify_all()

    def release(self, document: Document) -> None:
        """Gives one reference back. A StoreError if there is none, or if it is the last and the document is still being
        filled."""
        with self._changed:
            self._require_state(document, "release", State.FILLING, State.READY, State.ABANDONED)
            if document._references == 0:
                raise StoreError(f"{document._name} is released more often than it was acquired")
            if document._references == 1 and document._state is State.FILLING:
                raise StoreError(f"{document._name} is being filled: commit or abandon it before its last release")
            document._references -= 1
            if document._state is not State.ABANDONED:
                self._documents.move_to_end(document.key)
            elif document._references == 0:
                self._abandoned.remove(document)
                self._paging.free_pages(document)

    def pin(self, document: Document) -> None:
        """Keeps a document from being evicted, referenced or not, until :meth:`unpin` was called as often. A StoreError
        if the document is evicted or abandoned."""
        with self._changed:
            self._require_state(document, "pin", State.FILLING, State.READY)
            document._pins += 1

    def unpin(self, document: Document) -> None:
        """Takes one pin away, also of an abandoned document, where it holds nothing. A StoreError if there is none."""
        with self._changed:
            self._require_state(document, "unpin", *State)
            if document._pins == 0:
                raise StoreError(f"{document._name} is unpinned more often than it was pinned")
            document._pins -= 1

    @contextmanager
    def use(
        self, tokens: Sequence[int] | torch.Tensor, fill: Callable[[Document], None], *, salt: str = ""
    ) -> Iterator[Document]:
        """The document with these tokens, ready, for the length of a with statement. Threads that use one document at
        once get one copy, filled by one of them; the others wait, and if filling failed the next one tries.

        Args:
            tokens, salt: as in :meth:`key`.
            fill: writes a new document's pages; called without a lock. It must not use the same document.

        Raises:
            SpecError, DocumentTooLarge, StoreFull: as :meth:`acquire`.
            Exception: what fill raised; the document is abandoned then.
        """
        values = int64_array(tokens)
        key = self._keys.key(values, salt)
        with self._changed:
            self._await_fill(key)
            document, is_new = self._acquire(key, len(values))
        if is_new:
            self._fill(document, fill)
        try:
            yield document
        finally:
            self.release(document)

    def allocate(self, num_tokens: int) -> PageRun:
        """Private pages with room for at least one token, under the same budget, until :meth:`free`.

        Raises:
            SpecError: num_tokens is less than 1.
            DocumentTooLarge, StoreFull: there is no room; nothing has changed.
        """
        _require(num_tokens >= 1, f"num_tokens is {num_tokens}; it must be at least 1")
        with self._changed:
            run = PageRun(*self._take(num_tokens))
            self._runs.add(run)
            return run

    def free(self, run: PageRun) -> None:
        """Gives private pages back. A StoreError if they are no pages of this store, or were given back before."""
        with self._changed:
            if run not in self._runs:
                raise StoreError(f"{run} is not allocated here: it was freed before, or is another store's")
            self._runs.remove(run)
            self._paging.free_pages(run)

    def room(self) -> int:
        """Pages that are free or evictable now: what the next acquire or allocate can have."""
        with self._changed:
            return self._paging.num_free + count(self._evictable())

    def clear(self) -> None:
        """Evicts every document that is ready, unreferenced and unpinned."""
        with self._changed:
            self._evict(list(self._evictable()))

    def count_copied(self, num_bytes: int) -> None:
        """Adds to the statistics' bytes_copied: KV that a caller copied instead of sharing it."""
        _require(num_bytes >= 0, f"num_bytes is {num_bytes}; it must be at least 0")
        with self._changed:
            self._bytes_copied += num_bytes

    @property
    def stats(self) -> Stats:
        with self._changed:
            documents = [*self._documents.values(), *self._abandoned]
            return Stats(
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                documents=len(self._documents),
                resident_bytes=count(documents) * self.page_bytes,
                private_bytes=count(self._runs) * self.page_bytes,
                free_bytes=self._paging.num_free * self.page_bytes,
                bytes_copied=self._bytes_copied,
                pinned=sum(document._pins > 0 for document in self._documents.values()),
                referenced=sum(document._references > 0 for document in documents),
            )

    def check(self) -> None:
        """Asserts every invariant of the store, for tests. Waits for the device."""
        with self._changed:
            owners = [*self._documents.values(), *self._abandoned, *self._runs]
            self._paging.check(owners)
            for owner in owners:
                assert owner.num_pages == -(-owner.num_tokens // self.page_size), f"{owner} has {owner.num_pages} pages"
            for key, document in self._documents.items():
                assert document.key == key and document._state in (State.FILLING, State.READY), document
                assert document._pins >= 0 and document._references >= (not document.is_ready), document
            for document in self._abandoned:
                assert document._state is State.ABANDONED and document._references > 0, document

    def _reference(self, key: str) -> Document | None:
        if document := self._documents.get(key):
            document._references += 1
            self._hits += 1
        return document

    def _acquire(self, key: str, num_tokens: int) -> tuple[Document, bool]:
        if document := self._reference(key):
            return document, False
        document = Document(*self._take(num_tokens), key, self._changed)
        self._documents[key] = document
        self._misses += 1
        return document, True

    def _await_fill(self, key: str) -> None:
        """Waits until nobody fills this document. With a pin, so that it is not evicted before this thread wakes; a
        reference would keep an abandoned document's pages, which the next filler may need."""
        while (document := self._documents.get(key)) and not document.is_ready:
            self.pin(document)
            try:
                self._changed.wait_for(document._is_settled)
            finally:
                self.unpin(document)

    def _fill(self, document: Document, fill: Callable[[Document], None]) -> None:
        try:
            fill(document)
        except BaseException:
            with self._changed:  # at once, so that those who wait for the document find its pages free
                self.abandon(document)
                self.release(document)
            raise
        self.commit(document)

    def _require_state(self, document: Document, action: str, *states: State) -> None:
        if document._changed is not self._changed:
            raise StoreError(f"cannot {action} {document._name}: it is another store's")
        if document._state not in states:
            raise StoreError(f"cannot {action} {document._name}: it is {document._state.value}")

    def _take(self, num_tokens: int) -> tuple[int, int, int, tuple[int, ...]]:
        """The fields of Pages, of pages that are now taken."""
        needed, _ = self._pages_and_tokens([num_tokens])
        self._make_room(needed, num_tokens)
        return num_tokens, needed * self.page_bytes, *self._paging.take(needed)

    def _evictable(self) -> Iterator[Document]:
        """Who may be evicted, the least recently used first; never a document that is being filled, as its filler has a
        reference."""
        for document in self._documents.values():
            if document._references == 0 and document._pins == 0:
                yield document

    def _evict(self, documents: Sequence[Document]) -> None:
        for document in documents:
            del self._documents[document.key]
            document._state = State.EVICTED
            self._paging.free_pages(document)
        self._evictions += len(documents)

    def _require_fit(self, needed: int, num_tokens: int) -> None:
        if needed > self.num_pages:
            raise DocumentTooLarge(
                f"{num_tokens} tokens need {needed} pages of {self.page_size} tokens; the whole budget, {self.budget} "
                f"bytes, has {self.num_pages}: a budget of {needed * self.page_bytes} bytes would do"
            )

    def _make_room(self, needed: int, num_tokens: int) -> None:
        self._require_fit(needed, num_tokens)
        victims: list[Document] = []
        room = self._paging.num_free
        for document in self._evictable():
            if room >= needed:
                break
            victims.append(document)
            room += document.num_pages
        if room < needed:
            raise StoreFull(f"{num_tokens} tokens need {needed} pages; {self._occupancy()}")
        self._evict(victims)

    def _make_room_for_all(self, wanted: Sequence[tuple[str, int]], num_tokens: int) -> None:
        """Of the documents with these keys and lengths, those that are there stay."""
        resident = [document for key, _ in wanted if (document := self._documents.get(key))]
        missing = {key: length for key, length in wanted if key not in self._documents}
        self._require_fit(*self._pages_and_tokens([*dict(wanted).values(), num_tokens]))
        for document in resident:
            document._references += 1
        try:
            self._make_room(*self._pages_and_tokens([*missing.values(), num_tokens]))
        finally:
            for document in resident:
                document._references -= 1

    def _pages_and_tokens(self, lengths: Sequence[int]) -> tuple[int, int]:
        """Pages and tokens."""
        return sum(-(-length // self.page_size) for length in lengths), sum(lengths)

    def _occupancy(self) -> str:
        documents = [*self._documents.values(), *self._abandoned]
        referenced = [document for document in documents if document._references]
        pinned = [document for document in documents if document._pins and not document._references]
        return (
            f"of {self.num_pages}, {self._paging.num_free} are free, {count(self._evictable())} evictable, "
            f"{count(pinned)} pinned, {count(referenced)} referenced and {count(self._runs)} private: release, unpin "
            "or free some, or raise the budget"
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SpecError(message)
