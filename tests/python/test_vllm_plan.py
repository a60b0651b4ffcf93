"""Compares the plans of the vLLM plug-in with a model of vLLM's cache over random histories. It needs no vLLM."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lazyrope import SpecError
from lazyrope.vllm.fragments import num_blocks_to_take
from lazyrope.vllm.homes import BlockHomes
from lazyrope.vllm.layout import PromptLayout
from lazyrope.vllm.ledger import Ledger
from lazyrope.vllm.plan import Plan, RequestView, Rows, plan, plan_again

SIZE = 4
NUM_BLOCKS = 16
DOCUMENTS = {"a": 3, "b": 4, "c": 5, "d": 8, "e": 11}


@dataclass(eq=False)
class Request:
    """A request of the model. A key is known by the text before it, from the beginning of what its token sees.

    Attributes:
        name: The request's name.
        documents: The names of its documents.
        question: The tokens after the documents. Those that are generated are appended.
        has_prefix: True: the first document is a prefix, and the others are computed after it.
        overlay_tokens: The first tokens of each document that are computed again.
        layout: The documents' layout.
        blocks: The block table.
        computed: The tokens whose keys are in the blocks.
    """

    name: str
    documents: tuple[str, ...]
    question: list[str]
    has_prefix: bool = False
    overlay_tokens: int = 0
    layout: PromptLayout = field(init=False)
    blocks: list[int] = field(default_factory=list)
    computed: int = 0

    def __post_init__(self) -> None:
        lengths = tuple(DOCUMENTS[name] for name in self.documents)
        self.layout = PromptLayout(lengths, SIZE, self.has_prefix, self.overlay_tokens)

    @property
    def num_tokens(self) -> int:
        return self.layout.question + len(self.question)

    def key_at(self, position: int) -> tuple[Any, ...]:
        """Returns what decides the key of a token, other than its position."""
        for i, (name, begin) in enumerate(zip(self.documents, self.layout.starts, strict=True)):
            if begin <= position < begin + self.layout.padded_lengths[i]:
                prefix = self.documents[:1] if self.has_prefix and i > 0 else ()
                return (*prefix, name, position - begin)
        tail = [*range(sum(self.layout.overlays)), *self.question]
        recovery = self.has_prefix, self.overlay_tokens
        return (self.documents, recovery, *tail[: position - self.layout.tail + 1])

    def hash_of(self, block: int) -> tuple[Any, ...]:
        return self.key_at((block + 1) * SIZE - 1)

    def text(self) -> list[int]:
        """Returns the positions of what the question sees, in the order in which it sees it."""
        layout, result = self.layout, []
        overlay_begin = layout.tail
        for begin, length, overlay in zip(layout.starts, layout.lengths, layout.overlays, strict=True):
            result += [*range(overlay_begin, overlay_begin + overlay), *range(begin + overlay, begin + length)]
            overlay_begin += overlay
        return [*result, *range(overlay_begin, self.num_tokens)]

    def seen(self, position: int) -> set[tuple[tuple[Any, ...], int]]:
        """Returns the keys that a row sees, each with the position at which it sees it."""
        layout = self.layout
        for i, (begin, padded) in enumerate(zip(layout.starts, layout.padded_lengths, strict=True)):
            if begin <= position < begin + padded:
                prefix = range(layout.lengths[0]) if self.has_prefix and i > 0 else ()
                before = {(self.key_at(p), begin - len(prefix) + p) for p in prefix}
                return before | {(self.key_at(p), p) for p in range(begin, position + 1)}
        text = self.text()
        end = text.index(position)
        return {(self.key_at(p), position - end + i) for i, p in enumerate(text[: end + 1])}


class Cache:
    """A model of vLLM: blocks with prefix caching, eviction of the least recently freed, preemption.

    Attributes:
        pool: The key in each slot and the position by which it is rotated.
    """

    def __init__(self) -> None:
        self.pool: list[list[Any]] = [[None] * SIZE for _ in range(NUM_BLOCKS)]
        self.free = list(range(NUM_BLOCKS))
        self.references = [0] * NUM_BLOCKS
        self.hashes: dict[tuple[Any, ...], int] = {}
        self.ledger = Ledger(BlockHomes(NUM_BLOCKS, SIZE))
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.counts: dict[str, int] = {}
        self.shifted = self.hits = self.preemptions = self.cut_overlays = self.found_overlays = 0
        self.reused = 0
        self.last: tuple[list[Rows], int, Plan] | None = None

    def take(self, block: int) -> None:
        self.references[block] += 1
        if block in self.free:
            self.free.remove(block)

    def give_back(self, request: Request) -> None:
        for block in reversed(request.blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                self.free.append(block)
        request.blocks, request.computed = [], 0

    def new_block(self) -> int:
        block = self.free[0]
        self.hashes = {key: value for key, value in self.hashes.items() if value != block}
        self.take(block)
        return block

    def find(self, request: Request) -> list[int]:
        found = []
        for block in range((request.num_tokens - 1) // SIZE):
            if request.hash_of(block) not in self.hashes:
                break
            found.append(self.hashes[request.hash_of(block)])
        return found

    def schedule(self, rng: random.Random, budget: int) -> None:
        """Chooses the tokens of a pass, reports them to the ledger, and writes their keys."""
        self.counts = {}
        for request in list(self.running):
            if request in self.running:
                budget -= self.run(request, min(budget, request.num_tokens - request.computed), preempt=True)
        while self.waiting and budget > 0 and len(self.running) < 4:
            request = self.waiting[0]
            for block in (found := self.find(request)):
                self.take(block)
            request.blocks, request.computed = list(found), len(found) * SIZE
            count = min(budget, request.num_tokens - request.computed)
            if not self.run(request, count, preempt=False, admitted=True):
                self.give_back(request)
                break
            self.hits += len(found)
            self.found_overlays += bool(sum(request.layout.overlays)) and request.layout.tail < request.computed
            self.waiting.pop(0)
            self.running.append(request)
            budget -= count
        self.ledger.begin_pass(self.counts)

    def run(self, request: Request, count: int, *, preempt: bool, admitted: bool = False) -> int:
        """Gives a request the blocks for `count` more tokens. Returns the count, or 0 if there are too few blocks."""
        needed = -(-(request.computed + count) // SIZE) - len(request.blocks)
        while len(self.free) < needed:
            if not preempt:
                return 0
            victim = self.running[-1]
            self.counts.pop(victim.name, None)
            self.preempt(victim)
            if victim is request:
                return 0
        if count == 0:
            return 0
        new = [self.new_block() for _ in range(needed)]
        request.blocks += new
        if admitted:
            self.ledger.admit(request.name, request.layout, request.blocks, request.computed)
        else:
            self.ledger.extend(request.name, new, request.computed)
        for position in range(request.computed, request.computed + count):
            self.pool[request.blocks[position // SIZE]][position % SIZE] = (request.key_at(position), position)
        for block in range(request.computed // SIZE, (request.computed + count) // SIZE):
            self.hashes.setdefault(request.hash_of(block), request.blocks[block])
        self.counts[request.name] = count
        self.cut_overlays += request.layout.tail < request.computed + count < request.layout.question
        return count

    def preempt(self, request: Request) -> None:
        self.preemptions += 1
        self.running.remove(request)
        self.waiting.insert(0, request)
        self.give_back(request)

    def check(self, rng: random.Random) -> None:
        """Checks that every row of the pass sees the right keys at the right positions."""
        requests = [request for request in self.running if request.name in self.counts]
        if rng.random() < 0.2:
            rng.shuffle(requests)
        width = rng.choice([4 * NUM_BLOCKS, max((len(request.blocks) for request in requests), default=1)])
        table = np.full((len(requests), width), -1)
        for row, request in enumerate(requests):
            table[row, : len(request.blocks)] = request.blocks
        rows = self.ledger.rows([request.name for request in requests])
        made = plan(rows, width)
        self.check_reuse(rows, width, made)
        self.shifted += made.shifted
        seen = iter(seen_by_rows(made, self.pool, table.ravel(), positions_of(requests, self.counts)))
        for request in requests:
            for position in range(request.computed, request.computed + self.counts[request.name]):
                assert next(seen) == request.seen(position), (request, position)
        assert next(seen, None) is None
        for low, high in pairwise(made.indptr):  # neighbours that could be one segment are one
            for s in range(low, high - 1):
                joined = made.base[s] == made.base[s + 1] and made.start[s] + made.length[s] == made.start[s + 1]
                slot, after = (made.first_page[i] * SIZE + made.lead[i] for i in (s, s + 1))
                assert not (joined and slot + made.length[s] == after)

    def check_reuse(self, rows: list[Rows], width: int, made: Plan) -> None:
        """Checks that a plan made from the last one is the same as a new one."""
        if self.last is not None and self.last[1] == width:
            again = plan_again(self.last[2], self.last[0], rows)
            if again is not None:
                self.reused += 1
                for field_of in fields(Plan):
                    assert np.array_equal(getattr(again, field_of.name), getattr(made, field_of.name)), field_of.name
        self.last = rows, width, made

    def finish_pass(self, rng: random.Random) -> None:
        self.ledger.end_pass()
        for request in list(self.running):
            request.computed += self.counts.get(request.name, 0)
            if request.computed == request.num_tokens:
                request.question.append(rng.choice("xy"))
                if rng.random() < 0.1:
                    self.running.remove(request)
                    self.give_back(request)
                    self.ledger.drop(request.name)


def positions_of(requests: list[Request], counts: dict[str, int]) -> list[int]:
    return [p for each in requests for p in range(each.computed, each.computed + counts[each.name])]


def seen_by_rows(made: Plan, pool: list[list[Any]], pages: Any, positions: list[int]) -> list[set[Any]]:
    """Returns the keys that each row sees by the rules of lazyrope.Segments, with their logical positions."""
    result = []
    for r, (row, end) in enumerate(pairwise(made.q_indptr)):
        for position in positions[row:end]:
            keys = []
            for s in range(made.indptr[r], made.indptr[r + 1]):
                assert 0 <= made.lead[s] < SIZE
                for i in range(made.length[s]):
                    slot = made.lead[s] + i
                    key, written = pool[pages[made.first_page[s] + slot // SIZE]][slot % SIZE]
                    assert written == made.start[s] + i, "the segment's start is not the position of its first key"
                    if made.base[s] + made.start[s] + i <= position:
                        keys.append((key, int(made.base[s] + made.start[s] + i)))
            assert len(keys) == len(set(keys)), "a key is seen twice"
            result.append(set(keys))
    return result


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 32))
def test_rows_see_the_right_keys_at_the_right_positions(seed):
    """Evictions, preemptions and reuse of blocks by other requests, in passes of random sizes."""
    run_history(seed)


def run_history(seed: int) -> Cache:
    rng, cache = random.Random(seed), Cache()
    for number in range(10):
        question = [rng.choice("xy") for _ in range(rng.randrange(1, 7))]
        if number == 0 or rng.random() < 0.7:  # else a request with the documents of the last one
            documents = tuple(rng.choice(list(DOCUMENTS)) for _ in range(rng.randrange(4)))
            recovery = rng.random() < 0.4 and len(documents) > 0, rng.choice([0, 1, 3, 6])
        cache.waiting.append(Request(f"r{number}", documents, question, *recovery))
        for _ in range(rng.randrange(12)):
            cache.schedule(rng, rng.randrange(1, rng.choice([8, 40])))
            cache.check(rng)
            cache.finish_pass(rng)
    return cache


def test_the_histories_have_shifts_hits_and_preemptions():
    histories = [run_history(seed) for seed in range(40)]
    assert sum(cache.shifted for cache in histories) > 100
    assert sum(cache.hits for cache in histories) > 100
    assert sum(cache.preemptions for cache in histories) > 10
    assert sum(cache.cut_overlays for cache in histories) > 10
    assert sum(cache.found_overlays for cache in histories) > 10
    assert sum(cache.reused for cache in histories) > 10


@given(
    lengths=st.lists(st.integers(1, 20), max_size=4),
    homes=st.lists(st.sampled_from([0, 4, 8, 12, 40]), max_size=30),
    more=st.integers(0, 20),
    overlay_tokens=st.integers(0, 6),
    has_prefix=st.booleans(),
)
def test_a_request_takes_as_many_blocks_as_its_segments_allow(lengths, homes, more, overlay_tokens, has_prefix):
    has_prefix = has_prefix and bool(lengths)
    layout = PromptLayout(tuple(lengths), SIZE, has_prefix=has_prefix, overlay_tokens=overlay_tokens)
    found = np.array(homes, np.int32)
    limit = 2 * len(lengths) + 1 + more
    taken = num_blocks_to_take(layout, found, limit)

    def count(blocks: int) -> int:
        return len(RequestView(layout, found[:blocks]).seen_by_question[0])

    assert count(taken) <= limit
    assert taken == len(homes) or count(len(homes)) > limit


def test_a_moved_document_has_a_shift_for_each_home():
    layout = PromptLayout((4, 3), SIZE)
    moved = RequestView(layout, np.array([0, 0], np.int32))
    made = plan([Rows(moved, 8, 2)], 3)
    assert made.base.tolist() == [1, 5, 0] and made.start.tolist() == [0, 0, 8]


def test_neighbours_of_equal_shift_are_one_segment():
    plain = RequestView(PromptLayout((), SIZE), np.array([0, 4, 8], np.int32))
    made = plan([Rows(plain, 12, 3)], 4)
    assert (made.base.tolist(), made.start.tolist(), made.length.tolist()) == ([0], [0], [15])
    whole = RequestView(PromptLayout((4, 8), SIZE), np.array([], np.int32))  # all documents fill their blocks
    made = plan([Rows(whole, 0, 14)], 4)
    assert made.q_indptr.tolist() == [0, 4, 12, 14] and made.indptr.tolist() == [0, 1, 2, 3]
    assert made.length.tolist() == [4, 8, 14] and made.first_page.tolist() == [0, 1, 0]


def test_an_overlay_sees_what_is_before_it_and_the_question_sees_it():
    """The second document of 8 tokens is seen from 6 on. Its overlay is computed at 12 and 13."""
    layout = PromptLayout((4, 8), SIZE, overlay_tokens=2)
    made = plan([Rows(RequestView(layout, np.array([0, 8, 12], np.int32)), 12, 4)], 4)
    assert made.q_indptr.tolist() == [0, 2, 4] and made.indptr.tolist() == [0, 2, 6]
    columns = zip(made.base, made.start, made.length, made.first_page, made.lead, strict=True)
    overlay, own, *question = (tuple(map(int, each)) for each in columns)
    assert (overlay, own) == ((8, 0, 4, 0, 0), (0, 12, 2, 3, 0))
    assert question == [(2, 0, 4, 0, 0), (-6, 12, 2, 3, 0), (-2, 10, 6, 1, 2), (0, 14, 2, 3, 2)]


def test_overlays_of_whole_documents_are_one_piece():
    layout = PromptLayout((1,) * 90, SIZE, overlay_tokens=8)
    made = plan([Rows(RequestView(layout, np.arange(90, dtype=np.int32) * SIZE), 360, 92)], 120)
    assert made.q_indptr.tolist() == [0, 89, 92] and made.indptr.tolist() == [0, 2, 4]


def test_documents_after_a_prefix_see_it():
    layout = PromptLayout((3, 4, 2), SIZE, has_prefix=True, overlay_tokens=2)
    assert layout.overlays == (0, 0, 2) and layout.overlay_starts == (12, 12, 12) and layout.question == 14
    made = plan([Rows(RequestView(layout, np.array([], np.int32)), 0, 12)], 4)
    assert made.indptr.tolist() == [0, 1, 3, 5]
    assert made.base.tolist() == [0, 1, 0, 5, 0] and made.start.tolist() == [0, 0, 4, 0, 8]
    assert made.length.tolist() == [4, 3, 4, 3, 4] and made.first_page.tolist() == [0, 0, 1, 0, 2]


def test_rows_of_a_graph_capture_see_nothing():
    made = plan([Rows(None, 0, 1), Rows(None, 0, 1)], 4)
    assert made.q_indptr.tolist() == [0, 1, 2] and made.indptr.tolist() == [0, 0, 0] and made.base.dtype == np.int32


@given(
    lengths=st.lists(st.integers(1, 40), max_size=5),
    size=st.sampled_from([1, 4, 16]),
    overlay_tokens=st.integers(0, 20),
    has_prefix=st.booleans(),
)
def test_layouts(lengths, size, overlay_tokens, has_prefix):
    layout = PromptLayout(tuple(lengths), size, has_prefix, overlay_tokens)
    tokens = list(range(sum(lengths) + 3))
    padded = layout.padded(tokens)
    assert padded[layout.question :] == tokens[-3:] and layout.tail % size == 0
    begin, overlay_begin = 0, layout.tail
    for i, (start, length) in enumerate(zip(layout.starts, lengths, strict=True)):
        assert start % size == 0 and padded[start : start + length] == tokens[begin : begin + length]
        overlay = min(overlay_tokens, length) if i > has_prefix else 0
        assert (layout.overlays[i], layout.overlay_starts[i]) == (overlay, overlay_begin)
        assert padded[overlay_begin : overlay_begin + overlay] == tokens[begin : begin + overlay]
        begin, overlay_begin = begin + length, overlay_begin + overlay
    assert layout.question == overlay_begin
    ends = [seen + length for seen, length in zip(layout.seen_from, lengths, strict=True)]
    assert ends == [*layout.seen_from[1:], layout.question][: len(ends)] and min([0, *layout.seen_from]) >= 0


def test_mistakes_are_refused():
    homes = BlockHomes(4, SIZE)
    with pytest.raises(SpecError, match="num_blocks is 0"):
        BlockHomes(0, SIZE)
    with pytest.raises(SpecError, match="the request's 1 blocks hold tokens 0 to 3"):
        homes.write([([1], 2, 3)])
    with pytest.raises(SpecError, match="blocks 4 to 4 are given; the cache has 4"):
        homes.read([4])
    with pytest.raises(SpecError, match="block 2 is read and was never written"):
        homes.read([2])
    with pytest.raises(SpecError, match="document 1 has 0 tokens"):
        PromptLayout((3, 0), SIZE)
    with pytest.raises(SpecError, match=r"the documents have 7 tokens \(3, 4\), and the prompt has 5"):
        PromptLayout((3, 4), SIZE).padded([1] * 5)
    ledger = Ledger(homes)
    with pytest.raises(SpecError, match="found 3 tokens in the cache; these are no whole blocks"):
        ledger.admit("r", PromptLayout((), SIZE), [0], 3)
    with pytest.raises(SpecError, match="request r is unknown"):
        ledger.begin_pass({"r": 1})
    with pytest.raises(SpecError, match="outside of a pass"):
        ledger.rows(["r"])
    ledger.begin_pass({})
    with pytest.raises(SpecError, match="request r is not in this pass"):
        ledger.rows(["r"])
