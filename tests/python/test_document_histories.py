"""Compares the document store with a simple model of it over random histories."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from lazyrope.documents import Document, DocumentTooLarge, InsertError, PageRun, Stats, StoreError, StoreFull

from tests.support.stores import PAGE, PAGE_BYTES, document_tokens, make_store, pools, write

NUM_PAGES = 12
DOCUMENTS = {name: document_tokens(name, pages) for name, pages in enumerate([1, 1, 1, 2, 2, 3, 3, 4, 5, 7, 12, 13])}
NAMES = st.sampled_from(sorted(DOCUMENTS))
PICKS = st.integers(0, 1 << 16)


def pages_of(tokens: int) -> int:
    return len(range(0, tokens, PAGE))


@dataclass(eq=False)
class Entry:
    """A document of the model."""

    name: int
    handle: Document
    tag: float
    last_use: int
    state: str = "filling"
    references: int = 1
    pins: int = 0

    @property
    def holds_pages(self) -> bool:
        return self.state in ("filling", "ready") or (self.state == "abandoned" and self.references > 0)

    @property
    def evictable(self) -> bool:
        return self.state == "ready" and self.references == 0 and self.pins == 0


@dataclass(eq=False)
class Run:
    handle: PageRun
    tag: float
    is_free: bool = False


@dataclass
class Model:
    """A model of the store. Its lists also keep documents and runs that the store no longer has."""

    entries: list[Entry] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    clock: int = 0

    def now(self) -> int:
        self.clock += 1
        return self.clock

    def resident(self) -> list[Entry]:
        return [e for e in self.entries if e.state in ("filling", "ready")]

    def named(self, name: int) -> Entry | None:
        found = [e for e in self.resident() if e.name == name]
        assert len(found) <= 1
        return found[0] if found else None

    def owners(self) -> list[Entry | Run]:
        return [e for e in self.entries if e.holds_pages] + [r for r in self.runs if not r.is_free]

    def free_pages(self) -> int:
        return NUM_PAGES - sum(owner.handle.num_pages for owner in self.owners())

    def by_age(self) -> list[Entry]:
        return sorted((e for e in self.entries if e.evictable), key=lambda e: e.last_use)

    def victims(self, names: list[int], tokens: int) -> list[Entry] | type[StoreError]:
        """Returns the documents that must be evicted to make room, or the error.

        The store evicts the fewest least recently used documents that make room for `names` and private tokens.
        """
        if pages_of(tokens) + sum(pages_of(len(DOCUMENTS[name])) for name in set(names)) > NUM_PAGES:
            return DocumentTooLarge
        missing = [name for name in set(names) if self.named(name) is None]
        needed = pages_of(tokens) + sum(pages_of(len(DOCUMENTS[name])) for name in missing)
        oldest = [e for e in self.by_age() if e.name not in names]
        for n in range(len(oldest) + 1):
            if self.free_pages() + sum(e.handle.num_pages for e in oldest[:n]) >= needed:
                return oldest[:n]
        return StoreFull

    def evict(self, entries: list[Entry]) -> None:
        for entry in entries:
            entry.state = "evicted"
        self.counts["evictions"] += len(entries)

    def stats(self) -> Stats:
        documents = [e for e in self.entries if e.holds_pages]
        runs = [r for r in self.runs if not r.is_free]
        return Stats(
            hits=self.counts["hits"],
            misses=self.counts["misses"],
            evictions=self.counts["evictions"],
            documents=len(self.resident()),
            resident_bytes=PAGE_BYTES * sum(e.handle.num_pages for e in documents),
            private_bytes=PAGE_BYTES * sum(r.handle.num_pages for r in runs),
            free_bytes=PAGE_BYTES * self.free_pages(),
            bytes_copied=self.counts["copied"],
            pinned=len([e for e in self.resident() if e.pins]),
            referenced=len([e for e in documents if e.references]),
        )


class StoreMachine(RuleBasedStateMachine):
    """Each rule makes the same change to the store and the model; the invariant compares their visible state."""

    happened: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.store = make_store(NUM_PAGES)
        self.model = Model()
        for pool in pools(self.store):
            pool.zero_()

    def note(self, what: str) -> None:
        self.happened[what] += 1

    def some(self, pick: int, *states: str) -> Entry:
        among = [e for e in self.model.entries if e.state in states]
        return among[pick % len(among)]

    def has(self, *states: str) -> bool:
        return any(e.state in states for e in self.model.entries)

    def refused(self, error: type[StoreError], call: Any, *arguments: Any) -> None:
        with pytest.raises(error) as caught:
            call(*arguments)
        assert caught.type is error
        self.note(f"{call.__name__}: {error.__name__}")

    def expect_new(self, name: int, handle: Document, victims: list[Entry]) -> Entry:
        self.model.evict(victims)
        self.model.counts["misses"] += 1
        tag = float(self.model.now())
        entry = Entry(name, handle, tag, self.model.clock)
        self.model.entries.append(entry)
        write(self.store, handle, tag)
        self.note("evicting" if victims else "new")
        return entry

    def expect_found(self, entry: Entry, handle: Document | None) -> None:
        assert handle is entry.handle
        self.model.counts["hits"] += 1
        entry.references += 1
        entry.last_use = self.model.now()
        self.note(f"found {entry.state}")

    @rule(name=NAMES)
    def acquire(self, name: int) -> None:
        self.acquire_one(name)

    @precondition(lambda self: self.has("filling", "ready"))
    @rule(pick=PICKS)
    def acquire_again(self, pick: int) -> None:
        self.acquire_one(self.some(pick, "filling", "ready").name)

    def acquire_one(self, name: int) -> None:
        entry, victims = self.model.named(name), self.model.victims([name], 0)
        if isinstance(victims, type):
            return self.refused(victims, self.store.acquire, DOCUMENTS[name])
        handle, is_new = self.store.acquire(DOCUMENTS[name])
        assert is_new == (entry is None)
        if entry:
            return self.expect_found(entry, handle)
        assert handle.num_tokens == len(DOCUMENTS[name]) and handle.key == self.store.key(DOCUMENTS[name])
        self.expect_new(name, handle, victims)

    @rule(name=NAMES)
    def lookup(self, name: int) -> None:
        entry = self.model.named(name)
        handle = self.store.lookup(DOCUMENTS[name])
        if entry:
            return self.expect_found(entry, handle)
        assert handle is None
        self.model.counts["misses"] += 1

    @precondition(lambda self: self.has("filling"))
    @rule(pick=PICKS)
    def commit(self, pick: int) -> None:
        entry = self.some(pick, "filling")
        self.store.commit(entry.handle)
        entry.state = "ready"

    @precondition(lambda self: self.has("filling"))
    @rule(pick=PICKS)
    def abandon(self, pick: int) -> None:
        entry = self.some(pick, "filling")
        self.store.abandon(entry.handle)
        entry.state = "abandoned"

    def release_one(self, entry: Entry) -> None:
        last_filling = entry.state == "filling" and entry.references == 1
        if entry.state == "evicted" or entry.references == 0 or last_filling:
            return self.refused(StoreError, self.store.release, entry.handle)
        self.store.release(entry.handle)
        entry.references -= 1
        entry.last_use = self.model.now()

    @precondition(lambda self: any(e.references for e in self.model.entries))
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        referenced = [e for e in self.model.entries if e.references]
        self.release_one(referenced[pick % len(referenced)])

    @precondition(lambda self: self.has("filling", "ready"))
    @rule(pick=PICKS)
    def pin(self, pick: int) -> None:
        entry = self.some(pick, "filling", "ready")
        self.store.pin(entry.handle)
        entry.pins += 1

    @precondition(lambda self: any(e.pins for e in self.model.entries))
    @rule(pick=PICKS)
    def unpin(self, pick: int) -> None:
        pinned = [e for e in self.model.entries if e.pins]
        self.unpin_one(pinned[pick % len(pinned)])

    def unpin_one(self, entry: Entry) -> None:
        self.store.unpin(entry.handle)
        entry.pins -= 1

    @precondition(lambda self: self.model.entries)
    @rule(pick=PICKS)
    def call_in_wrong_state(self, pick: int) -> None:
        """Makes every call that the state of one document forbids."""
        entry = self.model.entries[pick % len(self.model.entries)]
        if entry.state != "filling":
            self.refused(StoreError, self.store.commit, entry.handle)
            self.refused(StoreError, self.store.abandon, entry.handle)
        if entry.state in ("abandoned", "evicted"):
            self.refused(StoreError, self.store.pin, entry.handle)
        if entry.pins == 0:
            self.refused(StoreError, self.store.unpin, entry.handle)
        if entry.references == 0:
            self.refused(StoreError, self.store.release, entry.handle)
        self.refused(TypeError, self.store.free, entry.handle)

    @precondition(lambda self: self.model.entries)
    @rule(pick=PICKS)
    def wait(self, pick: int) -> None:
        entry = self.model.entries[pick % len(self.model.entries)]
        errors = {"filling": TimeoutError, "abandoned": InsertError, "evicted": StoreError}
        if entry.state == "ready":
            return entry.handle.wait(0)
        self.refused(errors[entry.state], entry.handle.wait, 0)

    @rule(names=st.lists(NAMES, max_size=3), tokens=st.integers(1, 3 * PAGE))
    def reserve(self, names: list[int], tokens: int) -> None:
        victims = self.model.victims(names, tokens)
        if isinstance(victims, type):
            return self.refused(victims, self.store.reserve, [DOCUMENTS[name] for name in names], tokens)
        documents, run = self.store.reserve([DOCUMENTS[name] for name in names], tokens)
        self.model.evict(victims)
        for name, (handle, is_new) in zip(names, documents, strict=True):
            entry = self.model.named(name)
            assert is_new == (entry is None)
            if entry:
                self.expect_found(entry, handle)
            else:
                self.expect_new(name, handle, [])
        self.expect_run(run, tokens)
        self.note("reserve evicting" if victims else "reserve")

    @rule(name=NAMES, fails=st.booleans())
    def use(self, name: int, fails: bool) -> None:
        entry, victims = self.model.named(name), self.model.victims([name], 0)
        if entry and entry.state == "filling":
            return  # this thread would wait forever; test_document_threads.py tests the wait
        filled: list[Entry] = []

        def fill(handle: Document) -> None:
            assert not handle.is_ready
            filled.append(self.expect_new(name, handle, victims))
            if fails:
                raise ZeroDivisionError

        def run() -> None:
            with self.store.use(DOCUMENTS[name], fill) as handle:
                assert handle.is_ready
                if entry:
                    self.expect_found(entry, handle)
                else:
                    assert handle is filled[0].handle
                    filled[0].state = "ready"
                self.compare()

        if isinstance(victims, type):
            return self.refused(victims, run)
        if entry is None and fails:
            with pytest.raises(ZeroDivisionError):
                run()
            filled[0].state = "abandoned"
            self.note("fill failed")
        else:
            run()
        used = entry or filled[0]
        used.references -= 1
        used.last_use = self.model.now()
        assert len(filled) == (entry is None)

    @rule(tokens=st.integers(1, (NUM_PAGES + 1) * PAGE) | st.integers(1, 3 * PAGE))
    def allocate(self, tokens: int) -> None:
        victims = self.model.victims([], tokens)
        if isinstance(victims, type):
            return self.refused(victims, self.store.allocate, tokens)
        handle = self.store.allocate(tokens)
        self.model.evict(victims)
        self.expect_run(handle, tokens)

    def expect_run(self, handle: PageRun, tokens: int) -> None:
        assert handle.num_tokens == tokens
        self.model.runs.append(Run(handle, float(self.model.now())))
        write(self.store, handle, self.model.runs[-1].tag)

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICKS)
    def free(self, pick: int) -> None:
        self.free_one(self.model.runs[pick % len(self.model.runs)])

    def free_one(self, run: Run) -> None:
        if run.is_free:
            return self.refused(StoreError, self.store.free, run.handle)
        self.store.free(run.handle)
        run.is_free = True

    @rule(num_bytes=st.integers(0, 1 << 40))
    def count_copied(self, num_bytes: int) -> None:
        self.store.count_copied(num_bytes)
        self.model.counts["copied"] += num_bytes

    @rule(runs=st.booleans(), pins=st.booleans())
    def finish(self, runs: bool, pins: bool) -> None:
        """Makes most documents evictable, so that histories do not end in a full store."""
        for entry in self.model.entries:
            if entry.state == "filling":
                self.store.commit(entry.handle)
                entry.state = "ready"
            while entry.references:
                self.release_one(entry)
            while pins and entry.pins:
                self.unpin_one(entry)
        for run in [r for r in self.model.runs if runs and not r.is_free]:
            self.free_one(run)

    @rule(really=st.integers(0, 3))
    def clear(self, really: int) -> None:
        if really == 3:
            self.model.evict(self.model.by_age())
            self.store.clear()

    @invariant()
    def everything_agrees(self) -> None:
        self.note("steps")
        self.compare()

    def compare(self) -> None:
        self.store.check()
        assert self.store.stats == self.model.stats()
        assert self.store.room() == self.model.free_pages() + sum(e.handle.num_pages for e in self.model.by_age())
        assert [e.handle.is_ready for e in self.model.entries] == [e.state == "ready" for e in self.model.entries]
        owners = self.model.owners()
        owned = [page for owner in owners for page in owner.handle.page_ids]
        assert len(owned) == len(set(owned)) and set(owned) <= set(range(NUM_PAGES))
        page_lists = self.store.pages.tolist()
        for owner in owners:
            pages = owner.handle
            assert tuple(page_lists[pages.first_page : pages.first_page + pages.num_pages]) == pages.page_ids
            assert pages.num_pages == len(pages.page_ids) == pages_of(pages.num_tokens)
            assert pages.num_bytes == pages.num_pages * PAGE_BYTES
        if owners:
            tags = torch.tensor([owner.tag for owner in owners for _ in owner.handle.page_ids])
            for i, pool in enumerate(pools(self.store)):
                low, high = pool.flatten(1)[owned].aminmax(dim=1)
                assert torch.equal(low, tags + i / 8) and torch.equal(high, low), "a live page was overwritten"


@pytest.fixture
def one_thread_for_torch():
    """Limits torch to one thread, because its threads would wait for each other on tiny tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_random_histories_agree_with_the_model(one_thread_for_torch, pytestconfig):
    StoreMachine.happened = happened = Counter()
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=300 if pytestconfig.getoption("soak") else 120,
            stateful_step_count=100,
            derandomize=True,
            print_blob=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert happened["steps"] >= 4_000, happened
    # Each of these events must have happened several times.
    for what in (
        "new",
        "evicting",
        "found ready",
        "found filling",
        "fill failed",
        "acquire: StoreFull",
        "acquire: DocumentTooLarge",
        "allocate: StoreFull",
        "allocate: DocumentTooLarge",
        "run: StoreFull",
        "reserve",
        "reserve evicting",
        "reserve: StoreFull",
        "reserve: DocumentTooLarge",
        "wait: InsertError",
        "wait: TimeoutError",
        "commit: StoreError",
        "abandon: StoreError",
        "release: StoreError",
        "pin: StoreError",
        "unpin: StoreError",
        "free: StoreError",
    ):
        assert happened[what] >= 8, (what, happened)
