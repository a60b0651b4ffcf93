"""A store of documents in a paged pool. Each document is stored once, whichever requests use it and at any position.

    store = lazyrope.documents.DocumentStore(spec, num_layers=32, budget="8GiB", model="meta-llama/Llama-3.1-8B")
    with store.use(tokens, fill) as document:  # fill(document) runs only if the store does not have it
        request = lazyrope.Request(positions, [lazyrope.Segment(document, base=0)])
        step = kernel.plan(lazyrope.batch([request], store.pages))
        out, lse = kernel(q, store.k_pool(layer), store.v_pool(layer), step)

The store manages memory and does not order the work on it. On CUDA, run all work on the pool and on the page lists on
one stream, or order it yourself: an evicted document's pages may belong to another one at once, a page list is written
on the stream that is current when its pages are allocated, and a document is ready when commit() returns.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import torch

from ._checks import checked
from ._core import AttentionSpec, LayerGroup
from ._document import Counts, Document, PageRun, State, Stats, Use, check_owners, occupancy
from ._keys import Keys
from ._layers import groups_of, num_layers_of
from ._monitor import Monitor, exclusive
from ._paging import Paging, count, pages_and_tokens
from ._pool import Pool, require
from ._precomputed import COMPACT, STATES, Precomputed, memory_kind, positions_of
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

# Pickles and messages name this module, which is the public one.
Document.__module__ = PageRun.__module__ = Stats.__module__ = __name__


class DocumentStore:
    """The KV of documents, one copy each, and private pages of requests: a paged pool of all layers under one budget.

    A document is found by its tokens. It stays while it is referenced or pinned, and after that until its pages are
    needed: the store evicts unreferenced, unpinned documents, the least recently used first. All methods may be called
    from several threads. The module describes the order of work on the device.

    :meth:`use` gives its reference back whenever an exception comes. :meth:`acquire`, :meth:`lookup`, :meth:`reserve`
    and :meth:`allocate` cannot promise that: Ctrl-C can come after the store has recorded the reference or the pages
    and before the caller has assigned the result. The store stays consistent, but nobody can give them back. A program
    that continues after Ctrl-C takes its documents by :meth:`use`, or calls the others in another thread: Python raises
    KeyboardInterrupt in the main thread alone.

    Attributes:
        pages: All page lists, int32 on the device. A document's list is written once, when its pages are allocated.
        page_size: The tokens of a page.
        page_bytes: The bytes of a page: all layers, keys and values.
        num_pages: The pages of the pool.
        budget: The given bytes. The pool takes num_pages * page_bytes of them. The page lists are not counted.
        device: The pool's torch.device.
        dtype: The pool's torch.dtype.
    """

    @checked
    def __init__(
        self,
        spec: AttentionSpec | Sequence[LayerGroup],
        *,
        num_layers: int | None = None,
        budget: int | str,
        model: str = "",
        page_size: int = 16,
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cuda",
        memories: bool | str = False,
    ) -> None:
        """
        Args:
            spec: The attention of every layer, or :meth:`AttentionSpec.groups_from_hf` for layers that differ.
            num_layers: The number of layers, at least 1. Groups state it themselves.
            budget: The bytes of the pool, or text: a number alone, or followed by K, M, G or T (powers of 1024) or by
                KiB, MiB, GiB or TiB.
            model: The model's name and revision, a part of every key.
            page_size: The tokens of a page, a multiple of 16.
            dtype: The pool's type, a torch floating-point type. The default is the spec's kv_dtype.
            device: The pool's device.
            memories: True or "compact": the store also keeps compact memories of :mod:`lazyrope.memory`. Each slot then
                has a bias for each KV head, of 4 bytes, under the same budget. "states": it keeps those of attention
                states instead, and the numbers are their log-sum-exps.

        Raises:
            SpecError: A value is not allowed, the layers' pages differ, or the budget is less than one page.
        """
        groups = groups_of(spec, num_layers)
        spec, num_layers, page_size = groups[0].spec, num_layers_of(groups), operator.index(page_size)
        dtype = getattr(torch, spec.kv_dtype) if dtype is None else dtype
        pool = Pool(spec, num_layers, budget, page_size, dtype, device, memory_kind(memories))
        self.budget, self.page_size, self.dtype, self.device = pool.budget, page_size, dtype, pool.device
        self.page_bytes, self.num_pages = pool.page_bytes, pool.num_pages
        self._layers, self._slot_logits = pool.layers, pool.slot_logits
        self._paging = Paging(self.num_pages, self.device)
        self.pages = self._paging.lists.array
        self._keys = Keys(groups, model, dtype, memories=memory_kind(memories))
        self._monitor = Monitor()
        self._documents: OrderedDict[str, Document] = OrderedDict()  # the most recently released is last
        self._abandoned: set[Document] = set()  # abandoned documents that still have references
        self._runs: set[PageRun] = set()
        self._counts = Counts()

    def __repr__(self) -> str:
        return (
            f"DocumentStore(num_pages={self.num_pages}, page_size={self.page_size}, page_bytes={self.page_bytes}, "
            f"budget={self.budget}, dtype={self.dtype}, device={str(self.device)!r})"
        )

    @checked
    def k_pool(self, layer: int) -> torch.Tensor:
        """Returns a view of a layer's keys, [num_pages, page_size, kv_heads, head_dim]."""
        return self._layers[layer][0]

    @checked
    def v_pool(self, layer: int) -> torch.Tensor:
        """Returns a view of a layer's values, [num_pages, page_size, kv_heads, head_dim]."""
        return self._layers[layer][1]

    @checked
    def key_bias(self, layer: int) -> torch.Tensor | None:
        """Returns a view of a layer's biases of keys, float32 [num_pages, kv_heads, page_size], or None."""
        return self._slot_logits_of(COMPACT, layer)

    @checked
    def entry_lse(self, layer: int) -> torch.Tensor | None:
        """Returns a view of a layer's log-sum-exps of entries, float32 [num_pages, kv_heads, page_size], or None."""
        return self._slot_logits_of(STATES, layer)

    def _slot_logits_of(self, kind: str, layer: int) -> torch.Tensor | None:
        logits = self._slot_logits
        return logits.layers[layer] if logits is not None and logits.kind == kind else None

    @property
    def model_key(self) -> str:
        """The hexadecimal hash of what all keys of documents have in common: the model, its layers, RoPE and dtype."""
        return self._keys.model

    @checked
    def key(self, tokens: Sequence[int] | torch.Tensor | Precomputed, *, salt: str = "", context: str = "") -> str:
        """Returns the key of a document: the hexadecimal SHA-256 of everything that decides its KV.

        It covers the tokens, salt, context, model, number of layers, KV heads, head_dim, the pool's dtype, RoPE and key
        form.

        Args:
            tokens: At least one integer: a sequence, or a one-dimensional tensor or array. Or a memory of
                :mod:`lazyrope.memory`.
            salt: A text that separates documents with the same tokens, for example those of two tenants.
            context: A text that identifies what the tokens see before them when they are computed, and their position
                then. :mod:`lazyrope.recovery` makes such texts. "": they see nothing, from position 0.

        Raises:
            SpecError: There are no tokens, or they are no 64-bit integers.
        """
        return self._keys.key_of(tokens, salt, context)[0]

    @checked
    def acquire(
        self, tokens: Sequence[int] | torch.Tensor | Precomputed, *, salt: str = "", context: str = ""
    ) -> tuple[Document, bool]:
        """Takes a reference to the document with these tokens. :meth:`release` gives it back.

        The caller must fill the pages of a new document, those of a memory by :meth:`fill`, and then call
        :meth:`commit` or :meth:`abandon`. Any other document is ready, or another caller is filling it: then call
        :meth:`Document.wait`.

        Args:
            tokens: The document's tokens, as in :meth:`key`.
            salt: As in :meth:`key`.
            context: As in :meth:`key`.

        Returns:
            The document, and True if it is new.

        Raises:
            SpecError: As in :meth:`key`.
            DocumentTooLarge: The document is larger than the whole budget. Nothing has changed.
            StoreFull: There is no room for the document now. Nothing has changed.
        """
        return self._acquire(*self._keys.key_of(tokens, salt, context), positions_of(tokens))

    @checked
    def reserve(
        self,
        documents: Sequence[Sequence[int] | torch.Tensor | Precomputed],
        num_tokens: int,
        *,
        salt: str = "",
        contexts: Sequence[str] | None = None,
    ) -> tuple[list[tuple[Document, bool]], PageRun]:
        """Takes everything that a request needs, or nothing.

        A request that finds no room holds no pages, and the statistics do not count it.

        Args:
            documents: The tokens of each document, as in :meth:`key`. A document may appear twice.
            num_tokens: The tokens of private pages, as in :meth:`allocate`.
            salt: As in :meth:`key`.
            contexts: The context of each document, as in :meth:`key`. None: "" for all.

        Returns:
            The result of :meth:`acquire` for each document, and the result of :meth:`allocate`.

        Raises:
            SpecError: As in :meth:`key` and :meth:`allocate`.
            DocumentTooLarge: All of it together is larger than the whole budget. Nothing has changed.
            StoreFull: There is no room for all of it now. Nothing has changed.
        """
        require(num_tokens >= 1, f"num_tokens is {num_tokens}; it must be at least 1")
        wanted = self._keys.keys(documents, salt, contexts)
        return self._reserve(wanted, num_tokens, [*map(positions_of, documents)])

    @checked
    def lookup(
        self, tokens: Sequence[int] | torch.Tensor | Precomputed, *, salt: str = "", context: str = ""
    ) -> Document | None:
        """Takes a reference to the document with these tokens if the store has it. It allocates nothing.

        Args:
            tokens: The document's tokens, as in :meth:`key`.
            salt: As in :meth:`key`.
            context: As in :meth:`key`.

        Returns:
            The document, ready or being filled, or None.

        Raises:
            SpecError: As in :meth:`key`.
        """
        return self._lookup(self.key(tokens, salt=salt, context=context))

    @checked
    @exclusive
    def fill(self, document: Document, memory: Precomputed, *, salt: str = "") -> None:
        """Copies a memory into the pages of the new document that was acquired with it. The caller then commits it.

        Raises:
            StoreError: The document is not being filled, or it was acquired with another memory or another salt.
        """
        document._require_state(self._monitor, "fill", State.FILLING)
        if not self._slot_logits or self._keys.key_of(memory, salt, "") != (document.key, document.num_tokens):
            raise StoreError(f"cannot fill {document._name}: it was acquired with another memory or another salt")
        self._slot_logits.write(self._layers, document.page_ids, memory)
        document.has_entries = memory.kind == STATES

    @checked
    @exclusive
    def commit(self, document: Document) -> None:
        """Marks a new document as ready. On CUDA, the work that fills its pages must be on the stream.

        Raises:
            StoreError: The document is not being filled.
        """
        document._require_state(self._monitor, "commit", State.FILLING)
        document._state = State.READY
        self._monitor.changed.notify_all()

    @checked
    @exclusive
    def abandon(self, document: Document) -> None:
        """Gives up a new document after its filling has failed.

        Its tokens can be acquired again at once, and :meth:`Document.wait` raises InsertError. Its pages are free when
        the last reference is released; the caller still has one.

        Raises:
            StoreError: The document is not being filled.
        """
        document._require_state(self._monitor, "abandon", State.FILLING)
        document._state = State.ABANDONED
        self._abandoned.add(document)  # before the deletion, so that _repair finds the document
        del self._documents[document.key]
        self._monitor.changed.notify_all()

    @checked
    @exclusive
    def release(self, document: Document) -> None:
        """Gives one reference back.

        Raises:
            StoreError: There is no reference, or it is the last one and the document is still being filled.
        """
        document._require_state(self._monitor, "release", State.FILLING, State.READY, State.ABANDONED)
        if document._references == 0:
            raise StoreError(f"{document._name} is released more often than it was acquired")
        if document._references == 1 and not document._uses and document._state is State.FILLING:
            raise StoreError(f"{document._name} is being filled: commit or abandon it before its last release")
        document._references -= 1
        self._dereferenced(document)

    @checked
    @exclusive
    def pin(self, document: Document) -> None:
        """Protects a document from eviction, referenced or not, until :meth:`unpin` is called as often.

        Raises:
            StoreError: The document is evicted or abandoned.
        """
        document._require_state(self._monitor, "pin", State.FILLING, State.READY)
        document._pins += 1

    @checked
    @exclusive
    def unpin(self, document: Document) -> None:
        """Removes one pin. The document may be abandoned; then the pin has no effect anyway.

        Raises:
            StoreError: The document has no pin.
        """
        document._require_state(self._monitor, "unpin", *State)
        if document._pins == 0:
            raise StoreError(f"{document._name} is unpinned more often than it was pinned")
        document._pins -= 1

    @checked
    @contextmanager
    def use(
        self,
        tokens: Sequence[int] | torch.Tensor | Precomputed,
        fill: Callable[[Document], None] | None = None,
        *,
        salt: str = "",
        context: str = "",
    ) -> Iterator[Document]:
        """Yields the document with these tokens, ready to read, for the duration of a with statement.

        If several threads use one document at once, one of them fills it and the others wait. If filling fails, the
        next thread tries.
        An exception at any moment, such as Ctrl-C, gives the reference back.

        Args:
            tokens: The document's tokens, as in :meth:`key`.
            fill: A function that writes a new document's pages. The store calls it without a lock. It must not use the
                same document. A memory needs none.
            salt: As in :meth:`key`.
            context: As in :meth:`key`.

        Raises:
            SpecError: As in :meth:`acquire`.
            DocumentTooLarge: As in :meth:`acquire`.
            StoreFull: As in :meth:`acquire`.
            Exception: The error of fill. The document is abandoned.
        """
        if fill is None and not isinstance(tokens, Precomputed):
            raise SpecError("fill is None; give a function that writes the keys and values of a new document")
        key, num_slots = self._keys.key_of(tokens, salt, context)
        use = Use()
        # If an exception comes just before the first _end or in it, the second _end completes the work. Otherwise the
        # second one finds nothing to do.
        try:
            try:
                document = self._begin(use, key, num_slots, positions_of(tokens))
                if not document.is_ready:
                    if isinstance(tokens, Precomputed):
                        self.fill(document, tokens, salt=salt)
                    elif fill is not None:
                        fill(document)
                    self.commit(document)
                yield document
            finally:
                self._end(use)
        finally:
            self._end(use)

    @checked
    @exclusive
    def allocate(self, num_tokens: int) -> PageRun:
        """Takes private pages under the same budget, until :meth:`free`.

        Args:
            num_tokens: The tokens that the pages must have room for, at least 1.

        Raises:
            SpecError: num_tokens is less than 1.
            DocumentTooLarge: The pages exceed the whole budget. Nothing has changed.
            StoreFull: There is no room now. Nothing has changed.
        """
        require(num_tokens >= 1, f"num_tokens is {num_tokens}; it must be at least 1")
        run = PageRun(*self._take(num_tokens))
        self._runs.add(run)
        return run

    @checked
    @exclusive
    def free(self, run: PageRun) -> None:
        """Frees private pages.

        Raises:
            StoreError: The pages belong to another store, or they were freed before.
        """
        if run not in self._runs:
            raise StoreError(f"{run} is not allocated here: it was freed before, or it belongs to another store")
        self._runs.remove(run)
        self._paging.free_pages(run)

    @exclusive
    def room(self) -> int:
        """Returns the number of pages that are free or evictable. The next acquire or allocate can get that many."""
        return self._paging.num_free + count(self._evictable())

    @exclusive
    def clear(self) -> None:
        """Evicts every document that is ready, unreferenced and unpinned."""
        self._evict(list(self._evictable()))

    @checked
    @exclusive
    def count_copied(self, num_bytes: int) -> None:
        """Adds to :attr:`Stats.bytes_copied` the bytes of KV that a caller copied instead of sharing them."""
        require(num_bytes >= 0, f"num_bytes is {num_bytes}; it must be at least 0")
        self._counts.bytes_copied += num_bytes

    @property
    @exclusive
    def stats(self) -> Stats:
        """The store's state and counts."""
        documents, free = self._documents.values(), self._paging.num_free
        return self._counts.stats(documents, self._abandoned, self._runs, free, self.page_bytes)

    @exclusive
    def check(self) -> None:
        """Asserts every invariant of the store, for tests. The call waits for the device."""
        owners = [*self._documents.values(), *self._abandoned, *self._runs]
        self._paging.check(owners)
        check_owners(owners, self._documents, self._abandoned, self.page_size)

    @exclusive
    def _acquire(self, key: str, num_tokens: int, num_positions: int) -> tuple[Document, bool]:
        document, is_new = self._find_or_make(key, num_tokens, num_positions)
        document._references += 1
        return document, is_new

    @exclusive
    def _lookup(self, key: str) -> Document | None:
        if document := self._documents.get(key):
            self._counts.hits += 1
            document._references += 1
        else:
            self._counts.misses += 1
        return document

    @exclusive
    def _reserve(
        self, wanted: Sequence[tuple[str, int]], num_tokens: int, all_positions: Sequence[int]
    ) -> tuple[list[tuple[Document, bool]], PageRun]:
        self._make_room_for_all(wanted, num_tokens)
        found: list[tuple[Document, bool]] = []
        try:
            for (key, length), num_positions in zip(wanted, all_positions, strict=True):
                found.append(self._acquire(key, length, num_positions))
            return found, self.allocate(num_tokens)
        except BaseException:  # an error of the device, or Ctrl-C
            for document, is_new in reversed(found):
                if is_new:
                    self.abandon(document)
                self.release(document)
            raise

    @exclusive
    def _begin(self, use: Use, key: str, num_tokens: int, num_positions: int) -> Document:
        """Returns a document that is ready, or a new one that this use must fill.

        A pin prevents that the document is evicted before a thread that waits for its filler wakes. A reference would
        keep the pages of an abandoned document, which the next thread may need to fill it.
        """
        while (waited := self._documents.get(key)) and not waited.is_ready:
            use.document = waited
            waited._waiters.add(use)
            self._monitor.changed.wait_for(waited._is_settled)
            waited._waiters.discard(use)
        document, _ = self._find_or_make(key, num_tokens, num_positions)
        use.document = document
        document._uses.add(use)
        return document

    @exclusive
    def _end(self, use: Use) -> None:
        """Gives back what a use has, and abandons the document if the use has not filled it. It may be repeated."""
        if document := use.document:
            document._waiters.discard(use)
            if use in document._uses:
                if document._state is State.FILLING:
                    self.abandon(document)
                document._uses.discard(use)
                self._dereferenced(document)
            use.document = None

    def _find_or_make(self, key: str, num_tokens: int, num_positions: int) -> tuple[Document, bool]:
        """Returns the document, and True if it is new. The caller adds a reference."""
        if document := self._documents.get(key):
            self._counts.hits += 1
            return document, False
        document = Document(*self._take(num_tokens), key, self._monitor, num_positions=num_positions)
        self._documents[key] = document
        self._counts.misses += 1
        return document, True

    def _dereferenced(self, document: Document) -> None:
        """Frees an abandoned document after its last reference. Any other one becomes the last to be evicted."""
        if document._state is not State.ABANDONED:
            self._documents.move_to_end(document.key)
        elif not document._is_referenced:
            self._abandoned.remove(document)
            self._paging.free_pages(document)

    def _repair(self) -> None:
        """Completes or undoes what an exception has interrupted, and wakes the threads that wait.

        A document has its pages if it can be found, or if it is abandoned and still referenced. All other pages are
        free. A document that is being filled has the reference of its filler.
        """
        documents = [*self._documents.values(), *self._abandoned]
        for document in documents:
            if document._state is State.FILLING and not document._is_referenced:
                document._state = State.ABANDONED
        for document in documents:
            if document._state not in (State.FILLING, State.READY):
                self._documents.pop(document.key, None)
        self._abandoned = {
            document for document in documents if document._state is State.ABANDONED and document._is_referenced
        }
        self._paging.reset([*self._documents.values(), *self._abandoned, *self._runs])
        self._monitor.changed.notify_all()

    def _take(self, num_tokens: int) -> tuple[int, int, int, tuple[int, ...]]:
        """Takes pages for these tokens, and returns the fields of their :class:`Pages`."""
        needed, _ = pages_and_tokens([num_tokens], self.page_size)
        self._make_room(needed, num_tokens)
        first_page, page_ids = self._paging.take(needed)
        if self._slot_logits is not None:
            self._slot_logits.clear(page_ids)
        return num_tokens, needed * self.page_bytes, first_page, page_ids

    def _evictable(self) -> Iterator[Document]:
        """Yields the documents that may be evicted, the least recently used first.

        A document that is being filled is never among them, for the caller that fills it has a reference.
        """
        for document in self._documents.values():
            if not document._is_referenced and not document._is_pinned:
                yield document

    def _evict(self, documents: Sequence[Document]) -> None:
        for document in documents:
            document._state = State.EVICTED
            del self._documents[document.key]
            self._paging.free_pages(document)
        self._counts.evictions += len(documents)

    def _require_fit(self, needed: int, num_tokens: int) -> None:
        if needed > self.num_pages:
            raise DocumentTooLarge(
                f"{num_tokens} tokens need {needed} pages of {self.page_size} tokens; the whole budget, {self.budget} "
                f"bytes, has {self.num_pages}: a budget of {needed * self.page_bytes} bytes would do"
            )

    def _make_room(self, needed: int, num_tokens: int, kept: Collection[Document] = ()) -> None:
        """Evicts documents until so many pages are free, but none of the kept ones."""
        self._require_fit(needed, num_tokens)
        victims: list[Document] = []
        room = self._paging.num_free
        for document in self._evictable():
            if room >= needed:
                break
            if document not in kept:
                victims.append(document)
                room += document.num_pages
        if room < needed:
            raise StoreFull(f"{num_tokens} tokens need {needed} pages; {self._occupancy(kept)}")
        self._evict(victims)

    def _make_room_for_all(self, wanted: Sequence[tuple[str, int]], num_tokens: int) -> None:
        """Makes room for documents with these keys and lengths, and for private pages.

        The documents that the store has already are not evicted.
        """
        resident = {document for key, _ in wanted if (document := self._documents.get(key))}
        missing = {key: length for key, length in wanted if key not in self._documents}
        self._require_fit(*pages_and_tokens([*dict(wanted).values(), num_tokens], self.page_size))
        self._make_room(*pages_and_tokens([*missing.values(), num_tokens], self.page_size), resident)

    def _occupancy(self, kept: Collection[Document]) -> str:
        evictable = [document for document in self._evictable() if document not in kept]
        documents = [*self._documents.values(), *self._abandoned]
        return occupancy(self.num_pages, self._paging.num_free, documents, evictable, self._runs, kept)
