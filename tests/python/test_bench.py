"""``lazyrope bench`` without a GPU: its shapes, its timer and its output.

Rows run in the emulator. Their timer invents times instead of recording CUDA events: n microseconds for the n-th call.
"""

from __future__ import annotations

import itertools
import json
import sys
import unittest.mock
from dataclasses import replace

import pytest
import torch
from lazyrope import bench
from lazyrope.bench import stream as streams
from lazyrope.bench import timer as timers
from lazyrope.bench.peers import PEERS, UnsupportedShape, is_causal_square, peer_calls
from lazyrope.bench.report import shared_text, table_text
from lazyrope.bench.rows import Bench, Requests, attention_row
from lazyrope.bench.shapes import Shape
from lazyrope.bench.shared import SharedShape, shared_shapes
from lazyrope.bench.stream import Stream
from lazyrope.bench.tables import TABLES
from lazyrope.bench.timer import Memory, Timer

from tests.support.bench import ARCH, SMALL, FakeTimer, in_emulator


def emulated() -> Bench:
    return Bench(FakeTimer(), Memory("cpu"), PEERS, arch=ARCH)


class TestShapes:
    def test_every_name_measures_beside_pytorch(self):
        assert [*TABLES] == ["decode", "prefill", "append", "reposition", "all"]
        for name, shapes in TABLES.items():
            assert name == "all" or {shape.kernel for shape in shapes} == {name}
            assert all(set(shape.peers) == set(PEERS) for shape in shapes)
        assert len(TABLES["all"]) == sum(len(shapes) for name, shapes in TABLES.items() if name != "all")

    def test_rows_differ(self):
        abouts = [json.dumps(shape.about()) for shape in TABLES["all"]]
        assert len(set(abouts)) == len(abouts)

    def test_documents_fill_each_context(self):
        assert Shape("decode", 2, 1, 100, doc_tokens=40).documents == [[40, 40, 20]] * 2
        assert Shape("decode", 1, 1, 80, doc_tokens=40).documents == [[40, 40]]
        assert Shape("decode", 1, 1, 100, doc_tokens=40).bases == [[0, 40, 80]]
        assert Shape("append", 1, 20, 0).documents == [[]]

    def test_causal_queries_are_the_last_tokens(self):
        assert Shape("decode", 2, 4, 100, mask="causal").first_query == [96, 96]
        assert Shape("decode", 2, 4, 100).first_query == [100, 100]

    def test_bytes_are_those_of_keys_and_values(self):
        shape = Shape("decode", 3, 1, 100)
        assert shape.kv_bytes == 300 * 8 * 128 * 2 * 2
        assert replace(shape, kv_dtype="float8_e4m3fn").kv_bytes == 300 * 8 * 128 * 2

    def test_flops_count_the_keys_that_queries_see(self):
        of_a_pair = 4 * 2 * 32 * 128
        assert Shape("prefill", 2, 4, 8).flops == 4 * 8 * of_a_pair
        assert Shape("prefill", 2, 4, 8, mask="causal").flops == (5 + 6 + 7 + 8) * of_a_pair

    def test_shapes_with_the_same_kernels_share_a_key(self):
        assert len({shape.kernel_key for shape in TABLES["all"]}) == 1
        assert Shape("decode", 1, 1, 64).kernel_key != Shape("decode", 1, 1, 64, rope="neox").kernel_key


class TestSharedShapes:
    def test_a_request_has_different_documents(self):
        (shape,) = shared_shapes(requests=(40,), documents=5, stored=8, zipf=1.1)
        ids = [shape.document_ids[i : i + 5] for i in range(0, 200, 5)]
        assert all(len(set(own)) == 5 and max(own) < 8 for own in ids) and len(shape.document_ids) == 200
        assert shape.kv_tokens == len(set(shape.document_ids)) * shape.doc_tokens

    def test_a_greater_exponent_makes_fewer_documents_popular(self):
        most = {}
        for zipf in (0.0, 1.0, 2.0):
            (shape,) = shared_shapes(requests=(200,), documents=1, stored=20, zipf=zipf)
            most[zipf] = shape.document_ids.count(0)
        assert most[0.0] < most[1.0] < most[2.0]

    def test_draws_that_repeat_end_with_the_most_popular_documents(self):
        (shape,) = shared_shapes(requests=(2,), documents=4, stored=50, zipf=10.0)
        assert {*shape.document_ids} >= {0, 1} and len({*shape.document_ids[:4]}) == 4

    def test_steps_with_many_query_rows_are_prefill(self):
        kinds = {tokens: shared_shapes(query_tokens=tokens, requests=(2,))[0].kernel for tokens in (1, 4, 5)}
        assert kinds == {1: "decode", 4: "decode", 5: "prefill"}

    def test_only_the_cascade_differs_without_it(self):
        (shape,) = shared_shapes(requests=(2,), dtype="float16")
        assert shape.spec() == replace(shape.alone, cascade=True).spec() != shape.alone.spec()
        assert shape.spec().cascade and not shape.alone.spec().cascade and shape.kv_dtype == "float16"
        assert shape.document_ids == shape.alone.document_ids and shape.kernel_key != shape.alone.kernel_key


