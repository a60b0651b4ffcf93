"""An exception at any bytecode of the document store leaves a store that works.

Ctrl-C and a failed allocation can end a call between any two bytecodes. Each scenario is run once for every bytecode
of lazyrope's Python code, and an exception is raised there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lazyrope
import pytest
from lazyrope.documents import Document, DocumentStore

from tests.support.stores import document_tokens, holds, in_thread, make_store, wait_until, write

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="CPython 3.12 crashes if a trace function raises at a bytecode"
)
PACKAGE = str(Path(lazyrope.__file__).parent)
A, B, C = (document_tokens(name, 1) for name in (16, 17, 18))
SHARES = 20  # CI runs one of them


class Injected(BaseException):
    """Takes the place of KeyboardInterrupt."""


class Injector:
    """Counts the bytecodes of lazyrope's frames, and raises Injected before one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.count = 0
        self._at = at

    def run(self, work: Callable[[], None]) -> bool:
        """Runs work in this thread, and returns whether it was interrupted."""
        previous = sys.gettrace()
        sys.settrace(self._enter)
        try:
            work()
            return False
        except Injected:
            return True
        finally:
            sys.settrace(previous)

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "opcode":
            self.count += 1
            if self.count - 1 == self._at:
                raise Injected
        return self._step


def use(store: DocumentStore, tokens: list[int], tag: float = 1.0) -> Document:
    with store.use(tokens, lambda document: write(store, document, tag)) as document:
        assert holds(store, document, tag)
        return document


def use_a_new_document(store: DocumentStore) -> None:
    use(store, A)


def use_a_stored_document(store: DocumentStore) -> None:
    use(store, B)


def use_a_document_that_evicts_others(store: DocumentStore) -> None:
    use(store, document_tokens(19, 3))


def use_a_document_whose_fill_fails(store: DocumentStore) -> None:
    def fail(_: Document) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), store.use(A, fail):
        pass


def use_two_documents_at_once(store: DocumentStore) -> None:
    with store.use(A, lambda document: write(store, document, 1.0)):
        use(store, C)


def use_a_document_that_does_not_fit(store: DocumentStore) -> None:
    with pytest.raises(lazyrope.documents.DocumentTooLarge):
        use(store, document_tokens(20, 9))


USES = [
    use_a_new_document,
    use_a_stored_document,
    use_a_document_that_evicts_others,
    use_a_document_whose_fill_fails,
    use_two_documents_at_once,
    use_a_document_that_does_not_fit,
]


def prepared_store() -> DocumentStore:
    """Returns a store of four pages, two of which hold B and C."""
    store = make_store(4)
    for tokens in (B, C):
        use(store, tokens)
    return store


def in_another_thread(work: Callable[[], None]) -> None:
    """Runs work in a thread, which a lock that this thread has kept would block."""
    in_thread(work).result(10)


def require_a_working_store(store: DocumentStore) -> None:
    store.check()
    stats = store.stats
    assert stats.referenced == stats.pinned == stats.private_bytes == 0, stats
    for tokens in (A, B, C):
        use(store, tokens)
    store.check()
    store.clear()
    assert store.room() == store.num_pages and store.stats.documents == 0
    store.check()


def call_every_method(store: DocumentStore) -> None:
    found, run = store.reserve([A, B], 5)
    for document, is_new in found:
        store.pin(document)
        if is_new:
            store.commit(document)
        document.wait()
        store.unpin(document)
        store.release(document)
    store.free(run)
    abandoned, _ = store.acquire(document_tokens(21, 1))
    store.abandon(abandoned)
    store.release(abandoned)
    store.lookup(C)
    store.count_copied(1)
    assert store.room() == 3
    store.clear()


def shares(scenarios: list[Callable[[DocumentStore], None]]) -> list[Any]:
    """Returns the parameters of a test: every scenario with every share of its bytecodes."""
    return [pytest.param(work, share, id=f"{work.__name__}-{share}") for share in range(SHARES) for work in scenarios]


@pytest.mark.sample(len(USES), runs_kernels=False)
@pytest.mark.parametrize(("scenario", "share"), shares(USES))
def test_an_exception_at_any_bytecode_of_use_leaves_the_store_working(scenario, share):
    for at, store in interrupted_stores(scenario, share):
        with described(at):
            in_another_thread(lambda store=store: require_a_working_store(store))


@pytest.mark.sample(1, runs_kernels=False)
@pytest.mark.parametrize(("scenario", "share"), shares([call_every_method]))
def test_an_exception_at_any_bytecode_of_a_call_leaves_every_page_with_one_owner(scenario, share):
    for at, store in interrupted_stores(scenario, share):
        with described(at):
            in_another_thread(store.check)


@pytest.mark.sample(2, runs_kernels=False)
@pytest.mark.parametrize("who", ["filler", "waiter"])
@pytest.mark.parametrize("share", range(SHARES))
def test_an_exception_in_one_of_two_threads_leaves_the_other_with_the_document(who, share):
    """The second thread begins while the first one fills, and waits for it. One of the two gets the exception."""
    at, interrupted = share, True
    while interrupted:
        interrupted = run_two_threads(prepared_store(), who, at)
        at += SHARES
    assert at > 100


def run_two_threads(store: DocumentStore, who: str, at: int) -> bool:
    """Interrupts one of two threads that use a document, and returns whether its call had not ended before."""
    waiter = in_thread(lambda: None)
    injectors = {"filler": Injector(), "waiter": Injector(), who: Injector(at)}

    def wait_and_use() -> bool:
        return injectors["waiter"].run(lambda: use(store, A))

    def fill(document: Document) -> None:
        nonlocal waiter
        waiter = in_thread(wait_and_use)
        wait_until(lambda: document._waiters or waiter.done())
        write(store, document, 1.0)

    def fill_and_use() -> None:
        with store.use(A, fill):
            pass

    filler = in_thread(lambda: injectors["filler"].run(fill_and_use))
    with described(at):
        interrupted = [filler.result(10), waiter.result(10)]
        in_another_thread(lambda: require_a_working_store(store))
    return any(interrupted)


def interrupted_stores(scenario: Callable[[DocumentStore], None], share: int) -> Iterator[tuple[int, DocumentStore]]:
    """Runs the scenario once for each bytecode of the share, and yields the bytecode and the store after it."""
    scenario(prepared_store())  # the first call may fill caches, which takes more bytecodes
    counter = Injector()
    store = prepared_store()
    assert not counter.run(lambda: scenario(store)) and counter.count > 100
    for at in range(share, counter.count, SHARES):
        store = prepared_store()
        interrupted = Injector(at).run(lambda store=store: scenario(store))
        assert interrupted, f"the exception at bytecode {at} of {counter.count} was lost"
        yield at, store


@contextmanager
def described(at: int) -> Iterator[None]:
    """Adds the bytecode to an error."""
    try:
        yield
    except BaseException as error:
        raise AssertionError(f"after an exception at bytecode {at}: {error!r}") from error
