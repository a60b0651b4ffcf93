"""The tables, the plots and the model of ``python -m tools.bench decode`` and ``sweep``, from made-up figures."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tools import comparison, decode_model, decode_plots, decode_table, docs_pages
from tools.bench.limits import evaluate
from tools.bench.peers import PAGED
from tools.bench.shapes import Shape
from tools.bench.tables import TABLES

GPU = decode_model.Gpu(sms=132)
# How many CTAs get work in decode steps: each request has one query token and sees documents of 1024 tokens.
# tests/unit/runtime_decode_shares_test.cpp compares these numbers with the planner.
SHARES = json.loads((Path(__file__).parents[1] / "support" / "decode_shares.json").read_text())
COEFFICIENTS = [5.0, 0.6, 220.0, 0.9, 1.5]
ABOUT = {
    "gpu": "A GPU",
    "driver": "1.2",
    "date": "2026-01-02",
    "commit": "abc1234",
    "command": "a command",
}


def made_up(shape: Shape, us: float, **measured: Any) -> dict[str, Any]:
    row = shape.about() | {"us": us, "own": {}, "peers": {}} | measured
    return row | {"limits": evaluate(shape.limits, row, PAGED)}


def sweep(noise: float = 0) -> list[dict[str, Any]]:
    """Returns rows with the times that the model's terms give, with noise."""
    rows, noises = [], random.Random(1)
    for shape in TABLES["sweep"]:
        row = shape.about() | {"us": 1.0, "tbps": shape.kv_bytes / 1e6}
        amounts = [amount(row, GPU) for _, _, amount in decode_model.TERMS]
        us = sum(c * amount for c, amount in zip(COEFFICIENTS, amounts, strict=True))
        us *= 1 + noises.uniform(-noise, noise)
        peers = {"cudnn": 1.02 * us, "flash_attention_2": 1.5 * us}
        rows.append(made_up(shape, us, tbps=shape.kv_bytes / us / 1e6, stream_us=0.99 * us, peers=peers))
    return rows


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(ABOUT | {"sms": GPU.sms, "rows": sweep(noise=0.02)}))
    return file


class TestModel:
    def test_finds_the_coefficients_of_made_up_times(self):
        model = decode_model.fitted(sweep(), GPU)
        assert model.coefficients == pytest.approx(COEFFICIENTS, rel=1e-3)
        assert max(map(abs, model.errors)) < 1e-6

    @pytest.mark.parametrize("row", SHARES, ids=lambda row: row["what"])
    def test_counts_ctas_as_the_planner_gives_them_work(self, row):
        assert decode_model.shares(row | {"doc_tokens": 1024}, GPU) == row["ctas"]

    def test_minimizes_the_largest_error(self):
        """One time is 20% too long. The fit spreads this error over other rows, so the largest is smaller."""
        rows = sweep()
        rows[7]["us"] *= 1.2
        rows[7]["tbps"] /= 1.2
        model = decode_model.fitted(rows, GPU)
        largest = abs(model.errors[model.largest])
        assert 0.06 < largest < 0.12 and model.errors[7] == pytest.approx(-largest, rel=0.02)
        assert sum(abs(error) > 0.98 * largest for error in model.errors) > 2
        shown = decode_model.text(model, rows)
        assert f"{len(rows)} rows; largest error {largest:.1%}" in shown
        assert decode_table.shape(rows[model.largest]) in shown

    def test_checks_recorded_figures(self, recorded, capsys):
        decode_model.main([str(recorded), "--check", "10"])
        assert "us for a GB" in capsys.readouterr().out
        with pytest.raises(SystemExit, match="1"):
            decode_model.main([str(recorded), "--check", "0.1"])

    def test_explains_the_figures_of_the_pages(self):
        decode_model.main(["--check", "10"])