class TestPeers:
    def test_a_causal_square_needs_a_mask(self):
        assert is_causal_square(Shape("prefill", 1, 512, 512, mask="causal"))
        assert not is_causal_square(Shape("prefill", 1, 512, 512))

    def test_few_queries_may_see_all_keys(self):
        assert not is_causal_square(Shape("decode", 1, 16, 4096, mask="causal"))
        with pytest.raises(UnsupportedShape):
            is_causal_square(Shape("prefill", 1, 512, 1024, mask="causal"))

    def test_pytorch_attends_to_the_row_s_keys(self):
        """PyTorch has FlashAttention on the CPU as well."""
        some = {"flash_attention_2": PEERS["flash_attention_2"]}
        (call,) = peer_calls(Shape("decode", 2, 3, 64, **SMALL), Memory("cpu"), some).values()
        assert call().shape == (2, 4, 3, 64)

    def test_pytorch_has_no_8_bit_keys(self, capsys):
        assert peer_calls(Shape("decode", 1, 1, 32, kv_dtype="float8_e4m3fn"), Memory("cpu"), PEERS) == {}
        assert "has no float8_e4m3fn keys" in capsys.readouterr().err

    def test_a_peer_that_refuses_a_row_is_left_out(self, capsys):
        def refuses(shape, memory):
            raise ValueError("not on Tuesdays\nand so on")

        shape = Shape("decode", 1, 1, 32, peers=("cudnn",))
        assert peer_calls(shape, Memory("cpu"), {"cudnn": refuses}) == {}
        assert capsys.readouterr().err == "  cudnn is left out: not on Tuesdays\n"
        assert peer_calls(shape, Memory("cpu"), {}) == {} and capsys.readouterr().err == ""


class Gpu(unittest.mock.MagicMock):
    """A stand-in for torch: a clock in milliseconds, which calls advance, and events that read it."""

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
        """Tells whether the GPU has passed the event, which it has when the host is late."""
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

    def test_each_call_of_a_round_follows_a_flush(self, gpu):
        times = gpu.prepare().medians({"a": gpu.call("a", 0.5), "b": gpu.call("b", 2.0)})
        assert times == {"a": pytest.approx(500), "b": pytest.approx(2000)}
        timed = {name: ["wait", "flushed", name, "done"] for name in "ab"}
        told = [event for event, _ in itertools.groupby(gpu.log[4:])]
        assert gpu.log[:4] == ["a", "a", "b", "b"]
        rounds = [told[i : i + 8] for i in range(0, len(told), 8)]
        orders = [timed["a"] + timed["b"], timed["b"] + timed["a"]]
        assert len(rounds) == 1 + 30 and all(calls in orders for calls in rounds)

    def test_no_call_always_follows_the_same_one(self, gpu):
        gpu.prepare().medians({name: gpu.call(name, 0.5) for name in "abc"})
        made = [event for event in gpu.log if event in "abc"]
        assert {*itertools.pairwise(made[9:])} >= {*itertools.permutations("abc", 2)}

    def test_a_call_follows_a_varying_number_of_commands(self, gpu):
        gpu.prepare().medians({"a": gpu.call("a", 0.5)})
        waits = {len([*run]) for event, run in itertools.groupby(gpu.log) if event == "wait"}
        assert len(waits) > 3

    @pytest.mark.parametrize(("ms", "rounds"), [(1, 30), (25, 20), (1000, 9)])
    def test_long_calls_have_fewer_rounds(self, gpu, ms, rounds):
        gpu.prepare().medians({"a": gpu.call("a", ms)})
        assert gpu.log.count("a") == 3 + rounds

    def test_a_call_is_repeated_if_the_host_was_late(self, gpu):
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
    def test_tensors_share_memory_that_is_made_once(self):
        memory = Memory("cpu")
        k, v = memory.keys_and_values((2, 3, 4), "bfloat16")
        assert k.shape == v.shape == (2, 3, 4) and not torch.equal(k, v)
        again, _ = memory.keys_and_values((6, 1, 2), "bfloat16")
        assert again.data_ptr() == k.data_ptr()
        assert len(memory.numbers(1000, "bfloat16")) == 1000

    def test_a_page_s_values_follow_its_keys(self):
        memory = Memory("cpu")
        size = (3, 16, 2, 8)
        page = 16 * 2 * 8
        k, v = memory.pools(size, "bfloat16")
        assert k.shape == v.shape == size and k.stride() == v.stride() == (2 * page, 16, 8, 1)
        assert v.storage_offset() - k.storage_offset() == page
        k, v = memory.keys_and_values(size, "bfloat16")
        assert k.is_contiguous() and v.storage_offset() - k.storage_offset() == 3 * page

    @pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2"])
    def test_numbers_have_a_normal_distribution(self, dtype):
        numbers = Memory("cpu").numbers(10000, dtype)
        assert numbers.dtype == getattr(torch, dtype)
        assert abs(numbers.float().std().item() - 1) < 0.05


