"""What tools make of results of ``lazyrope bench decode`` and ``sweep``: the README's tables and plots, and the
model of decode's time. Figures are made up here."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from lazyrope.bench.limits import evaluate
from lazyrope.bench.peers import PAGED
from lazyrope.bench.shapes import Shape
from lazyrope.bench.tables import TABLES

from tools import decode_model, decode_plots, decode_table, readme_tables

GPU = decode_model.Gpu(sms=132)
# CTAs that have work in a step of one token a request, in documents of 1024: tests/unit/runtime_decode_shares_test.cpp
# asks the planner.
SHARES = json.loads((Path(__file__).parents[1] / "support" / "decode_shares.json").read_text())
COEFFICIENTS = [5.0, 0.6, 220.0, 0.9, 1.5]
ABOUT = {"gpu": "A GPU", "driver": "1.2", "date": "2026-01-02", "commit": "abc1234", "command": "lazyrope bench x"}


def made_up(shape: Shape, us: float, **measured: Any) -> dict[str, Any]:
    row = shape.about() | {"us": us, "own": {}, "peers": {}} | measured
    return row | {"limits": evaluate(shape.limits, row, PAGED)}


def sweep(noise: float = 0) -> list[dict[str, Any]]:
    """Rows whose times are those of the model's terms, but for noise."""
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
def results(tmp_path: Path) -> Path:
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(ABOUT | {"sms": GPU.sms, "rows": sweep(noise=0.02)}))
    return file


class TestModel:
    def test_finds_what_times_are_made_of(self):
        model = decode_model.fitted(sweep(), GPU)
        assert model.coefficients == pytest.approx(COEFFICIENTS, rel=1e-3)
        assert max(map(abs, model.errors)) < 1e-6

    @pytest.mark.parametrize("row", SHARES, ids=lambda row: row["what"])
    def test_counts_ctas_as_the_planner_gives_them_work(self, row):
        assert decode_model.shares(row | {"doc_tokens": 1024}, GPU) == row["ctas"]

    def test_makes_the_largest_error_small(self):
        """Of one time that is 20% too long there is left what the others, which are right, can share with it."""
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

    def test_checks_kept_figures(self, results, capsys):
        decode_model.main([str(results), "--check", "10"])
        assert "us for a GB" in capsys.readouterr().out
        with pytest.raises(SystemExit, match="1"):
            decode_model.main([str(results), "--check", "0.1"])

    def test_explains_the_figures_in_the_readme(self):
        decode_model.main(["--check", "10"])


def test_plots_have_every_line_and_panel(results, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is missing: tools/requirements/rag.txt")
    decode_plots.main([str(results), str(tmp_path)])
    context, batch = ((tmp_path / f"decode-over-{name}.svg").read_text() for name in ("context", "batch"))
    for text, panels in ((context, 3), (batch, 2)):
        assert text.startswith("<svg") and 'xmlns="http://www.w3.org/2000/svg"' in text
        assert text.count("-axes_") == panels
        assert all(f"<!-- {label} -->" in text for label, *_ in decode_plots.LINES)
    assert "<!-- batch 64 -->" in context and "<!-- context 16k -->" in batch
    assert "<!-- 128k -->" in context and "<!-- 256 -->" in batch


class TestTables:
    def test_rows_are_told_apart(self):
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
            "planner: 64 requests, 256 segments",
        ):
            assert name in names

    def test_a_row_says_what_is_beside_it_and_required(self):
        row = made_up(
            TABLES["decode"][2],
            100.0,
            stream_us=98.0,
            own={"plain": 99.5, "page_128": 98.0},
            peers={"cudnn": 110.0, "cudnn_paged": 105.0},
        )
        name, us, over, beside, required = decode_table.line(row)
        assert (name, us, over) == ("64 x 4k", "100.0", "1.020")
        assert beside == (
            "pages of 128 98.0 (0.98x), no rotation, one document 99.5 (0.99x), cuDNN 105.0 (1.05x), "
            "cuDNN, contiguous 110.0 (1.10x)"
        )
        assert required == (
            "1.03 x stream us: met; 1 x best paged peer: met; 1.01 x plain: met; 1.01 x page 128: not met by 1.0%"
        )

    def test_what_was_not_judged_is_said(self):
        row = made_up(TABLES["decode"][3], 100.0, stream_us=99.0)
        assert "best paged peer: not evaluated" in decode_table.line(row)[-1]

    def test_the_sweep_in_words(self):
        rows = sweep()
        rows[3] |= {"peers": {"cudnn": rows[3]["us"] / 1.25}}
        for limit in rows[3]["limits"]:
            limit["met"] = False
        text = decode_table.sweep_text(rows)
        assert f"in {len(rows) - 1} of {len(rows)}; at most 1.25 times its time" in text
        assert "head_dim 64 to 256, 1 to 16 query heads" in text and "context 1k to 128k" in text
        assert "at least 0.99 of the bandwidth" in text

    def test_the_readme_has_a_place_for_each(self):
        readme = readme_tables.README.read_text()
        data = ABOUT | {"versions": {"lazyrope": "0", "torch": "2.11"}, "floor_us": 3.9}
        decode = readme_tables.decode(data | {"rows": [made_up(s, 1.0, segments=1) for s in TABLES["decode"]]})
        swept = readme_tables.sweep(data | {"rows": sweep()})
        assert decode in readme_tables.replaced(readme, "decode", decode)
        assert swept in readme_tables.replaced(readme, "sweep", swept)
        assert "A GPU, driver 1.2, 2026-01-02, commit abc1234" in decode and "torch 2.11" in decode
        assert "decode-over-context.svg" in swept
