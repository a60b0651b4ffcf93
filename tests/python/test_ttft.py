"""tools/quality/ttft.py measures what it says: what is stored, what each level computes, and its limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers.engine import Engine

from tools.quality import breakdown, ttft
from tools.quality.breakdown import GpuTime, HostTime, read_trace
from tools.rag.model import tiny_llama

SHAPE = ttft.Shape(documents=3, document_tokens=80, question_tokens=8, prefix_tokens=5)
OVERLAYS = 2 * 16  # the first document needs none
AGAIN = 48  # the least number of whole pages that is at least 15% of 240 tokens
FULL = 5 + 240 + 8


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    monkeypatch.setattr(ttft, "WARM_UP", 0)
    gpu = torch.cuda.is_available()
    where: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"} if gpu else {}
    model = tiny_llama(num_hidden_layers=1, **where)
    return {row["case"]: row for row in ttft.measure(model, SHAPE, repeat=1, is_limited=True)}


@pytest.mark.filterwarnings("ignore:the model is on the CPU")
def test_each_case_computes_what_is_not_stored(rows):
    assert {name: row["pass_tokens"] for name, row in rows.items()} == {
        "none_new": [240 + 8],
        "none": [8],
        "prefix_new": [FULL],
        "prefix": [8],
        "ape": [8],
        "first_page_new": [OVERLAYS + 8],
        "first_page": [8],
        "guided": [8, AGAIN + 8],  # the prompt is measured, and then runs in one pass with the tokens that it chose
        "full": [FULL],
    }
    shares = {name: row["share"] * 240 for name, row in rows.items()}
    assert shares["none"] == shares["prefix"] == 0 and shares["first_page"] == pytest.approx(OVERLAYS)
    assert shares["guided"] == pytest.approx(AGAIN) and shares["full"] == 240
    for row in rows.values():
        assert row["us_min"] == row["us"] == row["us_max"] > 0
        assert sum(row["host_ms"].values()) > 0 and min(row["host_ms"].values()) >= 0
        # All passes have at most 256 tokens, so all are captured: the pass that is measured, too.
        assert row["captured_passes"] == (len(row["pass_tokens"]) if torch.cuda.is_available() else 0)
        assert (row["gpu"]["num_kernels"] > 0) == torch.cuda.is_available()
    assert rows["guided"]["host_ms"]["add up the masses of pages"] > 0

    bounds = {name: [limit["bound_us"] for limit in row["limits"]] for name, row in rows.items()}
    assert bounds["none"] == [25e3] and bounds["guided"] == [pytest.approx(0.3 * rows["full"]["us"])]
    assert bounds["first_page"] == bounds["first_page_new"] == [pytest.approx(1.35 * rows["none"]["us"])]
    assert bounds["full"] == []
    text = ttft.report(list(rows.values()))
    assert "8 + 56" in text and "documents, overlays" in text and "at most 1.35 x none" in text


def test_the_program_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    given: dict[str, Any] = {}

    def measured(model: Any, shape: ttft.Shape, **options: Any) -> list[dict[str, Any]]:
        given.update(options)
        return [{"limits": [{"kind": "required", "limit": "1 us", "bound_us": 1.0, "met": False}]}]

    monkeypatch.setattr(ttft, "measure", measured)
    monkeypatch.setattr(ttft, "report", lambda rows: "the report")
    arguments = ["--tiny", "--repeat", "3", "--commit", "abc1234", "--json", str(tmp_path / "ttft.json")]
    assert ttft.main(arguments) == 0 and ttft.main([*arguments, "--check"]) == 1
    assert given == {"repeat": 3, "is_limited": False} and "the report" in capsys.readouterr().out
    written = json.loads((tmp_path / "ttft.json").read_text())
    assert written["command"] == "python -m tools.quality.ttft --repeat 3 --tiny" and written["commit"] == "abc1234"
    assert written["shape"]["documents"] == 3 and len(written["rows"]) == 1


def test_the_program_needs_a_gpu_unless_it_is_tiny(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        ttft.parsed([])
    assert "--tiny" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        ttft.parsed(["--tiny", "--repeat", "0"])


def test_host_time_leaves_out_the_functions_inside(monkeypatch: pytest.MonkeyPatch):
    clock = iter([0.0, 1.0, 4.0, 10.0])  # the outer function begins, the inner one begins and ends, the outer one ends
    monkeypatch.setattr(breakdown.time, "perf_counter", lambda: next(clock))
    found = HostTime()
    inner = found.timed("inner", lambda value: value + 1)
    assert found.timed("outer", lambda value: inner(value) * 2)(3) == 8
    assert found.ms == {"inner": 3e3, "outer": 7e3}


def test_functions_are_restored_after_an_error():
    before = Engine._admit
    with pytest.raises(ValueError), breakdown.host_time():
        assert Engine._admit is not before
        raise ValueError
    assert Engine._admit is before


def test_overlapping_kernels_are_busy_once():
    events = [
        {"cat": "kernel", "name": "a", "ts": 0.0, "dur": 1000.0},
        {"cat": "kernel", "name": "b", "ts": 500.0, "dur": 1500.0},
        {"cat": "kernel", "name": "c", "ts": 600.0, "dur": 100.0},
        {"cat": "cpu_op", "name": "x", "ts": 0.0, "dur": 9000.0},
        {"cat": "gpu_memcpy", "name": "copy", "ts": 4000.0, "dur": 250.0},
        {"cat": "kernel", "name": "a", "ts": 5000.0, "dur": 750.0},
        {"name": "a mark"},
    ]
    found = GpuTime()
    read_trace(events, found, most=2)
    assert found.busy_ms == pytest.approx(2 + 0.25 + 0.75) and found.num_kernels == 5
    assert found.kernels == [{"name": "a", "ms": 1.75, "count": 2}, {"name": "b", "ms": 1.5, "count": 1}]
