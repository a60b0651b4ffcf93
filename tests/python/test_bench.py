"""``lazyrope bench`` without a GPU: its rows, what is required of them, what it prints; rows run in the emulator, where
a timer that counts stands in for the GPU's events."""

from __future__ import annotations

import itertools
import json
import sys
import unittest.mock
from dataclasses import replace

import lazyrope
import pytest
import torch
from lazyrope import bench
from lazyrope.bench import stream as streams
from lazyrope.bench import timer as timers
from lazyrope.bench.limits import AIM, Limit, MeanLimit, count_unmet, evaluate, evaluate_mean, limit_text, mean_text
from lazyrope.bench.peers import PAGED, PEERS
from lazyrope.bench.rows import Bench, LazyAttention, Requests
from lazyrope.bench.shapes import ALL_PEERS, Shape
from lazyrope.bench.stream import Stream
from lazyrope.bench.tables import TABLE_LIMITS, TABLES
from lazyrope.bench.timer import Memory, Timer

ARCH = "emu:sm_80"
in_emulator = pytest.mark.skipif(ARCH not in lazyrope.archs(), reason="built without the emulator")
SMALL = {"heads": (4, 2), "head_dim": 64, "rope": "neox"}


class Counter(Timer):
    """Calls everything once. The n-th of a row's calls takes n microseconds, or one less or more."""

    def __init__(self) -> None:
        pass

    def times(self, calls, rounds=None):
        for call in calls.values():
            call()
        return {name: [n - 1.0, float(n), n + 1.0] for n, name in enumerate(calls, 1)}


def emulated(*peers: str) -> Bench:
    return Bench(Counter(), Memory("cpu"), peers, arch=ARCH)


def all_shapes() -> list[Shape]:
    return [shape for table in TABLES.values() for shape in table]


