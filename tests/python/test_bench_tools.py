"""``python -m tools.bench`` without a GPU: its shapes, its limits, its rows in the emulator and its output."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from lazyrope.bench.rows import LazyAttention
from lazyrope.bench.timer import Memory

from tests.support.bench import ARCH, SMALL, FakeTimer, in_emulator
from tools.bench import command
from tools.bench.limits import AIM, Limit, MeanLimit, count_unmet, evaluate, evaluate_mean, limit_text, mean_text
from tools.bench.memories import memories
from tools.bench.peers import PAGED, PEERS
from tools.bench.rows import Bench
from tools.bench.shapes import Shape
from tools.bench.states import states
from tools.bench.tables import TABLE_LIMITS, TABLES


def emulated(arch: str = ARCH) -> Bench:
    return Bench(FakeTimer(), Memory("cpu"), {}, arch=arch)


def all_shapes() -> list[Shape]:
    return [shape for table in TABLES.values() for shape in table]


class TestShapes:
    def test_limits_name_figures_that_are_measured(self):
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

    def test_the_sweep_covers_its_ranges(self):
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

    def test_the_mean_of_squares_is_over_24_sizes(self):
        (limit,) = TABLE_LIMITS["prefill"]
        rows = [row for row in TABLES["prefill"] if row.group == limit.group]
        sizes = {(row.head_dim, row.heads, row.context, row.mask) for row in rows}
        assert len(sizes) == len(rows) == 24
        for row in rows:
            assert row.batch * row.query_tokens == 16384 and row.query_tokens == row.context
            assert row.doc_tokens <= 1024 and row.rope != "none" and row.page_size == 16

    def test_a_required_rate_is_a_limit_of_time(self):
        row = next(row for row in TABLES["prefill"] if (row.query_tokens, row.context) == (2048, 8192))
        assert row.limits[0].plus_us == pytest.approx(4 * 2048 * 8192 * 32 * 128 / 640e6)

    @pytest.mark.parametrize("name", TABLES)
    def test_rows_of_a_table_differ(self, name):
        abouts = [json.dumps(shape.about()) for shape in TABLES[name]]
        assert len(set(abouts)) == len(abouts)

    def test_rows_with_other_scores_have_no_peers(self):
        assert any(shape.options for shape in all_shapes())
        assert not any(shape.peers for shape in all_shapes() if {"window", "softcap", "sinks"} & set(shape.options))

    def test_every_row_has_a_spec(self):
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

    def test_the_first_request_may_have_another_length(self):
        shape = Shape("decode", 3, 1, 100, first_context=1000)
        assert shape.contexts == [1000, 100, 100]
        assert shape.kv_bytes == 1200 * 8 * 128 * 2 * 2
        assert replace(shape, kv_dtype="float8_e4m3fn").kv_bytes == 1200 * 8 * 128 * 2

    def test_the_first_request_may_be_a_chunk(self):
        shape = Shape("prefill", 3, 1, 100, first_context=1000, first_tokens=20)
        assert shape.tokens == [20, 1, 1] and shape.first_query == [1000, 100, 100]
        assert shape.flops == (20 * 1000 + 2 * 100) * 4 * 32 * 128
        causal = replace(shape, mask="causal")
        assert causal.first_query == [980, 99, 99]
        assert causal.flops == (sum(range(981, 1001)) + 2 * 100) * 4 * 32 * 128

    def test_bytes_outside_a_window_are_not_counted(self):
        assert Shape("decode", 2, 1, 100, options={"window": 30}).kv_bytes == 2 * 30 * 8 * 128 * 2 * 2

    def test_flops_count_the_keys_in_a_window(self):
        of_a_pair = 4 * 2 * 32 * 128
        assert Shape("prefill", 2, 4, 8).flops == 4 * 8 * of_a_pair
        assert Shape("prefill", 2, 4, 8, mask="causal").flops == (5 + 6 + 7 + 8) * of_a_pair
        assert Shape("prefill", 2, 4, 8, mask="causal", options={"window": 6}).flops == (5 + 6 + 6 + 6) * of_a_pair
        assert Shape("prefill", 2, 4, 8, options={"window": 6}).flops == (5 + 4 + 3 + 2) * of_a_pair

    def test_a_variant_has_nothing_to_compare_with(self):
        shape = next(shape for shape in TABLES["decode"] if len(shape.variants) > 1)
        variant = shape.variant(shape.variants["plain"])
        assert (variant.rope, variant.doc_tokens, variant.limits, variant.variants) == ("none", shape.context, (), {})


class TestLimits:
    def test_the_larger_bound_holds(self):
        limit = Limit("best_peer", factor=1.03, plus_us=1)
        assert limit.bound(10) == 11 and limit.bound(100) == 103
        assert Limit("stream_us", factor=0.985).bound(1000) == 985
        assert Limit(None, plus_us=530).bound(0) == 530

    def test_a_limit_is_shown_with_its_factor_and_term(self):
        assert str(Limit("best_peer", factor=1.03, plus_us=1)) == "1.03 x best_peer or best_peer + 1 us"
        assert str(Limit(None, plus_us=530)) == "530 us"
        assert str(Limit("stream_us", factor=1.015)) == "1.015 x stream_us"

    def row(self, **changes):
        return {"us": 100.0, "stream_us": 90.0, "own": {"plain": 99.5}, "peers": {"a": 95.0, "p": 105.0}} | changes

    def test_a_row_is_evaluated_by_its_figures(self):
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
        assert count_unmet(2 * row["limits"]) == 4  # aims do not count
        assert "required: at most 1.05 x stream_us = 94.5 us: NOT MET by 5.8%" in limit_text(row["limits"][0], 100.0)

    def test_a_limit_that_cannot_be_evaluated_is_not_met(self):
        row = self.row(peers={"a": 95.0})
        row["limits"] = evaluate((Limit("best_paged_peer", factor=1),), row, frozenset({"p"}))
        assert row["limits"][0]["met"] is None and count_unmet(row["limits"]) == 1
        assert "not evaluated" in limit_text(row["limits"][0], 100.0)

    def test_a_limit_may_be_over_one_peer_or_a_sum(self):
        row = self.row(own={"one": 40.0, "other": 50.0})
        limits = (Limit("one + other", factor=1.05), Limit("p", factor=0.9), Limit("one + third", factor=1))
        outcomes = evaluate(limits, row, frozenset())
        assert [limit["bound_us"] for limit in outcomes] == [94.5, 94.5, None]

    def test_a_group_is_evaluated_by_its_mean(self):
        limit = MeanLimit("squares", "best_peer", 0.97)
        rows = [self.row(group="squares", us=us) for us in (95.0 / 0.9, 95.0 / 1.1)] + [self.row()]
        outcome = evaluate_mean(limit, rows, frozenset())
        assert outcome["mean"] == pytest.approx(0.99**0.5) and outcome["met"]
        assert mean_text(outcome).endswith("over ours, in all rows of squares: 0.97: 0.995, met")
        slower = evaluate_mean(limit, [*rows, self.row(group="squares", us=120.0)], frozenset())
        assert not slower["met"] and count_unmet([slower]) == 1 and mean_text(slower).endswith("NOT MET")

    def test_a_mean_over_missing_figures_is_not_met(self):
        rows = [self.row(group="squares", us=1.0), self.row(group="squares", us=1.0, peers={})]
        for some in (rows, []):
            outcome = evaluate_mean(MeanLimit("squares", "best_peer", 0.97), some, frozenset())
            assert outcome["met"] is None and "not evaluated" in mean_text(outcome)


@in_emulator
class TestRows:
    def test_the_plain_variant_reads_the_same_memory(self):
        """Equal addresses make the times differ by the cost of lazy RoPE alone."""
        shape = Shape("decode", 2, 1, 96, doc_tokens=32, **SMALL)
        bench_ = emulated()
        lazy = LazyAttention(shape, bench_)
        plain = LazyAttention(shape.variant({"rope": "none", "doc_tokens": 96}), bench_)
        assert lazy.k_pool.data_ptr() == plain.k_pool.data_ptr() and lazy.num_pages == plain.num_pages

    def test_a_decode_row_has_times_variants_and_limits(self):
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
        row = command.measured(shape, emulated())
        assert (row["us"], row["plan_us"], row["stream_us"], row["step_us"], row["own"]) == (1, 2, 3, 4, {"plain": 5})
        assert row["tbps"] == shape.kv_bytes / 1e6 and row["peers"] == {} and row["stream_by"] == "torch"
        assert row["rounds"] == 3 and row["quartiles_us"] == [0.5, 1.5]
        assert [limit["met"] for limit in row["limits"]] == [True, True]
        json.dumps(row)

    def test_a_mixed_step_is_limited_by_the_sum_of_its_parts(self, capsys):
        apart = {"decoding": {"batch": 2, "first_context": None, "first_tokens": None}, "chunk": {"batch": 1}}
        limits = (Limit("decoding + chunk", factor=1.05),)
        shape = Shape("prefill", 3, 1, 32, first_context=64, first_tokens=40, variants=apart, limits=limits, **SMALL)
        row = command.measured(shape, emulated())
        assert set(row["own"]) == set(apart) and row["limits"][0]["bound_us"] == pytest.approx(1.05 * (5 + 6))
        assert "3 x 1 over 64 and 32, 40 of the first" in capsys.readouterr().out

    def test_a_family_is_compiled_on_newer_gpus(self):
        compiled = emulated("emu:sm_90a")
        shape = Shape("prefill", 1, 20, 64, **SMALL)
        families = [compiled.compile(replace(shape, family=family)).config.prefill.family for family in (None, "sm80")]
        assert families == ["sm90a", "sm80"]

    def test_a_row_of_masses_measures_the_call_without_them(self, capsys):
        (first, *_) = TABLES["mass"]
        shape = replace(first, batch=2, context=96, doc_tokens=32, heads=(4, 2), head_dim=64, rope="neox")
        bench_ = emulated()
        lazy = LazyAttention(shape, bench_)
        assert lazy.given["page_mass"].shape == (12,) and lazy.step.capacity.mass_pages == 12
        lazy.attend()
        assert float(lazy.given["page_mass"].sum()) == pytest.approx(2 * 4, rel=1e-3)
        row = command.measured(shape, bench_)
        assert set(row["own"]) == {"without"}
        assert row["limits"][0]["bound_us"] == pytest.approx(1.1 * row["own"]["without"])
        assert "page_mass True" in capsys.readouterr().out

    def test_a_row_with_a_bias_measures_the_call_without_it(self, capsys):
        assert [shape.limits[0].factor for shape in TABLES["bias"]] == [1.015, 1.03, 1.03]
        shape = replace(TABLES["bias"][1], batch=2, context=96, heads=(4, 2), head_dim=64, rope="neox")
        bench_ = emulated()
        lazy = LazyAttention(shape, bench_)
        assert lazy.given["key_bias"].shape == (12, 2, 16)
        lazy.attend()
        assert bool(lazy.out.float().isfinite().all())
        row = command.measured(shape, bench_)
        assert set(row["own"]) == {"without"}
        assert row["limits"][0]["bound_us"] == pytest.approx(1.03 * row["own"]["without"])
        assert "key_bias True" in capsys.readouterr().out

    def test_a_row_of_a_memory_measures_the_prefix_beside_it(self, capsys):
        """Peers compute the prefix."""
        rows = {(row.peers_at["context"], row.batch, row.stored > 0): row for row in memories()}
        assert len(rows) == len(memories()) == 22
        assert {key for key, row in rows.items() if row.limits} == {(8192, 1, True), (8192, 64, False)}
        assert set(rows[8192, 32, True].variants) == {"exact", "exact_cascade", "compact_256"}
        small = {"batch": 2, "heads": (4, 2), "head_dim": 64, "rope": "neox"}
        prefix = {"context": 64, "doc_tokens": 64, "options": {}}
        changed = {"variants": {"exact": prefix, "exact_cascade": prefix | {"cascade": True}}, "peers_at": prefix}
        shape = replace(rows[8192, 32, True], context=32, doc_tokens=32, **small, **changed)
        seen = []
        bench_ = emulated()
        bench_.peers = {name: lambda shape, memory: seen.append(shape) or (lambda: None) for name in shape.peers}
        row = command.measured(shape, bench_)
        assert {each.context for each in seen} == {64} and set(row["own"]) == set(changed["variants"])
        assert "key_bias True" in (text := capsys.readouterr().out) and "in place of 64" in text

    def test_a_row_of_states_looks_up_beside_exact_attention(self, capsys):
        first, limited = (next(s for s in states() if bool(s.limits) == has) for has in (False, True))
        assert limited.context == 8192 and limited.kv_bytes == 8192 * 8 * 128 * 2
        exact = {"exact": {"options": {}, "context": 48, "doc_tokens": 48}}
        small = {"heads": (4, 2), "head_dim": 64, "rope": "neox", "variants": exact, "limits": limited.limits}
        shape = replace(first, batch=2, context=96, doc_tokens=96, **small)
        bench_ = emulated()
        lazy = LazyAttention(shape, bench_)
        assert lazy.metadata["segments"].memory.tolist() == [1, 1]
        lazy.attend()
        # A query attends to one entry of its memory, so the LSE of the call is that of the entry.
        assert bool(torch.isin(lazy.lse, lazy.given["entry_lse"].flatten()).all()) or torch.allclose(
            (lazy.lse.flatten()[:, None] - lazy.given["entry_lse"].flatten()).abs().amin(dim=1),
            torch.zeros(lazy.lse.numel()),
            atol=1e-5,
        )
        row = command.measured(shape, bench_)
        assert set(row["own"]) == {"exact"}
        assert row["limits"][0]["bound_us"] == pytest.approx(row["own"]["exact"] / 1.2)
        assert "states True" in capsys.readouterr().out

    def test_a_row_of_two_levels_looks_up_beside_one_of_one_level(self, capsys):
        rows = [row for row in states() if row.cell]
        assert [(row.batch, row.context, row.cell) for row in rows[2:4]] == [(1, 128 * 129, 128), (8, 128 * 129, 128)]
        assert rows[2].kv_bytes == (128 + 4 * 128) * 8 * 128 * 2
        small = {"heads": (4, 2), "head_dim": 64, "rope": "neox"}
        flat = {"context": 64, "doc_tokens": 64, "options": {"states": True}, "cell": 0}
        shape = replace(rows[0], context=72, doc_tokens=72, cell=8, variants={"flat": flat}, **small)
        bench_ = emulated()
        assert LazyAttention(shape, bench_).metadata["segments"].memory.tolist() == [1 + 16 * 8]
        row = command.measured(shape, bench_)
        assert set(row["own"]) == {"flat"} and row["cell"] == 8
        assert "documents of 72 in cells of 8" in capsys.readouterr().out

    def test_a_planner_row_has_its_floor_and_segments(self, monkeypatch, capsys):
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
        shape = Shape("plan", 3, 1, 96, doc_tokens=32, peers=(), limits=(Limit("floor_us", plus_us=4),), **SMALL)
        row = command.measured(shape, emulated())
        assert (row["us"], row["floor_us"], row["segments"]) == (1, 2, 9) and row["limits"][0]["met"]
        assert "3 requests of 9 segments in all: 1.0 us, floor 2.0 (0.500x)" in capsys.readouterr().out


class TestCommand:
    @pytest.fixture
    def run(self, monkeypatch, tmp_path):
        """Runs the command over one row that takes `us` microseconds, and returns its exit code and JSON."""

        def run(us: float, *arguments: str):
            shape = Shape("decode", 1, 1, 64, limits=(Limit("stream_us", factor=1.1),), **SMALL)
            row = {"us": us, "stream_us": 10.0, "tbps": 1.0, "own": {}, "peers": {}}
            monkeypatch.setitem(TABLES, "decode", [shape])
            monkeypatch.setattr(command, "KINDS", {"decode": lambda shape, bench: row})
            monkeypatch.setattr(command, "Timer", lambda rounds: FakeTimer())
            monkeypatch.setattr(command, "Memory", lambda: Memory("cpu"))
            monkeypatch.setattr(command, "compile_ahead", lambda shapes, bench: None)
            monkeypatch.setattr(command, "environment", lambda timer, commit: {"commit": commit})
            file = tmp_path / "figures.json"
            with pytest.raises(SystemExit) as stopped:
                command.main(["decode", "--json", str(file), "--peers", "cudnn", *arguments])
                raise SystemExit(0)
            return stopped.value.code, json.loads(file.read_text())

        return run

    def test_writes_the_figures(self, run, capsys):
        code, figures = run(10.5, "--commit", "abc", "--rounds", "7")
        assert code == 0 and figures["commit"] == "abc" and "host" not in figures
        assert figures["command"] == "python -m tools.bench decode --rounds 7 --peers cudnn"
        (row,) = figures["rows"]
        assert (row["kernel"], row["context"], row["us"], row["limits"][0]["met"]) == ("decode", 64, 10.5, True)
        assert "10.5 us, 1.00 TB/s, stream 10.0 (1.050x)" in capsys.readouterr().out

    def test_check_fails_if_a_required_limit_is_not_met(self, run, capsys):
        assert run(11.5)[0] == 0 and run(10.5, "--check")[0] == 0
        assert run(11.5, "--check")[0] == 1
        assert "1 required limits not met or not evaluated" in capsys.readouterr().err

    def test_changed_rows_have_no_limits(self, run):
        code, figures = run(11.5, "--check", "--doc-tokens", "32")
        assert code == 0 and figures["rows"][0]["doc_tokens"] == 32 and figures["rows"][0]["limits"] == []

    def test_rows_change_only_as_options_say(self):
        def chosen(*arguments):
            return command.chosen(command.argument_parser().parse_args(arguments))

        assert chosen("decode") == TABLES["decode"]
        assert {shape.page_size for shape in chosen("decode", "--page-size", "64")} == {64}
        assert not any(shape.pools_apart for shape in chosen("decode"))
        assert all(shape.pools_apart for shape in chosen("decode", "--pools-apart"))

    def test_the_recorded_command_measures_the_same(self):
        parser = command.argument_parser()
        arguments = ["decode", "--pools-apart", "--rounds", "11", "--check"]
        assert command.command_text(parser, parser.parse_args(arguments), ["json", "check"]) == (
            "python -m tools.bench decode --pools-apart --rounds 11"
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
            command.main(arguments)
        assert stopped.value.code == 2 and says in capsys.readouterr().err

    def test_help_names_every_table_and_peer(self, capsys):
        with pytest.raises(SystemExit):
            command.main(["--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert all(name in text for name in (*TABLES, *PEERS))

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_missing_gpu_is_named(self):
        with pytest.raises(SystemExit, match="needs a GPU that PyTorch can use"):
            command.main(["decode"])
