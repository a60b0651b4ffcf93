"""Runs the program for two GPUs (tests/gpu/two_gpus.py) where there is none, and checks how it judges its figures.

test_transformers_ranks.py runs the part "ranks", on the CPU by gloo.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from tests.conftest import HAS_GPU
from tests.gpu import two_gpus

WITHOUT_GPU = pytest.mark.skipif(HAS_GPU, reason="the program runs on GPUs, or refuses to")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Returns a file with rows of two parts."""
    file = tmp_path / "two_gpus.json"
    file.write_text(json.dumps({"rows": [{"part": "ranks", "error": 0.5}, {"part": "engines", "compiled": [7, 7]}]}))
    return file


@WITHOUT_GPU
def test_engines_of_one_process_compile_each_kernel_once(file):
    assert two_gpus.main(["--tiny", "--parts", "engines", "--json", str(file)]) == 0
    written = json.loads(file.read_text())
    kept, row = written["rows"]
    assert kept == {"part": "ranks", "error": 0.5}
    assert row["part"] == "engines" and row["passed"] and row["compiled"][0] > 0 and row["compiled"][1] == 0
    assert written["gpu"] is None and written["date"] and written["command"] == "python3 -m tests.gpu.two_gpus"


@WITHOUT_GPU
def test_a_part_that_fails_is_written_and_the_others_run(file, monkeypatch):
    def run_child(arguments: list[str], variables: dict[str, str]) -> None:
        if arguments[-1] == "ranks":
            raise subprocess.CalledProcessError(3, arguments)
        Path(arguments[1]).write_text(json.dumps([{"compiled": [6, 0]}]))

    monkeypatch.setattr(two_gpus, "run_child", run_child)
    assert two_gpus.main(["--tiny", "--parts", "ranks", "engines", "--json", str(file)]) == 1
    failed, passed = json.loads(file.read_text())["rows"]
    assert (failed["part"], failed["passed"], failed["status"]) == ("ranks", False, 3)
    assert (passed["part"], passed["passed"], passed["compiled"]) == ("engines", True, [6, 0])


@WITHOUT_GPU
def test_without_gpus_the_program_says_what_is_possible(file, capsys):
    with pytest.raises(SystemExit, match=r"two GPUs are needed; this machine has 0: give --tiny"):
        two_gpus.main(["--json", str(file)])
    with pytest.raises(SystemExit):
        two_gpus.main(["--tiny", "--parts", "tuning", "--json", str(file)])
    assert "--parts tuning: without a GPU there are ranks, engines, vllm" in capsys.readouterr().err


SURE = [(5, -0.1), (6, -2.5)]
NEAR = [(5, -0.70), (6, -0.75)]


def test_answers_may_differ_after_a_near_tie():
    swapped = [(6, -0.71), (5, -0.74)]
    other = [(9, -0.1), (1, -3.0)]
    found = two_gpus.compared([[SURE, NEAR, SURE], [SURE]], [[SURE, swapped, other], [SURE]], limit=0.2)
    assert found == {"answers": 2, "same_answers": 1, "logprob_error": 0.0}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ([[(6, -0.1), (5, -2.5)]], "position 0: one GPU finds"),
        ([[(7, -0.1), (8, -2.5)]], "position 0: one GPU finds"),
        ([[(5, -0.4), (6, -2.0)]], "log-probabilities differ by 0.3; the limit is 0.2"),
    ],
)
def test_other_answers_are_refused(other, message):
    with pytest.raises(AssertionError, match=message):
        two_gpus.compared([[SURE]], [other], limit=0.2)


def test_answers_that_mostly_differ_are_refused():
    swapped = [(6, -0.71), (5, -0.74)]
    with pytest.raises(AssertionError, match="1 of 3 answers are the same"):
        two_gpus.compared([[NEAR], [NEAR], [SURE]], [[swapped], [swapped], [SURE]], limit=0.2)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, float]]:
    """Returns the times that engines of vLLM report, which a test may change."""
    times = {"documents": {"new_order_ms": 12.4, "same_order_ms": 12.0}, "stock": {"same_order_ms": 10.0}}

    def run_child(arguments: list[str], variables: dict[str, str]) -> None:
        name, count, _ = arguments[-1].split(",")
        answers: list[Any] = [[SURE, NEAR]]
        Path(arguments[1]).write_text(json.dumps({"figures": times[name], "answers": answers}))
        assert int(count) in (1, 2) and variables["PYTHONPATH"]

    monkeypatch.setattr(two_gpus, "run_child", run_child)
    monkeypatch.setattr(two_gpus, "save_model", lambda folder, tiny: None)
    return times


def test_the_first_token_is_compared_with_a_prefix_hit_of_stock_vllm(figures, tmp_path):
    one, two, stock = two_gpus.vllm(False, tmp_path)
    assert [(row["arm"], row["ranks"]) for row in (one, two, stock)] == [*two_gpus.ENGINES]
    assert two["new_order_over_prefix_hit"] == pytest.approx(1.24) and two["same_answers"] == 1


def test_a_first_token_that_takes_too_long_is_refused(figures, tmp_path):
    figures["documents"]["new_order_ms"] = 12.6
    with pytest.raises(AssertionError, match=r"take 1\.260 times an exact prefix hit"):
        two_gpus.vllm(False, tmp_path)
