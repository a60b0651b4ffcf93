"""``lazyrope assess`` reads questions from a file and prints what :meth:`Engine.assess` finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lazyrope import assess

transformers = pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from tests.python.test_docs_examples import Words  # noqa: E402
from tools.rag.model import tiny_llama  # noqa: E402

QUESTIONS = [
    {"prompt": "when does it close", "documents": ["a b c d", "e f g h"], "answer": "at six"},
    {"prompt": [1, 2, 3], "documents": [[4, 5], [6, 7, 8]]},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(path)
    return path


@pytest.fixture
def run(folder, tmp_path, monkeypatch):
    """Returns a function that runs the command on lines of a file."""
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda _name: Words())

    def run_lines(lines: list[Any], *options: str) -> None:
        file = tmp_path / "questions.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        file.write_text("\n".join(texts) + "\n")
        assess.main([str(file), "--model", str(folder), "--device", "cpu", "--budget", "16MiB", *options])

    return run_lines


@pytest.mark.filterwarnings("ignore:the model is on the CPU:RuntimeWarning")
def test_results_are_printed_and_written(run, folder, tmp_path, capsys):
    file = tmp_path / "result.json"
    options = ["--dtype", "float32", "--overlay-tokens", "1", "--share", "0.5", "--prefix", "be brief"]
    options += ["--attention-temperature", "0.8", "--lse-scale", "1.1"]
    plot = tmp_path / "plot.svg"
    options += ["--plot", str(plot)]
    run([QUESTIONS[0], "", QUESTIONS[1]], "--json", str(file), "--max-new-tokens", "2", "--max-kl", "1e9", *options)
    result = json.loads(file.read_text())
    assert [level["level"] for level in result["levels"]] == ["none", "prefix", "ape", "first_page", "guided", "full"]
    assert (result["samples"], result["recommended"], result["share"]) == (2, "none", 0.5)
    assert (result["model"], result["backend"], result["overlay_tokens"]) == (str(folder), "eager", 1)
    assert (result["attention_temperature"], result["lse_scale"]) == (0.8, 1.1)
    shares = {level["level"]: level["recomputed_share"] for level in result["levels"]}
    assert shares == pytest.approx(
        {"none": 0, "prefix": 0, "ape": 0, "first_page": 2 / 17, "guided": (4 + 3) / 17, "full": 1}
    ), "the prefix has 2 tokens for each question"
    assert "<svg" in plot.read_text()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["level", *shares, "recommended"]


@pytest.mark.filterwarnings("ignore:the model is on the CPU:RuntimeWarning")
def test_the_first_lines_alone_may_be_assessed(run, tmp_path):
    file = tmp_path / "result.json"
    run([QUESTIONS[1], "no JSON"], "--limit", "1", "--json", str(file), "--max-new-tokens", "1")
    assert json.loads(file.read_text())["samples"] == 1


@pytest.mark.parametrize(
    ("lines", "options", "says"),
    [
        ([QUESTIONS[0], "{"], [], r"questions.jsonl, line 2: Expecting property name"),
        (["[1]"], [], r"questions.jsonl, line 1: \[1\]; it must be an object with prompt, documents and, optionally"),
        ([{"prompt": "a", "texts": []}], [], r"line 1: .*; it must be an object with prompt, documents"),
        ([""], [], "questions.jsonl has no questions"),
        ([QUESTIONS[0] | {"documents": []}], [], r"documents = \[\]; it must be at least one document"),
        (QUESTIONS, ["--model", "/no/such/model"], "/no/such/model"),
        (QUESTIONS, ["--share", "2"], "share = 2.0; it must be a number, 0 to 1"),
        (QUESTIONS, ["--json", "/no/such/folder/x.json"], "cannot write /no/such/folder/x.json"),
        (QUESTIONS, ["--plot", "/no/such/folder/x.svg"], "cannot write /no/such/folder/x.svg"),
        (QUESTIONS, ["--plot", "x.xyz", "--model", "/no/such/model"], "'x.xyz'; its suffix must be one of"),
    ],
)
@pytest.mark.filterwarnings("ignore:the model is on the CPU:RuntimeWarning")
def test_mistakes_are_named(run, lines, options, says):
    with pytest.raises(SystemExit, match=rf"^lazyrope assess: .*{says}"):
        run(lines, *options)


def test_wrong_usage_is_told_before_the_model_is_loaded(run, capsys):
    for options, says in ((["--limit", "0"], "--limit: 0; it must be at least 1"), (["--dtype", "int8"], "int8")):
        with pytest.raises(SystemExit) as stopped:
            run(QUESTIONS, *options)
        assert stopped.value.code == 2 and says in capsys.readouterr().err


def test_a_missing_package_is_named(run, monkeypatch):
    monkeypatch.setattr(assess, "PACKAGES", ("torch", "no_such_package"))
    with pytest.raises(SystemExit, match="lazyrope assess needs no_such_package: pip install no_such_package"):
        run(QUESTIONS)