class TestStream:
    def test_the_fastest_sum_of_each_size_is_found_once(self, monkeypatch):
        """The timer makes the last sum the fastest."""
        benchmarks = []

        class Reversed(FakeTimer):
            def times(self, calls, rounds=None):
                benchmarks.append(rounds)
                return {name: [-us for us in times] for name, times in super().times(calls).items()}

        sums = {name: lambda: None for name in ("torch", "a", "b")}
        monkeypatch.setattr(Stream, "_calls", lambda stream, num_bytes: sums)
        stream = Stream(Reversed(), Memory("cpu"))
        assert stream.sum(64) == stream.sum(64) == ("b", sums["b"])
        assert stream.sum(128)[0] == "b" and benchmarks == [streams.ROUNDS] * 2

    def test_every_program_of_triton_s_sum_has_a_block(self, monkeypatch):
        """Sums have 2, 4 or 8 programs for each SM, or one for each block, but never more programs than blocks."""
        made = []
        module = unittest.mock.MagicMock(partial_sums=lambda numbers, *shape: made.append((len(numbers), *shape)))
        monkeypatch.setitem(sys.modules, "lazyrope.bench.triton", module)
        properties = unittest.mock.MagicMock(multi_processor_count=3)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        stream = Stream(FakeTimer(), Memory("cpu"))
        stream.has_triton = True
        names = [*stream._calls(4 * 8192 * 10)]
        assert names[0] == "torch" and "triton, 6 programs, blocks of 8192" in names
        assert (8192 * 10, 6, 8192) in made and (8192 * 10, 40, 2048) in made
        assert {programs for _, programs, block in made if block == 8192} == {6, 10}
        assert [*stream._calls(4 * 4096)] == [
            "torch",
            *(f"triton, {n} programs, blocks of {4096 // n}" for n in (2, 1)),
        ]

    def test_without_triton_pytorch_s_sum_remains(self, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "lazyrope.bench.triton", None)
        assert not streams._triton_works(Memory("cpu"))
        assert "PyTorch's only, because Triton does not work here" in capsys.readouterr().err

    def test_reads_as_many_bytes_as_it_says(self):
        memory = Memory("cpu")
        name, call = Stream(FakeTimer(), memory).sum(4096)
        assert name == "torch"
        assert torch.equal(call(), memory.numbers(2048, "bfloat16").view(torch.float32).sum())


