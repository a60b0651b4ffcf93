"""The calls of the document store, their errors and their accounting."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from random import Random
from typing import Any

import lazyrope
import pytest
import torch
from lazyrope.documents import Document, DocumentStore, DocumentTooLarge, InsertError, Stats, StoreError, StoreFull

from tests.support.stores import LAYERS, PAGE, PAGE_BYTES, document_tokens, holds, make_store, pools, write

A, B, C, D = (document_tokens(name, 1) for name in range(16, 20))


def put(store: DocumentStore, tokens: list[int], tag: float = 1.0) -> Document:
    """Stores a document and returns it, ready and unreferenced."""
    with store.use(tokens, lambda document: write(store, document, tag)) as document:
        return document


def has(store: DocumentStore, tokens: list[int]) -> bool:
    """Returns whether the document is stored, without counting as a use."""
    return store.key(tokens) in store._documents


def test_the_pool_is_within_the_budget():
    store = make_store(0, budget=3 * PAGE_BYTES + PAGE_BYTES - 1)
    assert (store.num_pages, store.page_bytes, store.page_size) == (3, PAGE_BYTES, PAGE)
    assert store.budget == 4 * PAGE_BYTES - 1 and store.device == torch.device("cpu") and store.dtype == torch.float32
    views = pools(store)
    assert all(
        view.shape == (3, PAGE, 1, 64) and view.dtype == torch.float32 and view.is_contiguous() for view in views
    )
    assert len({view.data_ptr() for view in views}) == 2 * LAYERS
    assert len({view.untyped_storage().data_ptr() for view in views}) == 1
    assert views[0].untyped_storage().nbytes() == 3 * PAGE_BYTES
    assert store.pages.dtype == torch.int32 and store.pages.ndim == 1


def test_the_pool_has_the_specs_dtype_by_default():
    store = make_store(4, dtype=None)
    assert store.dtype == store.k_pool(0).dtype == torch.bfloat16 and store.num_pages == 8


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        (1 << 20, 1 << 20),
        ("1048576", 1 << 20),
        ("1048576B", 1 << 20),
        ("512KiB", 512 << 10),
        ("512 k", 512 << 10),
        ("1.5M", 3 << 19),
        ("0.25 MiB", 1 << 18),
        (" 1mib ", 1 << 20),
        ("0.0009765625G", 1 << 20),
        ("0.00000095367431640625TiB", 1 << 20),
        ("0.1M", (1 << 20) // 10),
    ],
)
def test_a_budget_with_a_unit_is_parsed(budget, size):
    assert make_store(0, budget=budget).budget == size


@pytest.mark.parametrize("budget", ["", "G", "8GB", "8 gigabytes", "1e9", "-1G", "1,5G", "1.G", "0x10", "8GiB 1", "٣G"])
def test_a_malformed_budget_is_refused(budget):
    with pytest.raises(lazyrope.SpecError, match=r"^budget is .*; it must be bytes, or a number with K, M, G or T"):
        make_store(0, budget=budget)


def test_a_budget_in_decimal_units_is_told_what_to_write():
    with pytest.raises(lazyrope.SpecError, match=r"^budget is '1.5gb'; .* or TiB: write \"1.5GiB\"$"):
        make_store(0, budget="1.5gb")


def test_the_repr_of_a_store_is_short():
    store = make_store(3)
    text = f"DocumentStore(num_pages=3, page_size=16, page_bytes={PAGE_BYTES}, budget={store.budget}, "
    assert repr(store) == text + "dtype=torch.float32, device='cpu')"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(budget=PAGE_BYTES - 1), rf"budget is {PAGE_BYTES - 1}, .*one page of 16 tokens takes {PAGE_BYTES} bytes"),
        (
            dict(budget="1K"),
            r"budget is '1K', 1024 bytes; one page .*: 2 layers, 1 KV heads, head_dim 64, torch.float32",
        ),
        (dict(budget=-1), "budget is -1"),
        (dict(num_layers=0), "num_layers is 0; it must be at least 1"),
        (dict(num_layers=None), "num_layers is None; it must be at least 1"),
        (dict(page_size=0), "page_size is 0; it must be a multiple of 16"),
        (dict(page_size=24), "page_size is 24; it must be a multiple of 16"),
        (dict(dtype=torch.int32), r"dtype is torch.int32; a pool holds a floating-point type"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(lazyrope.SpecError, match=message):
        make_store(4, **options)


def test_a_store_of_one_page_holds_the_last_document():
    store = make_store(1)
    put(store, A)
    put(store, B)
    assert has(store, B) and not has(store, A)


# Keys


def test_a_document_without_tokens_is_refused():
    store = make_store(4)
    for empty in ([], torch.empty(0, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"^tokens are empty; a document has at least one$"):
            store.acquire(empty)
    for tokens in (0, -5):
        with pytest.raises(ValueError, match=f"^num_tokens is {tokens}; it must be at least 1$"):
            store.allocate(tokens)
    assert store.room() == 4 and store.stats.misses == 0


# Room


def test_a_document_larger_than_the_budget_is_refused():
    store = make_store(4)
    put(store, A)
    for call, size in ((store.acquire, list(range(65))), (store.allocate, 65)):
        with pytest.raises(DocumentTooLarge) as caught:
            call(size)
        assert str(caught.value) == (
            f"65 tokens need 5 pages of 16 tokens; the whole budget, {4 * PAGE_BYTES} bytes, has 4: a budget of "
            f"{5 * PAGE_BYTES} bytes would do"
        )
    assert has(store, A) and store.stats.evictions == 0 and store.stats.misses == 1
    store.allocate(64)


def test_a_full_store_error_counts_pages_by_state():
    store = make_store(20)
    store.pin(put(store, document_tokens(0, 3)))
    store.acquire(document_tokens(1, 2))
    store.pin(store.acquire(document_tokens(2, 1))[0])
    failed, _ = store.acquire(document_tokens(3, 1))
    store.abandon(failed)
    put(store, document_tokens(4, 2))
    store.allocate(6 * PAGE)
    before = store.stats
    for call, size in ((store.acquire, list(range(8 * PAGE))), (store.allocate, 8 * PAGE)):
        with pytest.raises(StoreFull) as caught:
            call(size)
        assert str(caught.value) == (
            "128 tokens need 8 pages; of 20, 5 are free, 2 evictable, 3 pinned, 4 referenced and 6 private: "
            "release, unpin or free some, or raise the budget"
        )
        assert store.stats == before and store.room() == 7
    store.allocate(7 * PAGE)
    store.check()


def test_a_store_full_of_pinned_documents_refuses_new_ones():
    store = make_store(3)
    documents = [put(store, tokens) for tokens in (A, B, C)]
    for document in documents:
        store.pin(document)
    store.pin(documents[1])
    store.clear()
    assert store.stats.documents == store.stats.pinned == 3 and store.room() == 0
    with pytest.raises(StoreFull, match="0 are free, 0 evictable, 3 pinned, 0 referenced and 0 private"):
        store.acquire(D)
    store.unpin(documents[1])
    with pytest.raises(StoreFull):
        store.acquire(D)
    store.unpin(documents[1])
    put(store, D)
    assert has(store, A) and has(store, C) and not has(store, B)
    assert put(store, A) is documents[0]


def test_the_least_recently_used_goes_first_and_no_more_than_needed():
    store = make_store(4)
    for tokens in (A, B, C, D):
        put(store, tokens)
    document = store.lookup(B)
    put(store, A)  # C is the oldest now, then D, B, A
    store.release(document)  # and now C, D, A, B
    for gone, new in ((C, 5), (D, 6), (A, 7), (B, 8)):
        assert has(store, gone)
        put(store, document_tokens(new, 1))
        assert not has(store, gone)
    store.allocate(2 * PAGE)
    assert [has(store, document_tokens(new, 1)) for new in (5, 6, 7, 8)] == [False, False, True, True]
    assert store.stats.evictions == 6


def test_filling_and_referenced_documents_are_not_evicted():
    store = make_store(3)
    filling, _ = store.acquire(A)
    put(store, B)
    referenced = store.lookup(B)
    put(store, C)
    store.clear()
    assert has(store, A) and has(store, B) and not has(store, C)
    with pytest.raises(StoreFull):
        store.allocate(2 * PAGE)
    store.commit(filling)
    store.release(filling)
    store.release(referenced)
    store.allocate(3 * PAGE)
    store.check()


@pytest.mark.parametrize("pages", [1, 2, 3, 5, 8, 12, 31, 33])
def test_page_lists_always_find_room(pages):
    """Allocates as many lists of each length as fit, then lists of random lengths that are freed in any order."""
    store = make_store(pages, num_layers=1)
    for length in range(1, pages + 1):
        runs = [store.allocate(length * PAGE) for _ in range(store.num_pages // length)]
        store.check()
        for run in runs:
            store.free(run)
    random = Random(pages)
    runs = []
    for _ in range(300):
        room = store.room()
        if room:
            runs.append(store.allocate(random.randint(1, room) * PAGE))
        random.shuffle(runs)
        for _ in range(random.randint(not room, len(runs))):
            store.free(runs.pop())
    store.check()
    log = (store.num_pages - 1).bit_length()
    assert len(store.pages) <= 2 * store.num_pages * (log + 1)


def test_a_page_list_that_cannot_be_written_leaves_the_store_unchanged(monkeypatch):
    store = make_store(4)

    def no_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("lazyrope._paging.torch.tensor", no_memory)
        for call, size in ((store.acquire, A), (store.allocate, 1)):
            with pytest.raises(MemoryError):
                call(size)
    store.check()
    assert store.room() == 4 and store.stats.misses == 0 and store.acquire(A)[1]


def test_a_reservation_takes_everything_or_nothing():
    store = make_store(6)
    for tokens in (A, B, C, D):
        put(store, tokens)
    other = store.lookup(D)
    before = store.stats
    # The reservation needs A, so two pages are free and B and C are evictable.
    with pytest.raises(
        StoreFull, match=r"^65 tokens need 5 pages; of 6, 2 are free, 2 evictable, 0 pinned, 2 referenced"
    ):
        store.reserve([A, [1], A], 4 * PAGE)
    assert store.stats == before and all(has(store, tokens) for tokens in (A, B, C, D))
    documents, run = store.reserve([A, [1], A, [1]], 3 * PAGE)
    assert [is_new for _, is_new in documents] == [False, True, False, False]
    assert documents[0][0] is documents[2][0] and documents[1][0] is documents[3][0] and run.num_tokens == 3 * PAGE
    assert has(store, A) and has(store, D) and not has(store, B) and not has(store, C)
    assert store.stats == replace(
        before,
        hits=before.hits + 3,
        misses=before.misses + 1,
        evictions=2,
        documents=3,
        resident_bytes=3 * PAGE_BYTES,
        private_bytes=3 * PAGE_BYTES,
        free_bytes=0,
        referenced=3,
    )
    store.check()
    assert store.lookup(D) is other


def test_a_reservation_larger_than_the_budget_is_refused():
    """A reservation that exceeds the budget fails even if its documents are stored. It could wait forever."""
    store = make_store(4)
    tokens = document_tokens(0, 3)
    put(store, tokens)
    with pytest.raises(DocumentTooLarge, match=r"^80 tokens need 5 pages of 16 tokens; the whole budget, .*, has 4: "):
        store.reserve([tokens, [1] * 16], 16)
    with pytest.raises(lazyrope.SpecError, match="num_tokens is 0; it must be at least 1"):
        store.reserve([A], 0)
    assert has(store, tokens) and store.stats.misses == 1
    store.reserve([tokens, tokens], 16)


def test_a_reservation_that_fails_on_the_device_gives_everything_back(monkeypatch):
    store = make_store(6)
    put(store, A)
    make = torch.tensor
    made: list[int] = []

    def no_third(*arguments: Any, **options: Any) -> torch.Tensor:
        made.append(1)
        if len(made) == 3:
            raise MemoryError
        return make(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("lazyrope._paging.torch.tensor", no_third)
        with pytest.raises(MemoryError):
            store.reserve([A, B, C, B], 1)
    store.check()
    assert store.stats.referenced == 0 and store.room() == 6 and store.stats.documents == 1 and has(store, A)


# States


def test_a_fill_that_fails_leaves_no_document():
    store = make_store(2)
    tokens = document_tokens(3, 2)

    def half(document: Document) -> None:
        store.k_pool(0)[document.page_ids[0]] = 7
        raise ZeroDivisionError("half way")

    for _ in range(3):
        with pytest.raises(ZeroDivisionError, match="half way"), store.use(tokens, half):
            raise AssertionError("the body must not run")
        assert not has(store, tokens) and store.room() == 2
        store.check()
    put(store, tokens, 5)
    document = store.lookup(tokens)
    assert holds(store, document, 5) and document.is_ready
    assert store.stats == replace(store.stats, hits=1, misses=4, documents=1, referenced=1, free_bytes=0)


def test_an_error_in_the_body_releases_the_document():
    store = make_store(2)
    with pytest.raises(ZeroDivisionError), store.use(A, lambda document: write(store, document, 1)):
        raise ZeroDivisionError
    assert has(store, A) and store.stats.referenced == 0 and store.room() == 2


def test_an_abandoned_documents_pages_return_with_its_last_reference():
    store = make_store(2)
    filler, _ = store.acquire(A)
    reader, is_new = store.acquire(A)
    assert reader is filler and not is_new
    store.abandon(filler)
    again, is_new = store.acquire(A)
    assert is_new and again is not filler and not set(again.page_ids) & set(filler.page_ids)
    assert again.key == filler.key and store.lookup(A) is again
    store.release(filler)
    assert store.room() == 0 and store.stats.resident_bytes == 2 * PAGE_BYTES
    with pytest.raises(InsertError, match=f"document {filler.key[:12]}.* was abandoned by its filler: release it"):
        reader.wait()
    store.release(reader)
    assert store.room() == 1
    store.check()


def test_calls_in_the_wrong_state_are_refused_and_change_nothing():
    store = make_store(4)
    filling, _ = store.acquire(A)
    name = rf"document {filling.key[:12]} \(16 tokens\)"

    def refused(call: Any, argument: Any, message: str) -> None:
        before = store.stats
        with pytest.raises(StoreError, match=message) as caught:
            call(argument)
        assert caught.type is StoreError and store.stats == before
        store.check()

    refused(store.release, filling, f"{name} is being filled: commit or abandon it before its last release")
    store.commit(filling)
    refused(store.commit, filling, f"cannot commit {name}: it is ready")
    refused(store.abandon, filling, f"cannot abandon {name}: it is ready")
    refused(store.unpin, filling, f"{name} is unpinned more often than it was pinned")
    store.release(filling)
    refused(store.release, filling, f"{name} is released more often than it was acquired")
    store.clear()
    refused(store.release, filling, f"cannot release {name}: it is evicted")
    refused(store.pin, filling, f"cannot pin {name}: it is evicted")
    refused(lambda document: document.wait(), filling, f"{name} was evicted: wait for a document only while holding")
    failed, _ = store.acquire(A)
    store.pin(failed)
    store.abandon(failed)
    refused(store.pin, failed, "it is abandoned by its filler")
    refused(store.abandon, failed, "it is abandoned by its filler")
    store.release(failed)
    refused(store.release, failed, "is released more often than it was acquired")
    store.unpin(failed)
    refused(store.unpin, failed, "is unpinned more often than it was pinned")
    run = store.allocate(20)
    assert (run.num_tokens, run.num_pages, run.num_bytes) == (20, 2, 2 * PAGE_BYTES)
    store.free(run)
    refused(store.free, run, "is not allocated here: it was freed before, or it belongs to another store")
    with pytest.raises(lazyrope.SpecError, match="num_bytes is -1; it must be at least 0"):
        store.count_copied(-1)


def test_documents_of_another_store_are_refused():
    ours, theirs = make_store(4), make_store(4)
    document, _ = theirs.acquire(A)
    theirs.pin(document)
    ours.acquire(A)
    for call in (ours.commit, ours.abandon, ours.release, ours.pin, ours.unpin):
        with pytest.raises(StoreError, match=f"cannot {call.__name__} document .* it belongs to another store"):
            call(document)
    with pytest.raises(StoreError, match="another store"):
        ours.free(theirs.allocate(1))
    for store in (ours, theirs):
        store.check()
        assert store.stats.referenced == 1


def test_stats_count_hits_misses_evictions_and_bytes():
    store = make_store(5)
    assert store.stats == Stats(0, 0, 0, 0, 0, 0, 5 * PAGE_BYTES, 0, 0, 0) and store.stats.hit_rate == 0
    document, _ = store.acquire(document_tokens(0, 2))
    assert store.lookup(B) is None
    store.acquire(document_tokens(0, 2))
    store.commit(document)
    store.lookup(document_tokens(0, 2))
    with store.use(document_tokens(0, 2), pytest.fail):
        pass
    store.pin(document)
    store.pin(document)
    store.count_copied(100)
    store.count_copied(23)
    store.allocate(17)
    put(store, C)
    put(store, D)
    stats = store.stats
    assert stats == Stats(
        hits=3,
        misses=4,
        evictions=1,
        documents=2,
        resident_bytes=3 * PAGE_BYTES,
        private_bytes=2 * PAGE_BYTES,
        free_bytes=0,
        bytes_copied=123,
        pinned=1,
        referenced=1,
    )
    assert stats.hit_rate == 3 / 7
    store.clear()
    assert stats.documents == 2 and store.stats.documents == 1, "a snapshot does not change"


def test_check_finds_every_kind_of_damage():
    """test_document_histories.py relies on check()."""

    def lost_page(store: DocumentStore, document: Document) -> None:
        store._paging._free.pop()

    def page_given_twice(store: DocumentStore, document: Document) -> None:
        store._paging._free.append(document.page_ids[0])

    def lost_slot(store: DocumentStore, document: Document) -> None:
        store._paging.lists._free[0].pop()

    def overwritten_list(store: DocumentStore, document: Document) -> None:
        store.pages[document.first_page] += 1

    def unfilled_without_filler(store: DocumentStore, document: Document) -> None:
        document._references = 0

    def document_under_another_key(store: DocumentStore, document: Document) -> None:
        store._documents["other"] = store._documents.pop(document.key)

    def negative_pins(store: DocumentStore, document: Document) -> None:
        document._pins = -1

    for damage in (
        lost_page,
        page_given_twice,
        lost_slot,
        overwritten_list,
        unfilled_without_filler,
        document_under_another_key,
        negative_pins,
    ):
        store = make_store(4)
        document, _ = store.acquire(A)
        store.check()
        damage(store, document)
        with pytest.raises(AssertionError):
            store.check()


def test_importing_lazyrope_does_not_import_torch():
    program = "import sys, lazyrope; assert 'torch' not in sys.modules and 'lazyrope.documents' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
