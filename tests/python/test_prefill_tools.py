"""The tables and plots of ``python -m tools.bench prefill``, from made-up figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import prefill_plots, prefill_table
from tools.bench.limits import evaluate, evaluate_mean
from tools.bench.peers import PAGED
from tools.bench.shapes import Shape
from tools.bench.tables import TABLE_LIMITS, TABLES

ABOUT = {
    "gpu": "A GPU",
    "driver": "1.2",
    "date": "2026-01-02",
    "commit": "abc1234",
    "command": "python -m tools.bench prefill",
    "versions": {"lazyrope": "0", "torch": "2.11"},
    "gemm_tflops": 751.2,
}


def made_up(shape: Shape, tflops: float = 600.0, **measured: Any) -> dict[str, Any]:
    """Returns a row whose peers and variants all take as long as the row."""
    us = shape.flops / tflops / 1e6
    peers = {name: us for name in shape.peers if name != "flash_attention_4_contiguous"}
    row = (
        shape.about()
        | {"us": us, "tflops": tflops, "own": dict.fromkeys(shape.variants, us), "peers": peers}
        | measured
    )
    return row | {"limits": evaluate(shape.limits, row, PAGED)}


@pytest.fixture
def recorded() -> dict[str, Any]:
    rows = [made_up(shape) for shape in TABLES["prefill"]]
    return ABOUT | {"rows": rows, "means": [evaluate_mean(limit, rows, PAGED) for limit in TABLE_LIMITS["prefill"]]}


def test_rows_have_different_names(recorded):
    names = [prefill_table.name(row) for row in recorded["rows"]]
    assert len(set(names)) == len(names)
    for name in (
        "512 x 32k",
        "2048 x 8k, head_dim 256, documents of 256",
        "16 of 1024 x 1k, causal",
        "4 of 4096 x 4k, 32/32 heads, head_dim 64",
        "2048 x 8k and 64 of 1 x 4k",
        "512 x 32k, batch invariant",
        "512 x 32k, no rotation, family sm80",
    ):
        assert name in names


def chunk() -> dict[str, Any]:
    shape = next(shape for shape in TABLES["prefill"] if (shape.query_tokens, shape.context) == (512, 32768))
    return made_up(shape, 650.0, own={"plain": 400.0, "page_128": 425.0}, peers={"cudnn": 500.0, "cudnn_paged": 510.0})


def test_a_chunk_shows_its_peers_its_settings_and_its_targets():
    tables = prefill_table.tables([chunk()])
    assert tables["chunks"].head == ["shape", "us", "TFLOP/s", "cuDNN, contiguous", "cuDNN, paged", "target"]
    assert tables["chunks"].rows == [["512 x 32k", "422.9", "650", "1.18x", "1.21x", "not met by 3.6%"]]
    assert tables["own"].rows == [["512 x 32k", "422.9", "pages of 128 tokens", "425.0", "-0.5%"]]
    assert tables["documents"].rows == [["128", "512 x 32k", "1.06x"]]
    assert tables["targets"].rows == [
        ["429.497 us", "1 of 1", "512 x 32k", ""],
        ["1.02 x one document without rotation", "0 of 1", "", "512 x 32k (by 3.6%)"],
        ["1.02 x pages of 128 tokens", "1 of 1", "512 x 32k", ""],
    ]


def test_every_row_is_in_a_table(recorded):
    tables = prefill_table.tables(recorded["rows"])
    squares = tables["squares"]
    assert next(iter(squares)) == "32 query and 32 KV heads, head_dim 64" and len(squares) == 4
    shown = [tables["chunks"], tables["more_chunks"], *squares.values()]
    with_peers = [row for row in recorded["rows"] if row["peers"]]
    assert sum(len(table.rows) for table in shown) == len(with_peers)
    assert "documents of 64" in tables["documents"].head
    assert any("1.05 x (decode alone + the chunk alone)" == row[0] for row in tables["targets"].rows)


def test_the_mean_is_shown_with_its_target(recorded):
    assert prefill_table.mean_text(recorded["means"][0]).endswith("1.000; the target of at least 0.97 is met.")
    missing = evaluate_mean(TABLE_LIMITS["prefill"][0], [], PAGED)
    assert "not evaluated" in prefill_table.mean_text(missing)


def test_the_fastest_peer_is_shown_for_each_head_dim(recorded):
    assert "1.00 at head_dim 64, 1.00 at head_dim 128" in prefill_table.peers_text(recorded["rows"])


def test_plots_have_every_line_and_panel(recorded, tmp_path: Path):
    pytest.importorskip("matplotlib", reason="matplotlib is missing: tools/requirements/rag.txt")
    file = tmp_path / "prefill.json"
    file.write_text(json.dumps(recorded))
    prefill_plots.main([str(file), str(tmp_path)])
    length, documents = ((tmp_path / f"prefill-over-{name}.svg").read_text() for name in ("length", "documents"))
    assert length.count("-axes_") == 6 and documents.count("-axes_") == 2
    # A peer that was not measured has no line.
    labels = [label for label, *_ in prefill_plots.LINES if label != "FlashAttention-4, contiguous"]
    assert all(f"<!-- {label} -->" in length for label in labels) and "FlashAttention-4" not in length
    assert "<!-- head_dim 256, causal -->" in length and "<!-- 16k -->" in length
    assert all(f"<!-- head_dim {head_dim} -->" in documents for head_dim in prefill_plots.HEAD_DIMS)
    assert "<!-- 512 queries over 32k -->" in documents