@in_emulator
class TestRows:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"doc_tokens": 40, "page_size": 32},
            {"mask": "causal", "query_tokens": 4},
        ],
    )
    def test_no_two_documents_share_a_page(self, options):
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

    def test_a_decode_row_has_each_measured_time(self):
        shape = Shape("decode", 2, 1, 96, doc_tokens=32, **SMALL)
        own = {"a": replace(shape, rope="none"), "b": replace(shape, page_size=32)}
        row = attention_row(shape, Bench(FakeTimer(), Memory("cpu"), {}, arch=ARCH), own)
        assert (row["us"], row["plan_us"], row["stream_us"], row["step_us"]) == (1, 2, 3, 4)
        assert row["own"] == {"a": 5, "b": 6} and row["peers"] == {}
        assert row["tbps"] == shape.kv_bytes / 1e6 and row["stream_by"] == "torch"
        assert row["rounds"] == 3 and row["quartiles_us"] == [0.5, 1.5]
        json.dumps(row)

    def test_kernels_are_compiled_ahead_once_each(self, capsys):
        shapes = [Shape("decode", 1, 1, context, **SMALL) for context in (64, 128)]
        shapes.append(replace(shapes[0], rope="none"))
        bench.compile_ahead(shapes, emulated())
        assert "compile: 100%" in capsys.readouterr().err

    def test_a_shared_row_has_the_times_without_a_cascade(self):
        (shape,) = shared_shapes(
            requests=(6,), documents=2, stored=3, zipf=0.0, doc_tokens=64, q_heads=4, kv_heads=2, head_dim=64
        )
        row = bench.measured(shape, Bench(FakeTimer(), Memory("cpu"), {}, arch=ARCH))
        assert row["cascade"] and row["distinct_tokens"] == shape.kv_tokens == 3 * 64
        assert [*row["own"]] == [*row["own_plan_us"]] == ["alone"] and row["peers"] == {}
        text = shared_text(ABOUT | {"rows": [row]})
        # Each call takes as many microseconds as calls came before it: the kernel's is the first one.
        cells = f"6 x 1 | 25.0% | 1.0 | {row['own']['alone']:.1f} | {1 / row['own']['alone']:.3f} | 2.0"
        assert text.splitlines()[2].split()[: cells.count("|") + 3] == cells.replace("|", "").split()
        assert "2 of 3 documents of 64 tokens" in text

    def test_a_row_of_8_bit_keys_counts_one_byte_per_number(self):
        row = bench.measured(Shape("decode", 1, 1, 64, kv_dtype="float8_e4m3fn", **SMALL), emulated())
        assert row["tbps"] == 64 * 2 * 2 * 64 / 1e6

    def test_prefill_and_copies_have_their_own_peers(self):
        for kernel, peers in (
            ("prefill", ["flash_attention_2"]),
            ("append", ["torch_copy"]),
            ("reposition", ["torch_copy", "torch_eager"]),
        ):
            row = bench.measured(Shape(kernel, 1, 20, 64 if kernel == "prefill" else 0, **SMALL), emulated())
            assert [*row["peers"]] == peers and row["stream_us"] > 0


ROW = {"us": 10.0, "stream_us": 8.0, "tbps": 1.0, "peers": {"cudnn": 12.0}}
ABOUT = {"gpu": "A GPU", "driver": "1.2", "versions": {"torch": "2.13"}}