def test_plots_have_every_line_and_panel(recorded, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is missing: tools/requirements/rag.txt")
    decode_plots.main([str(recorded), str(tmp_path)])
    context, batch = ((tmp_path / f"decode-over-{name}.svg").read_text() for name in ("context", "batch"))
    for text, panels in ((context, 3), (batch, 2)):
        assert text.startswith("<svg") and 'xmlns="http://www.w3.org/2000/svg"' in text
        assert text.count("-axes_") == panels
        assert all(f"<!-- {label} -->" in text for label, *_ in decode_plots.LINES)
    assert "<!-- batch 64 -->" in context and "<!-- context 16k -->" in batch
    assert "<!-- 128k -->" in context and "<!-- 256 -->" in batch


class TestTables:
    def test_rows_have_different_names(self):
        rows = [made_up(shape, 1.0, segments=256) for shape in TABLES["decode"]]
        names = [decode_table.name(row) for row in rows]
        assert len(set(names)) == len(names)
        for name in (
            "64 x 4k",
            "64 x 4k, documents of about 400",
            "64 x 4k, 16 query tokens",
            "64 x 4k, pages of 128",
            "64 x 16k, KV in float8_e4m3fn",
            "64 x 1k, one of 64k among them",
            "64 requests, 256 segments",
        ):
            assert name in names

    def test_a_row_shows_its_peers_its_settings_and_its_targets(self):
        row = made_up(
            TABLES["decode"][2],
            100.0,
            stream_us=98.0,
            own={"plain": 99.5, "page_128": 98.0},
            peers={"cudnn": 110.0, "cudnn_paged": 105.0},
        )
        tables = decode_table.tables([row])
        head = ["shape", "us", "over a plain sum", "cuDNN, contiguous", "cuDNN, paged", "target"]
        assert tables["peers"].head == head
        assert tables["peers"].rows == [["64 x 4k", "100.0", "1.020", "1.10x", "1.05x", "not met by 1.0%"]]
        assert tables["own"].rows == [
            ["64 x 4k", "100.0", "one document without rotation", "99.5", "+0.5%"],
            ["64 x 4k", "100.0", "pages of 128 tokens", "98.0", "+2.0%"],
        ]
        assert tables["targets"].rows == [
            ["1.03 x a plain sum", "1 of 1", "64 x 4k", ""],
            ["1 x the fastest paged peer", "1 of 1", "64 x 4k", ""],
            ["1.01 x one document without rotation", "1 of 1", "64 x 4k", ""],
            ["1.01 x pages of 128 tokens", "0 of 1", "", "64 x 4k (by 1.0%)"],
        ]

    def test_the_planner_has_its_own_table(self):
        rows = [made_up(shape, 5.0, segments=1, floor_us=3.0) for shape in TABLES["decode"] if shape.kernel == "plan"]
        tables = decode_table.tables(rows)
        assert tables["peers"].rows == []
        assert tables["planner"].rows[0] == ["64 requests, 1 segments", "5.0", "7.0", "met"]

    def test_a_target_that_was_not_evaluated_is_shown(self):
        row = made_up(TABLES["decode"][3], 100.0, stream_us=99.0)
        assert comparison.verdict(row) == "not evaluated"
        targets = comparison.targets_table([row], decode_table.name)
        assert ["1 x the fastest paged peer", "0 of 1", "", "64 x 16k (not evaluated)"] in targets.rows

    def test_the_sweep_is_summarized_by_counts_ranges_and_extremes(self):
        rows = sweep()
        rows[3] |= {"peers": {"cudnn": rows[3]["us"] / 1.25}}
        for limit in rows[3]["limits"]:
            limit["met"] = False
        facts = decode_table.sweep_facts(rows)
        assert (facts["met"], facts["compared"], facts["worst"]) == (len(rows) - 1, len(rows), "1.25")
        assert (facts["head_dims"], facts["groups"], facts["contexts"]) == ("64 to 256", "1 to 16", "1k to 128k")
        assert facts["least"] == "0.99"

    def test_a_table_in_markdown_has_numbers_on_the_right(self):
        row = made_up(TABLES["decode"][2], 100.0, stream_us=98.0, peers={"cudnn": 110.0})
        text = docs_pages.markdown(decode_table.tables([row])["peers"])
        assert text.splitlines()[1].replace("-", "") == "|:|:|:|:|:|"
        assert re.search(r"^\| 64 x 4k +\| +100\.0 \| +1\.020 \| +1\.10x \|", text, re.MULTILINE)
