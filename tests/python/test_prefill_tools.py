"""What tools make of results of ``lazyrope bench prefill``: the README's table and plots. Figures are made up
here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lazyrope.bench.limits import evaluate, evaluate_mean
from lazyrope.bench.peers import PAGED
from lazyrope.bench.shapes import Shape
from lazyrope.bench.tables import TABLE_LIMITS, TABLES

from tools import prefill_plots, prefill_table, readme_tables

ABOUT = {
    "gpu": "A GPU",
    "driver": "1.2",
    "date": "2026-01-02",
    "commit": "abc1234",
    "command": "lazyrope bench prefill",
    "versions": {"lazyrope": "0", "torch": "2.11"},
    "gemm_tflops": 751.2,
}


def made_up(shape: Shape, tflops: float = 600.0, **measured: Any) -> dict[str, Any]:
    """A row beside everything that it may be beside, as fast as the row."""
    us = shape.flops / tflops / 1e6
    peers = {name: us for name in shape.peers if name != "flash_attention_4_contiguous"}
    row = (
        shape.about()
        | {"us": us, "tflops": tflops, "own": dict.fromkeys(shape.variants, us), "peers": peers}
        | measured
    )
    return row | {"limits": evaluate(shape.limits, row, PAGED)}


@pytest.fixture
def results() -> dict[str, Any]:
    rows = [made_up(shape) for shape in TABLES["prefill"]]
    return ABOUT | {"rows": rows, "means": [evaluate_mean(limit, rows, PAGED) for limit in TABLE_LIMITS["prefill"]]}


def test_rows_are_told_apart(results):
    names = [prefill_table.name(row) for row in results["rows"]]
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


def test_a_row_says_what_is_beside_it_and_required():
    shape = next(shape for shape in TABLES["prefill"] if (shape.query_tokens, shape.context) == (512, 32768))
    row = made_up(shape, 650.0, own={"plain": 400.0, "page_128": 425.0}, peers={"cudnn": 500.0})
    name, us, tflops, beside, required = prefill_table.line(row)
    assert (name, us, tflops) == ("512 x 32k", "422.9", "650")
    assert beside == (
        "no rotation, one document 400.0 (0.95x), pages of 128 425.0 (1.00x), cuDNN, contiguous 500.0 (1.18x)"
    )
    assert required == "429.497 us: met; 1.02 x plain: not met by 3.6%; 1.02 x page 128: met"


def test_the_mean_is_said(results):
    assert prefill_table.mean_text(results["means"][0]).endswith("0.97 required, 1.000 measured: met.")
    missing = evaluate_mean(TABLE_LIMITS["prefill"][0], [], PAGED)
    assert "not evaluated" in prefill_table.mean_text(missing)


def test_the_readme_has_a_place_for_it(results):
    text = readme_tables.prefill(results)
    assert text in readme_tables.replaced(readme_tables.README.read_text(), "prefill", text)
    assert "A GPU, driver 1.2, 2026-01-02, commit abc1234" in text and "751 TFLOP/s" in text
    assert "prefill-over-length.svg" in text and "prefill-over-documents.svg" in text


def test_plots_have_every_line_and_panel(results, tmp_path: Path):
    pytest.importorskip("matplotlib", reason="matplotlib is missing: tools/requirements/rag.txt")
    file = tmp_path / "prefill.json"
    file.write_text(json.dumps(results))
    prefill_plots.main([str(file), str(tmp_path)])
    length, documents = ((tmp_path / f"prefill-over-{name}.svg").read_text() for name in ("length", "documents"))
    assert length.count("-axes_") == 6 and documents.count("-axes_") == 2
    # What was not measured has no line.
    labels = [label for label, *_ in prefill_plots.LINES if label != "FlashAttention-4, contiguous"]
    assert all(f"<!-- {label} -->" in length for label in labels) and "FlashAttention-4" not in length
    assert "<!-- head_dim 256, causal -->" in length and "<!-- 16k -->" in length
    assert all(f"<!-- head_dim {head_dim} -->" in documents for head_dim in prefill_plots.HEAD_DIMS)
    assert "<!-- 512 queries over 32k -->" in documents