class TestCommand:
    @pytest.fixture
    def run(self, monkeypatch, tmp_path):
        """Runs ``lazyrope bench`` over one row that is not measured, and returns its JSON."""

        def run(*arguments: str, name: str = "decode"):
            monkeypatch.setitem(TABLES, "decode", [Shape("decode", 1, 1, 64, **SMALL)])
            monkeypatch.setattr(bench, "KINDS", {"decode": lambda shape, bench: dict(ROW)})
            monkeypatch.setattr(bench, "Timer", lambda rounds: FakeTimer())
            monkeypatch.setattr(bench, "Memory", lambda: Memory("cpu"))
            monkeypatch.setattr(bench, "compile_ahead", lambda shapes, bench: None)
            monkeypatch.setattr(bench, "environment", lambda timer: dict(ABOUT))
            file = tmp_path / "figures.json"
            bench.main([name, "--json", str(file), *arguments])
            return json.loads(file.read_text())

        return run

    def test_writes_the_figures(self, run):
        figures = run("--rounds", "7")
        assert figures["gpu"] == "A GPU" and figures["command"] == "lazyrope bench decode --rounds 7"
        (row,) = figures["rows"]
        assert (row["kernel"], row["context"], row["us"]) == ("decode", 64, 10.0)

    def test_prints_a_table(self, run, capsys):
        run()
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split("  ")[0] == "kernel" and lines[0].endswith("cuDNN")
        cells = "decode | 1 x 1 over 64 | 10.0 | 1.00 TB/s | 8.0 (0.80x) | 12.0 (1.20x)"
        assert lines[2].split() == cells.replace("|", "").split()
        assert lines[-1] == "A GPU, driver 1.2, torch 2.13."

    def test_a_peer_that_was_not_measured_has_an_empty_cell(self):
        rows = [Shape("append", 1, 8, 0).about() | ROW, Shape("prefill", 1, 8, 64).about() | ROW]
        rows[0]["peers"] = {"torch_copy": 9.0}
        del rows[1]["tbps"]
        rows[1]["tflops"] = 600.0
        text = table_text(ABOUT | {"rows": rows})
        assert "1 x 8 tokens" in text and "600 TFLOP/s" in text and "9.0 (0.90x)" in text

    def test_shapes_change_as_the_options_say(self, run):
        (row,) = run("--doc-tokens", "32", "--page-size", "64", "--rope", "gptj")["rows"]
        assert (row["doc_tokens"], row["page_size"], row["rope"]) == (32, 64, "gptj")

    def test_shared_steps_are_those_of_the_options(self, run, monkeypatch, capsys):
        seen = []
        row = ROW | {"own": {"alone": 40.0}, "own_plan_us": {"alone": 3.0}, "plan_us": 5.0}
        monkeypatch.setattr(bench, "shared_row", lambda shape, bench: seen.append(shape) or dict(row))
        figures = run("--requests", "4,16", "--documents", "2", "--doc-tokens", "128", "--zipf", "0.5", name="shared")
        assert figures["command"] == ("lazyrope bench shared --doc-tokens 128 --requests 4,16 --documents 2 --zipf 0.5")
        assert [(shape.batch, shape.context, shape.zipf) for shape in seen] == [(4, 256, 0.5), (16, 256, 0.5)]
        assert all(isinstance(shape, SharedShape) and shape.stored == 100 for shape in seen)
        lines = capsys.readouterr().out.splitlines()
        assert lines[2].split()[:3] == ["4", "x", "1"] and "0.250" in lines[2] and len(figures["rows"]) == 2

    def test_everything_is_measured_by_default(self):
        assert bench.argument_parser().parse_args([]).name == "all"

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["frobnicate"], "'frobnicate' is not one of decode, prefill, append, reposition, all, shared"),
            (["decode", "--zipf", "1"], "--zipf is an option of `lazyrope bench shared`"),
            (["shared", "--documents", "9", "--stored", "8"], "has 9 different documents, and 8 are stored"),
            (["shared", "--requests", "8,0"], "'0' is not a whole number of at least 1"),
            (["shared", "--zipf", "-1"], "'-1' is not a number from 0 to 10"),
            (["shared", "--q-heads", "9"], "num_q_heads = 9 with num_kv_heads = 8"),
            (["decode", "--rounds", "many"], "--rounds"),
            (["sweep"], "sweep is measured by `python -m tools.bench sweep`, in a checkout of lazyrope"),
            (["decode", "--check"], "--check is an option of `python -m tools.bench`"),
            (["decode", "--peers", "cudnn"], "--peers is an option of `python -m tools.bench`"),
        ],
    )
    def test_mistakes_are_named(self, arguments, says, capsys):
        with pytest.raises(SystemExit) as stopped:
            bench.main(arguments)
        assert stopped.value.code == 2 and says in capsys.readouterr().err

    def test_help_names_every_table(self, capsys):
        with pytest.raises(SystemExit):
            bench.main(["--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert all(name in text for name in bench.NAMES) and "--check" not in text

    def test_a_missing_package_is_named(self, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(SystemExit, match="needs torch, tabulate, tqdm: pip install torch tabulate tqdm"):
            bench.main(["decode"])

    def test_a_file_that_cannot_be_written_is_refused_before_measuring(self, monkeypatch, tmp_path):
        monkeypatch.setattr(bench, "Timer", lambda rounds: pytest.fail("the benchmark began"))
        for file in ("/nonexistent/figures.json", str(tmp_path)):
            with pytest.raises(SystemExit, match=f"cannot write {file}"):
                bench.main(["decode", "--json", file])

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_missing_gpu_is_named(self):
        with pytest.raises(SystemExit, match="needs a GPU that PyTorch can use"):
            bench.main(["decode"])