class TestShapes:
    def test_every_row_has_what_its_limits_are_over(self):
        attention = {"stream_us", "best_peer", "best_paged_peer"}
        measured = {"decode": attention, "prefill": attention, "plan": {"floor_us"}}
        limited_rows = [shape for shape in all_shapes() if shape.limits]
        for shape in limited_rows:
            known = measured[shape.kernel] | {*shape.variants, *shape.peers}
            over = [part for limit in shape.limits if limit.over for part in limit.over.split(" + ")]
            assert set(over) <= known
            assert set(shape.peers) <= set(PEERS)
            assert "best_paged_peer" not in {limit.over for limit in shape.limits} or PAGED & set(shape.peers)
        assert len({id(shape) for shape in limited_rows}) > 10

    def test_the_sweep_is_as_wide_as_it_is_said_to_be(self):
        rows = TABLES["sweep"]
        assert {row.head_dim for row in rows} == {64, 128, 256}
        assert {row.heads[0] // row.heads[1] for row in rows} == {1, 4, 7, 8, 16}
        assert {(8, 1), (16, 2)} < {row.heads for row in rows}
        assert (min(row.batch for row in rows), max(row.batch for row in rows)) == (1, 256)
        assert (min(row.context for row in rows), max(row.context for row in rows)) == (1 << 10, 1 << 17)
        assert max(row.kv_bytes for row in rows) == 16 << 30
        for row in rows:
            assert {limit.over for limit in row.limits} == {"best_peer"} | (
                {"stream_us"} if row.kv_bytes > 1e9 else set()
            )

    def test_rows_that_are_judged_together(self):
        (limit,) = TABLE_LIMITS["prefill"]
        rows = [row for row in TABLES["prefill"] if row.group == limit.group]
        sizes = {(row.head_dim, row.heads, row.context, row.mask) for row in rows}
        assert len(sizes) == len(rows) == 24
        for row in rows:
            assert row.batch * row.query_tokens == 16384 and row.query_tokens == row.context
            assert row.doc_tokens <= 1024 and row.rope != "none" and row.page_size == 16

    def test_a_rate_that_is_required_is_a_time(self):
        row = next(row for row in TABLES["prefill"] if (row.query_tokens, row.context) == (2048, 8192))
        assert row.limits[0].plus_us == pytest.approx(4 * 2048 * 8192 * 32 * 128 / 640e6)

    @pytest.mark.parametrize("name", TABLES)
    def test_rows_of_a_table_differ(self, name):
        abouts = [json.dumps(shape.about()) for shape in TABLES[name]]
        assert len(set(abouts)) == len(abouts)

    def test_peers_are_not_asked_for_scores_that_they_have_not(self):
        assert any(shape.options for shape in all_shapes())
        assert not any(shape.peers for shape in all_shapes() if {"window", "softcap", "sinks"} & set(shape.options))

    def test_every_row_is_one_that_can_be_compiled(self):
        for shape in all_shapes():
            for variant in [shape, *map(shape.variant, shape.variants.values())]:
                assert variant.spec().head_dim == shape.head_dim

    def test_documents_fill_each_context(self):
        for shape in all_shapes():
            documents = shape.documents
            assert [sum(lengths) for lengths in documents] == shape.contexts
            assert all(length > 0 for lengths in documents for length in lengths)
            assert shape.documents == documents

    @pytest.mark.parametrize("mean", [64, 400])
    def test_ragged_documents_have_their_mean(self, mean):
        documents = Shape("decode", 64, 1, 65536, doc_tokens=mean, ragged=True).documents
        lengths = [length for request in documents for length in request]
        assert abs(sum(lengths) / len(lengths) / mean - 1) < 0.05
        assert min(lengths) < mean / 4 and max(lengths) > 1.75 * mean

    def test_a_first_request_of_another_length(self):
        shape = Shape("decode", 3, 1, 100, first_context=1000)
        assert shape.contexts == [1000, 100, 100]
        assert shape.kv_bytes == 1200 * 8 * 128 * 2 * 2
        assert replace(shape, kv_dtype="float8_e4m3fn").kv_bytes == 1200 * 8 * 128 * 2

    def test_a_chunk_among_requests_that_decode(self):
        shape = Shape("prefill", 3, 1, 100, first_context=1000, first_tokens=20)
        assert shape.tokens == [20, 1, 1] and shape.first_query == [1000, 100, 100]
        assert shape.flops == (20 * 1000 + 2 * 100) * 4 * 32 * 128
        causal = replace(shape, mask="causal")
        assert causal.first_query == [980, 99, 99]
        assert causal.flops == (sum(range(981, 1001)) + 2 * 100) * 4 * 32 * 128

    def test_bytes_behind_a_window_are_not_counted(self):
        assert Shape("decode", 2, 1, 100, options={"window": 30}).kv_bytes == 2 * 30 * 8 * 128 * 2 * 2

    def test_causal_queries_are_the_last_tokens(self):
        assert Shape("decode", 2, 4, 100, mask="causal").first_query == [96, 96]
        assert Shape("decode", 2, 4, 100).first_query == [100, 100]

    def test_flops_are_of_the_keys_that_queries_see(self):
        of_a_pair = 4 * 2 * 32 * 128
        assert Shape("prefill", 2, 4, 8).flops == 4 * 8 * of_a_pair
        assert Shape("prefill", 2, 4, 8, mask="causal").flops == (5 + 6 + 7 + 8) * of_a_pair
        assert Shape("prefill", 2, 4, 8, mask="causal", options={"window": 6}).flops == (5 + 6 + 6 + 6) * of_a_pair
        assert Shape("prefill", 2, 4, 8, options={"window": 6}).flops == (5 + 4 + 3 + 2) * of_a_pair

    def test_a_variant_compares_nothing_itself(self):
        shape = next(shape for shape in TABLES["decode"] if len(shape.variants) > 1)
        variant = shape.variant(shape.variants["plain"])
        assert (variant.rope, variant.doc_tokens, variant.limits, variant.variants) == ("none", shape.context, (), {})


class TestLimits:
    def test_the_more_generous_bound_holds(self):
        limit = Limit("best_peer", factor=1.03, plus_us=1)
        assert limit.bound(10) == 11 and limit.bound(100) == 103
        assert Limit("stream_us", factor=0.985).bound(1000) == 985
        assert Limit(None, plus_us=530).bound(0) == 530

    def test_they_say_what_they_are(self):
        assert str(Limit("best_peer", factor=1.03, plus_us=1)) == "1.03 x best_peer or best_peer + 1 us"
        assert str(Limit(None, plus_us=530)) == "530 us"
        assert str(Limit("stream_us", factor=1.015)) == "1.015 x stream_us"

    def row(self, **changes):
        return {"us": 100.0, "stream_us": 90.0, "own": {"plain": 99.5}, "peers": {"a": 95.0, "p": 105.0}} | changes

    def test_rows_are_judged_by_what_was_measured(self):
        limits = (
            Limit("stream_us", factor=1.05),
            Limit("best_peer", factor=1),
            Limit("best_paged_peer", factor=1),
            Limit("plain", factor=1.01),
            Limit("stream_us", factor=1, kind=AIM),
        )
        row = self.row()
        row["limits"] = evaluate(limits, row, frozenset({"p"}))
        assert [limit["met"] for limit in row["limits"]] == [False, False, True, True, False]
        assert count_unmet(2 * row["limits"]) == 4  # aims are none
        assert "required: at most 1.05 x stream_us = 94.5 us: NOT MET by 5.8%" in limit_text(row["limits"][0], 100.0)

    def test_what_cannot_be_judged_is_not_kept(self):
        row = self.row(peers={"a": 95.0})
        row["limits"] = evaluate((Limit("best_paged_peer", factor=1),), row, frozenset({"p"}))
        assert row["limits"][0]["met"] is None and count_unmet(row["limits"]) == 1
        assert "not evaluated" in limit_text(row["limits"][0], 100.0)

    def test_a_limit_may_be_over_one_peer_or_a_sum(self):
        row = self.row(own={"one": 40.0, "other": 50.0})
        limits = (Limit("one + other", factor=1.05), Limit("p", factor=0.9), Limit("one + third", factor=1))
        outcomes = evaluate(limits, row, frozenset())
        assert [limit["bound_us"] for limit in outcomes] == [94.5, 94.5, None]

    def test_rows_that_are_judged_by_their_mean(self):
        limit = MeanLimit("squares", "best_peer", 0.97)
        rows = [self.row(group="squares", us=us) for us in (95.0 / 0.9, 95.0 / 1.1)] + [self.row()]
        outcome = evaluate_mean(limit, rows, frozenset())
        assert outcome["mean"] == pytest.approx(0.99**0.5) and outcome["met"]
        assert mean_text(outcome).endswith("over ours, in all rows of squares: 0.97: 0.995, met")
        slower = evaluate_mean(limit, [*rows, self.row(group="squares", us=120.0)], frozenset())
        assert not slower["met"] and count_unmet([slower]) == 1 and mean_text(slower).endswith("NOT MET")

    def test_a_mean_of_which_a_part_is_missing_is_not_kept(self):
        rows = [self.row(group="squares", us=1.0), self.row(group="squares", us=1.0, peers={})]
        for some in (rows, []):
            outcome = evaluate_mean(MeanLimit("squares", "best_peer", 0.97), some, frozenset())
            assert outcome["met"] is None and "not evaluated" in mean_text(outcome)


class Gpu(unittest.mock.MagicMock):
    """Stands in for torch: a clock that calls advance, in milliseconds, and events that read it."""

    def prepare(self) -> Timer:
        self.now, self.log = 0.0, []
        self.late_calls, self.head_starts = 0, set()
        self.cuda.get_device_properties.return_value.L2_cache_size = 1 << 10
        self.cuda.Event = lambda enable_timing: Event(self)
        self.cuda._sleep = self.sleep
        self.cuda.synchronize = lambda: self.log.append("done")
        self.zeros.return_value.max = lambda: self.log.append("flushed")
        return Timer(rounds=30)

    def sleep(self, cycles: int) -> None:
        self.log.append("wait")
        if cycles > 1:
            self.head_starts.add(cycles)

    def call(self, name: str, ms: float):
        def run():
            self.log.append(name)
            self.now += ms

        return run


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def record(self) -> None:
        self.at = self.gpu.now

    def query(self) -> bool:
        """Whether the GPU has passed it, which it has when the host is late."""
        self.gpu.late_calls -= 1
        return self.gpu.late_calls >= 0

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


class TestTimer:
    @pytest.fixture
    def gpu(self, monkeypatch):
        gpu = Gpu()
        monkeypatch.setattr(timers, "torch_with_gpu", lambda: gpu)
        return gpu

    def test_calls_take_turns_behind_a_flush(self, gpu):
        times = gpu.prepare().medians({"a": gpu.call("a", 0.5), "b": gpu.call("b", 2.0)})
        assert times == {"a": pytest.approx(500), "b": pytest.approx(2000)}
        timed = {name: ["wait", "flushed", name, "done"] for name in "ab"}
        told = [event for event, _ in itertools.groupby(gpu.log[4:])]
        assert gpu.log[:4] == ["a", "a", "b", "b"]
        rounds = [told[i : i + 8] for i in range(0, len(told), 8)]
        orders = [timed["a"] + timed["b"], timed["b"] + timed["a"]]
        assert len(rounds) == 1 + 30 and all(calls in orders for calls in rounds)

    def test_no_call_always_comes_behind_the_same_one(self, gpu):
        gpu.prepare().medians({name: gpu.call(name, 0.5) for name in "abc"})
        made = [event for event in gpu.log if event in "abc"]
        assert {*itertools.pairwise(made[9:])} >= {*itertools.permutations("abc", 2)}

    def test_no_call_comes_behind_as_many_commands_each_time(self, gpu):
        gpu.prepare().medians({"a": gpu.call("a", 0.5)})
        waits = {len([*run]) for event, run in itertools.groupby(gpu.log) if event == "wait"}
        assert len(waits) > 3

    @pytest.mark.parametrize(("ms", "rounds"), [(1, 30), (25, 20), (1000, 9)])
    def test_long_calls_have_fewer_rounds(self, gpu, ms, rounds):
        gpu.prepare().medians({"a": gpu.call("a", ms)})
        assert gpu.log.count("a") == 3 + rounds

    def test_a_call_that_the_gpu_has_waited_for_is_made_again(self, gpu):
        timer = gpu.prepare()
        gpu.late_calls = 3
        timer.medians({"a": gpu.call("a", 0.5)}, rounds=12)
        assert gpu.log.count("a") == 2 + 3 + 12
        assert gpu.head_starts == {timers.HEAD_START << i for i in range(4)}

    def test_a_call_that_waits_for_itself_cannot_be_timed(self, gpu):
        timer = gpu.prepare()
        gpu.late_calls = 1000
        with pytest.raises(RuntimeError, match=r"0.1 s and more to queue a call, or waits for it"):
            timer.once(gpu.call("a", 0.5))

    def test_rounds_that_are_given_are_done(self, gpu):
        timer = gpu.prepare()
        timer.medians({"a": gpu.call("a", 1000)}, rounds=12)
        assert gpu.log.count("a") == 2 + 12


class TestMemory:
    def test_is_made_once(self):
        memory = Memory("cpu")
        k, v = memory.keys_and_values((2, 3, 4), "bfloat16")
        assert k.shape == v.shape == (2, 3, 4) and not torch.equal(k, v)
        again, _ = memory.keys_and_values((6, 1, 2), "bfloat16")
        assert again.data_ptr() == k.data_ptr()
        assert len(memory.numbers(1000, "bfloat16")) == 1000

    def test_a_page_s_keys_lie_beside_its_values(self):
        memory = Memory("cpu")
        size = (3, 16, 2, 8)
        page = 16 * 2 * 8
        k, v = memory.pools(size, "bfloat16")
        assert k.shape == v.shape == size and k.stride() == v.stride() == (2 * page, 16, 8, 1)
        assert v.storage_offset() - k.storage_offset() == page
        k, v = memory.pools(size, "bfloat16", apart=True)
        assert k.is_contiguous() and v.storage_offset() - k.storage_offset() == 3 * page

    @pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2"])
    def test_numbers_are_of_a_normal_distribution(self, dtype):
        numbers = Memory("cpu").numbers(10000, dtype)
        assert numbers.dtype == getattr(torch, dtype)
        assert abs(numbers.float().std().item() - 1) < 0.05


class TestStream:
    def test_each_size_has_the_winner_of_one_contest(self, monkeypatch):
        """The last one of three is the fastest."""
        benchmarks = []

        class Reversed(Counter):
            def times(self, calls, rounds=None):
                benchmarks.append(rounds)
                return {name: [-us for us in times] for name, times in super().times(calls).items()}

        sums = {name: lambda: None for name in ("torch", "a", "b")}
        monkeypatch.setattr(Stream, "_calls", lambda stream, num_bytes: sums)
        stream = Stream(Reversed(), Memory("cpu"))
        assert stream.sum(64) == stream.sum(64) == ("b", sums["b"])
        assert stream.sum(128)[0] == "b" and benchmarks == [streams.ROUNDS] * 2

    def test_shapes_of_triton_s_sum(self, monkeypatch):
        """Some programs for each SM, or one for each block, but none without one."""
        made = []
        module = unittest.mock.MagicMock(partial_sums=lambda numbers, *shape: made.append((len(numbers), *shape)))
        monkeypatch.setitem(sys.modules, "lazyrope.bench.triton", module)
        properties = unittest.mock.MagicMock(multi_processor_count=3)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        stream = Stream(Counter(), Memory("cpu"))
        stream.has_triton = True
        names = [*stream._calls(4 * 8192 * 10)]
        assert names[0] == "torch" and "triton, 6 programs, blocks of 8192" in names
        assert (8192 * 10, 6, 8192) in made and (8192 * 10, 40, 2048) in made
        assert {programs for _, programs, block in made if block == 8192} == {6, 10}
        assert [*stream._calls(4 * 4096)] == [
            "torch",
            *(f"triton, {n} programs, blocks of {4096 // n}" for n in (2, 1)),
        ]

    def test_without_triton_there_is_pytorch_s(self, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "lazyrope.bench.triton", None)
        assert not streams._triton_works(Memory("cpu"))
        assert "PyTorch's sum only, Triton does not work here" in capsys.readouterr().err

    def test_reads_as_many_bytes_as_it_says(self):
        memory = Memory("cpu")
        name, call = Stream(Counter(), memory).sum(4096)
        assert name == "torch"
        assert torch.equal(call(), memory.numbers(2048, "bfloat16").view(torch.float32).sum())


@in_emulator
class TestRows:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"doc_tokens": 40, "ragged": True},
            {"first_context": 500, "page_size": 32},
            {"mask": "causal", "query_tokens": 4},
        ],
    )
    def test_documents_lie_in_pages_of_their_own(self, options):
        shape = Shape(**{"kernel": "decode", "batch": 3, "query_tokens": 1, "context": 200, **SMALL, **options})
        requests = Requests(replace(shape, doc_tokens=options.get("doc_tokens", 64)), emulated())
        tensors = {name: values for name, values in requests.metadata.items() if name != "segments"}
        tensors |= {name: getattr(requests.metadata["segments"], name) for name in ("base", "length", "first_page")}
        given = {name: values.tolist() for name, values in tensors.items()}
        indptr = requests.metadata["segments"].indptr.tolist()
        requests.step.update(**requests.metadata, check=True)
        used: set[int] = set()
        for request, context in enumerate(shape.contexts):
            segments = range(*indptr[request : request + 2])
            expected = 0
            for segment in segments:
                assert given["base"][segment] == expected
                expected += given["length"][segment]
                count = -(-given["length"][segment] // shape.page_size)
                pages = given["pages"][given["first_page"][segment] :][:count]
                assert len(pages) == count and used.isdisjoint(pages)
                used.update(pages)
            assert expected == context
            first, end = given["q_indptr"][request : request + 2]
            last = context - 1 if shape.mask == "causal" else context + shape.query_tokens - 1
            assert given["q_position"][first:end] == list(range(last + 1 - shape.query_tokens, last + 1))
        assert used == set(range(requests.num_pages))

    def test_plain_reads_what_lazy_reads(self):
        """The same keys and values, so that times differ by what is lazy alone."""
        shape = Shape("decode", 2, 1, 96, doc_tokens=32, **SMALL)
        bench_ = emulated()
        lazy = LazyAttention(shape, bench_)
        plain = LazyAttention(shape.variant({"rope": "none", "doc_tokens": 96}), bench_)
        assert lazy.k_pool.data_ptr() == plain.k_pool.data_ptr() and lazy.num_pages == plain.num_pages

    def test_a_decode_row(self):
        shape = Shape(
            "decode",
            2,
            1,
            96,
            doc_tokens=32,
            variants={"plain": {"rope": "none", "doc_tokens": 96}},
            limits=(Limit("plain", factor=1), Limit("stream_us", plus_us=1)),
            **SMALL,
        )
        row = bench.measured(shape, emulated())
        assert (row["us"], row["plan_us"], row["stream_us"], row["step_us"], row["own"]) == (1, 2, 3, 4, {"plain": 5})
        assert row["tbps"] == shape.kv_bytes / 1e6 and row["peers"] == {} and row["stream_by"] == "torch"
        assert row["rounds"] == 3 and row["quartiles_us"] == [0.5, 1.5]
        assert [limit["met"] for limit in row["limits"]] == [True, True]
        json.dumps(row)

    def test_kernels_are_compiled_ahead_once_each(self, capsys):
        shapes = [Shape("decode", 1, 1, context, **SMALL) for context in (64, 128)]
        shapes.append(replace(shapes[0], variants={"plain": {"rope": "none"}}))
        bench.compile_ahead(shapes, emulated())
        assert capsys.readouterr().err.endswith("compiled 2 of 2 attentions\n")

    def test_a_step_of_a_chunk_and_of_requests_that_decode(self, capsys):
        apart = {"decoding": {"batch": 2, "first_context": None, "first_tokens": None}, "chunk": {"batch": 1}}
        limits = (Limit("decoding + chunk", factor=1.05),)
        shape = Shape("prefill", 3, 1, 32, first_context=64, first_tokens=40, variants=apart, limits=limits, **SMALL)
        row = bench.measured(shape, emulated())
        assert set(row["own"]) == set(apart) and row["limits"][0]["bound_us"] == pytest.approx(1.05 * (5 + 6))
        assert "3 x 1 over 64 and 32, 40 of the first" in capsys.readouterr().out

    def test_the_family_that_every_gpu_has(self):
        compiled = Bench(Counter(), Memory("cpu"), (), arch="emu:sm_90a")
        shape = Shape("prefill", 1, 20, 64, **SMALL)
        families = [compiled.compile(replace(shape, family=family)).config.prefill.family for family in (None, "sm80")]
        assert families == ["sm90a", "sm80"]

    def test_an_eight_bit_row(self):
        row = bench.measured(Shape("decode", 1, 1, 64, kv_dtype="float8_e4m3fn", **SMALL), emulated())
        assert row["tbps"] == 64 * 2 * 2 * 64 / 1e6

    def test_rows_of_a_prefill_and_of_copies(self):
        for kernel, peers in (
            ("prefill", []),
            ("append", ["torch_copy"]),
            ("reposition", ["torch_copy", "torch_eager"]),
        ):
            row = bench.measured(Shape(kernel, 1, 20, 64 if kernel == "prefill" else 0, **SMALL), emulated())
            assert [*row["peers"]] == peers and row["stream_us"] > 0

    def test_a_row_of_the_planner(self, monkeypatch, capsys):
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
        shape = Shape("plan", 3, 1, 96, doc_tokens=32, peers=(), limits=(Limit("floor_us", plus_us=4),), **SMALL)
        row = bench.measured(shape, emulated())
        assert (row["us"], row["floor_us"], row["segments"]) == (1, 2, 9) and row["limits"][0]["met"]
        assert "3 requests of 9 segments in all: 1.0 us, floor 2.0 (0.500x)" in capsys.readouterr().out


class TestCommand:
    @pytest.fixture
    def run(self, monkeypatch, tmp_path):
        """``lazyrope bench`` over one row, with times that are given; its exit code and JSON."""

        def run(us: float, *arguments: str):
            shape = Shape("decode", 1, 1, 64, limits=(Limit("stream_us", factor=1.1),), **SMALL)
            row = {"us": us, "stream_us": 10.0, "tbps": 1.0, "own": {}, "peers": {}}
            monkeypatch.setitem(TABLES, "decode", [shape])
            monkeypatch.setattr(bench, "KINDS", {"decode": lambda shape, bench: row})
            monkeypatch.setattr(bench, "Timer", lambda rounds: Counter())
            monkeypatch.setattr(bench, "Memory", lambda: Memory("cpu"))
            monkeypatch.setattr(bench, "compile_ahead", lambda shapes, bench: None)
            monkeypatch.setattr(bench, "environment", lambda timer, commit: {"commit": commit})
            file = tmp_path / "figures.json"
            with pytest.raises(SystemExit) as stopped:
                bench.main(["decode", "--json", str(file), "--peers", "cudnn", *arguments])
                raise SystemExit(0)
            return stopped.value.code, json.loads(file.read_text())

        return run

    def test_writes_what_was_measured(self, run, capsys):
        code, figures = run(10.5, "--commit", "abc", "--rounds", "7")
        assert code == 0 and figures["commit"] == "abc" and "host" not in figures
        assert figures["command"] == "lazyrope bench decode --rounds 7 --peers cudnn"
        (row,) = figures["rows"]
        assert (row["kernel"], row["context"], row["us"], row["limits"][0]["met"]) == ("decode", 64, 10.5, True)
        assert "10.5 us, 1.00 TB/s, stream 10.0 (1.050x)" in capsys.readouterr().out

    def test_check_fails_where_a_row_misses(self, run, capsys):
        assert run(11.5)[0] == 0 and run(10.5, "--check")[0] == 0
        assert run(11.5, "--check")[0] == 1
        assert "1 required limits not met or not evaluated" in capsys.readouterr().err

    def test_nothing_is_required_of_rows_that_were_changed(self, run):
        code, figures = run(11.5, "--check", "--doc-tokens", "32")
        assert code == 0 and figures["rows"][0]["doc_tokens"] == 32 and figures["rows"][0]["limits"] == []

    def test_rows_are_changed_only_where_it_is_said(self):
        def chosen(*arguments):
            return bench.chosen(bench.argument_parser().parse_args(arguments))

        assert chosen("decode") == TABLES["decode"]
        assert {shape.page_size for shape in chosen("decode", "--page-size", "64")} == {64}
        assert not any(shape.pools_apart for shape in chosen("decode"))
        assert all(shape.pools_apart for shape in chosen("decode", "--pools-apart"))

    def test_the_command_measures_the_same(self):
        parser = bench.argument_parser()
        arguments = ["decode", "--pools-apart", "--rounds", "11", "--check"]
        assert bench.command_text(parser, parser.parse_args(arguments)) == (
            "lazyrope bench decode --pools-apart --rounds 11"
        )

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["decode", "--peers", "cudnn,frobnicate"], "frobnicate is not one of cudnn, flash_attention_2"),
            (["frobnicate"], "invalid choice: 'frobnicate'"),
            (["decode", "--rounds", "many"], "--rounds"),
        ],
    )
    def test_mistakes_are_named(self, arguments, says, capsys):
        with pytest.raises(SystemExit) as stopped:
            bench.main(arguments)
        assert stopped.value.code == 2 and says in capsys.readouterr().err

    def test_help_names_every_table_and_peer(self, capsys):
        with pytest.raises(SystemExit):
            bench.main(["--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert all(name in text for name in (*TABLES, *ALL_PEERS))

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_says_what_is_missing(self):
        with pytest.raises(SystemExit, match="needs a GPU that PyTorch can use"):
            bench.main(["decode"])
