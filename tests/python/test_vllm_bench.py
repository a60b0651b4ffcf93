"""Tests the benchmark of vLLM without vLLM: its cells, its clients, its limits, and how runs complete one file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tools import vllm_plots
from tools.vllm_bench import __main__ as command
from tools.vllm_bench import report
from tools.vllm_bench.cells import ARMS, Cell, cells
from tools.vllm_bench.load import Client, Corpus, Output, Prompt, Window, closed_loop, poisson


class FakeEngine:
    """Answers every request in so many passes of one second. Half of a prompt is found in the cache."""

    def __init__(self, passes: int, most: int) -> None:
        self.now = 0.0
        self.computed_tokens = 0
        self._passes, self._most = passes, most
        self._left: dict[str, int] = {}
        self._prompts: dict[str, Prompt] = {}

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def add(self, name: str, prompt: Prompt, answer: int) -> None:
        assert name not in self._prompts, "a name is given to two requests"
        self._left[name], self._prompts[name] = self._passes, prompt

    @property
    def num_live(self) -> int:
        return min(self._most, len(self._left))

    def step(self) -> list[Output]:
        self.now += 1.0
        self.computed_tokens += 7
        outputs = []
        for name in list(self._left)[: self._most]:
            self._left[name] -= 1
            cached = len(self._prompts[name].tokens) // 2
            outputs.append(Output(name, 1, cached, is_finished=self._left[name] == 0))
            if self._left[name] == 0:
                del self._left[name]
        return outputs


def prompts(count: int = 10**6) -> Iterator[Prompt]:
    return (Prompt([1] * 10, [4, 4]) for _ in range(count))


def test_a_closed_loop_counts_what_is_measured_alone():
    engine = FakeEngine(passes=2, most=4)
    client = Client(engine, prompts(), 2, engine.clock)
    figures = closed_loop(client, 8, warm_s=10, measure_s=100, clock=engine.clock).figures()
    assert figures["seconds"] == 100 and figures["live"] == 4 and figures["step_ms"] == 1000
    assert figures["requests_per_s"] == 2 and figures["tokens_per_s"] == 4
    # Four requests run for two seconds while the other four wait. The first token comes a second after the start.
    assert figures["ttft_p50_ms"] == figures["ttft_p99_ms"] == 3000
    assert figures["tokens_per_step"] == 7 and figures["hit_rate"] == 0.5 and len(client.open) == 8


def test_arrivals_do_not_wait_for_answers():
    engine = FakeEngine(passes=1, most=1)
    client = Client(engine, prompts(), 1, engine.clock)
    window = poisson(client, 3.0, random.Random(0), warm_s=10, measure_s=50, clock=engine.clock, sleep=engine.sleep)
    assert 0.95 < window.figures()["requests_per_s"] <= 1
    assert 60 < len(client.open) < 180  # two of three requests a second are left
    assert window.waits[0] < 20 < window.waits[-1]


def test_a_window_without_requests_has_no_times():
    figures = replace(Window(), seconds=1.0).figures()
    assert figures["requests_per_s"] == 0 and figures["ttft_p50_ms"] is None and figures["hit_rate"] is None


def test_prompts_have_distinct_documents_and_popular_ones_more_often():
    corpus = Corpus(20, 8, 500)
    counts = {}
    for zipf in (0.0, 2.1):
        stream = corpus.prompts(1, zipf, question=3)
        firsts = []
        for _ in range(200):
            prompt = next(stream)
            assert prompt.lengths == [8] * 5 and len(prompt.tokens) == 43
            documents = [tuple(prompt.tokens[i : i + 8]) for i in range(0, 40, 8)]
            assert len(set(documents)) == 5
            firsts.append(documents[0])
        counts[zipf] = max(firsts.count(each) for each in firsts)
    assert counts[0.0] < 30 and counts[2.1] > 80
    assert next(corpus.prompts(1, 1.1)) == next(corpus.prompts(1, 1.1)) != next(corpus.prompts(2, 1.1))


def test_cells_have_distinct_names_and_are_few():
    names = [cell.name for cell in cells()]
    assert len(set(names)) == len(names) <= 60
    for cell in cells():
        assert cell.load != "poisson" or cell.closed_loop() in cells(), "a Poisson load needs a closed loop's rate"
        assert cell.arm != "documents" or cell.load != "closed" or replace(cell, arm="copies") in cells()


def rows(**of_arm: float) -> list[report.Row]:
    """Returns rows of all cells, where each arm has the same figures. They are of requests a second; TTFT is 1 / it."""
    result = []
    for cell in cells():
        speed = of_arm[cell.arm]
        figures = dict.fromkeys(("cold_ms", "same_order_ms", "new_order_ms", "ttft_p50_ms"), 100 / speed)
        figures |= {"requests_per_s": speed, "tokens_per_s": speed, "step_ms": 1.0}
        result.append({"cell": cell.name, "arm": cell.arm, "seed": 1, "host_ms": {"schedule": 0.1}, **figures})
    return result


@pytest.mark.parametrize(
    ("documents", "copies", "kernel", "unmet"),
    [
        (3.1, 2.0, 0.99, set()),
        (2.9, 2.0, 0.99, {"over stock"}),
        (3.1, 2.25, 0.99, {"over copies"}),
        (3.1, 2.27, 0.97, {"over copies", "over stock's", "over documents"}),
        (0.8, 0.5, 0.99, {"over stock", "over stock's of the same prefix"}),
    ],
)
def test_limits(documents, copies, kernel, unmet):
    outcomes = report.limits(rows(stock=1.0, documents=documents, copies=copies, kernel=kernel, first_page=1.0))
    assert all(outcome["met"] is not None for outcome in outcomes)
    found = {"over " + o["limit"].split(", over ")[1] for o in outcomes if not o["met"]}
    assert found == unmet


def test_limits_of_what_is_not_measured_are_open():
    outcomes = report.limits([])
    assert len(outcomes) > 20 and all(o["met"] is None and o["ratio"] is None for o in outcomes)


def test_copies_exceed_the_budget_of_many_clients():
    cell = Cell("documents", "closed", clients=32)  # 32 requests of 1.25 GiB
    assert report.exceeds_budget(replace(cell, budget_gib=32)) and not report.exceeds_budget(cell)
    assert report.exceeds_budget(replace(cell, clients=128))


def test_runs_complete_one_file(tmp_path, capsys):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    all_rows = rows(stock=1.0, documents=4.0, copies=2.0, kernel=1.0, first_page=3.0)
    command.Results(first, []).write()
    results = command.Results(first, [])
    for row in all_rows[:10]:
        results.add(row)
    options = command.parsed(["--json", str(second), "--join", str(first), "--seeds", "1", "2"])
    joined = command.Results(second, [first])
    assert [cell.name for seed, cell in command.missing(options, joined)] == [
        *(row["cell"] for row in all_rows[10:]),
        *(row["cell"] for row in all_rows),
    ]
    for row in all_rows[10:]:
        joined.add(row)
    written = json.loads(second.read_text())
    assert written["rows"] == all_rows and all(limit["met"] for limit in written["limits"])
    assert command.main(["--json", str(second), "--list"]) == 0
    assert capsys.readouterr().out.strip() == ""
    assert command.main(["--json", str(second), "--table"]) == 0
    table = capsys.readouterr().out
    assert "| closed, 32 clients, 16 tokens | 2.1 | 8 | documents | 4 | 25 |" in table and "NOT MET" not in table


def test_the_plot_has_a_panel_for_each_popularity_and_the_arms_that_are_measured(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "vllm.json"
    measured = rows(stock=1.0, documents=4.0, copies=2.0, kernel=1.0, first_page=3.0)
    file.write_text(json.dumps({"rows": [row for row in measured if row["arm"] != "copies"]}))
    vllm_plots.main([str(file), str(tmp_path)])
    text = (tmp_path / "vllm-over-budget.svg").read_text()
    assert all(text.count(f"<!-- Zipf {zipf} -->") == 2 for zipf in ("0", "1.1", "2.1"))
    for arm, (label, *_) in vllm_plots.LINES.items():
        assert (f"<!-- {label} -->" in text) is (arm != "copies")
    assert "<!-- requests/s -->" in text and "<!-- TTFT p50, ms -->" in text


def test_an_incomplete_table_has_what_is_measured():
    measured = [row for row in rows(**dict.fromkeys(ARMS, 1.0)) if row["arm"] in ("stock", "documents")]
    text = report.text(measured, is_complete=False)
    assert "- stock: " in text and "- copies: " not in text and "not measured" not in text
    text = report.text(measured)
    assert "- copies: " in text and "not measured" in text


def test_figures_of_several_seeds_are_medians():
    one = rows(stock=1.0, documents=4.0, copies=2.0, kernel=1.0, first_page=3.0)
    more = [row | {"seed": seed, "requests_per_s": rate} for row in one for seed, rate in ((2, 9.0), (3, 5.0))]
    found = report.medians(
        [row | {"requests_per_s": 1.0, "hit_rate": None} for row in one] + [row | {"hit_rate": 0.5} for row in more]
    )
    assert {row["requests_per_s"] for row in found.values()} == {5.0}
    assert {row["hit_rate"] for row in found.values()} == {0.5}
