"""Threads that use the document store concurrently get one copy of a document, and wait for its filler."""

from __future__ import annotations

import threading
import time
from collections import Counter
from random import Random
from typing import Any

import pytest
from lazyrope.documents import Document, InsertError, StoreFull

from tests.support.stores import PAGE_BYTES, document_tokens, holds, in_thread, make_store, wait_until, write

A, B = (document_tokens(name, 1) for name in (16, 17))


def run_in_threads(count: int, work: Any) -> list[Any]:
    """Runs work(i) in threads that start at once, and returns the results or raises the first error."""
    start = threading.Barrier(count)

    def run(i: int) -> Any:
        start.wait(10)
        return work(i)

    futures = [in_thread(run, i) for i in range(count)]
    return [future.result(30) for future in futures]


@pytest.mark.parametrize("count", [2, 16])
def test_threads_that_use_one_document_get_one_copy(count):
    store = make_store(2)
    tokens = document_tokens(3, 2)
    fills = []

    def fill(document: Document) -> None:
        fills.append(document)
        wait_until(lambda: len(document._waiters) == count - 1)  # all others wait for it
        write(store, document, 3)

    def work(_: int) -> Document:
        with store.use(tokens, fill) as document:
            assert document.is_ready and holds(store, document, 3)
            return document

    assert set(run_in_threads(count, work)) == set(fills) and len(fills) == 1
    stats = store.stats
    assert (stats.misses, stats.hits, stats.documents, stats.evictions) == (1, count - 1, 1, 0)
    assert (stats.pinned, stats.referenced, stats.resident_bytes) == (0, 0, 2 * PAGE_BYTES)
    store.check()


@pytest.mark.parametrize("count", [2, 16])
def test_threads_that_acquire_one_document_wait_for_its_filler(count):
    store = make_store(2)

    def work(_: int) -> bool:
        document, is_new = store.acquire(A)
        if is_new:
            wait_until(lambda: document._references == count)
            with pytest.raises(TimeoutError, match=r"is still being filled after 0.01 s"):
                document.wait(0.01)
            write(store, document, 4)
            store.commit(document)
        else:
            document.wait(10)
        assert holds(store, document, 4)
        store.release(document)
        return is_new

    assert sum(run_in_threads(count, work)) == 1
    assert store.stats.referenced == 0 and store.room() == 2
    store.check()


def test_threads_that_wait_for_an_abandoned_document_get_an_error():
    store = make_store(2)

    def work(_: int) -> str:
        document, is_new = store.acquire(A)
        try:
            if is_new:
                wait_until(lambda: document._references == 4)
                store.abandon(document)
                return "abandoned"
            document.wait(10)
            return "ready"
        except InsertError:
            return "told"
        finally:
            store.release(document)

    assert Counter(run_in_threads(4, work)) == {"abandoned": 1, "told": 3}
    assert store.room() == 2 and store.stats.documents == 0
    store.check()


@pytest.mark.parametrize("failures", [1, 3])
def test_when_a_filler_fails_a_waiting_thread_fills(failures, monkeypatch):
    """The document takes the whole budget, and the failed filler releases its pages late."""
    count = 6
    store = make_store(2)
    release = store.release

    def slow_release(document: Document) -> None:
        time.sleep(0.01)
        release(document)

    monkeypatch.setattr(store, "release", slow_release)
    tokens = document_tokens(3, 2)
    fills = []

    def fill(document: Document) -> None:
        fills.append(document)
        number = len(fills)
        wait_until(lambda: len(document._waiters) == count - number)
        write(store, document, number)
        if number <= failures:
            raise ZeroDivisionError

    def work(_: int) -> bool:
        try:
            with store.use(tokens, fill) as document:
                assert document is fills[-1] and holds(store, document, failures + 1)
                return True
        except ZeroDivisionError:
            return False

    assert Counter(run_in_threads(count, work)) == {False: failures, True: count - failures}
    assert len(fills) == failures + 1
    assert store.stats.misses == failures + 1 and store.stats.hits == count - failures - 1
    assert store.stats.referenced == store.stats.pinned == 0
    store.check()


def test_a_document_is_not_evicted_before_waiting_threads_have_it():
    store = make_store(1)
    filling, _ = store.acquire(A)

    def work() -> bool:
        with store.use(A, pytest.fail) as document:
            return document is filling

    waiting = in_thread(work)
    wait_until(lambda: len(filling._waiters) == 1)
    with store._monitor.changed:  # no thread runs between these calls
        store.commit(filling)
        store.release(filling)
        with pytest.raises(StoreFull):
            store.acquire(B)
    assert waiting.result(10)


def test_many_threads_in_a_small_store_see_only_their_documents():
    """16 threads use 40 documents of two pages; 16 of them fit, and some fills fail.

    A thread sees only the values that a filler wrote for its document, and no thread finds the store full.
    """
    store = make_store(32)
    fills: Counter[int] = Counter()
    documents = [document_tokens(name, 2) for name in range(1, 41)]

    def work(seed: int) -> int:
        random = Random(seed)
        failed = 0
        for _ in range(60):
            name = random.randrange(40)

            def fill(document: Document, name: int = name) -> None:
                fills[name] += 1
                write(store, document, -1)
                time.sleep(0.0005)
                if random.random() < 0.1:
                    raise ZeroDivisionError
                write(store, document, name)

            try:
                with store.use(documents[name], fill) as document:
                    assert holds(store, document, name)
                    time.sleep(0)
                    assert holds(store, document, name) and document.is_ready
            except ZeroDivisionError:
                failed += 1
        return failed

    failed = sum(run_in_threads(16, work))
    stats = store.stats
    assert stats.misses == fills.total() and stats.hits + stats.misses == 16 * 60
    assert failed > 0 and stats.evictions > 0 and stats.hits > 0
    assert stats.documents + stats.evictions == stats.misses - failed
    assert stats.referenced == stats.pinned == 0 and store.room() == 32
    store.check()
