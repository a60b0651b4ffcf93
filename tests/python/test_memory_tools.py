"""The tables of memories (python -m tools.memory): texts, means over seeds, and files that a run completes."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from tests.conftest import HAS_GPU
from tools.memory import __main__ as program
from tools.memory.attention import compute, logits_after, queries_after, states_over
from tools.memory.tables import summary
from tools.memory.texts import KINDS, text_of
from tools.rag.model import tiny_llama


class Letters:
    """A tokenizer with a token for each character."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(letter) % 1024 for letter in text]


def row(method: str, kl: float) -> dict[str, Any]:
    return {"method": method, "kilobytes": 200.7, "read": 67.4, "kl": kl, "nll": 1.5, "top1": 0.9, "seconds": 2.0}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_the_same_each_time_and_differ_by_seed(kind):
    texts = [text_of(kind, Letters(), seed, 300, 200, 50) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert [len(part) for part in (texts[0].prefix, texts[0].traces, texts[0].test)] == [300, 200, 50]
    longer = text_of(kind, Letters(), 0, 350, 200, 50)
    assert longer.prefix == texts[0].prefix + texts[0].traces[:50]
    if kind == "code":
        with pytest.raises(ValueError, match="tokens; 100000000 are needed"):
            text_of(kind, Letters(), 0, 10**8, 0, 0)


@pytest.mark.skipif(HAS_GPU, reason="it runs in fp32 on a CPU")
def test_attention_over_a_document_apart_is_that_of_the_whole_text():
    model = tiny_llama()
    tokens = text_of("ICL", Letters(), 0, 60, 0, 20)
    document = compute(model, tokens.prefix)
    over = [lambda q, k=k, v=v: states_over(q, k, v) for k, v in zip(document.keys, document.values, strict=True)]
    given = logits_after(model, tokens.test, 60, over)
    with torch.no_grad():
        exact = model(torch.tensor([tokens.prefix + tokens.test])).logits[0, 60:].float()
    torch.testing.assert_close(given, exact, rtol=1e-3, atol=1e-3)
    whole = queries_after(model, tokens.test, document)
    part = queries_after(model, tokens.test[:7], document)
    assert all(torch.allclose(a[:7], b, atol=1e-4) for a, b in zip(whole, part, strict=True))


def test_tables_have_means_and_deviations_over_seeds():
    cells = [{"kind": "code", "seed": s, "rows": [row("a", kl), row("b", 1.0)]} for s, kl in enumerate((0.1, 0.3))]
    cells.append({"kind": "ICL", "seed": 0, "rows": [row("c", 0.5)]})
    table = summary({"cells": cells}, "code")
    assert table.rows[0] == ["a", "201", "67", "0.2", "0.14", "1.500", "90.0%"]
    assert [each[0] for each in table.rows] == ["a", "b"]
    assert summary({"cells": cells}, "ICL").rows[0][4] == ""


def test_a_run_completes_a_file_of_the_same_sizes(tmp_path):
    file = tmp_path / "memory.json"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = argparse.Namespace(json=file, join=[], commit="abc", device=device)
    data = program._begun(options, (2048, 2048, 256))
    data["cells"].append({"kind": "code", "seed": 0, "rows": [row("a", 0.1)]})
    program._write(file, data)
    assert json.loads(file.read_text()) == data == program._begun(options, (2048, 2048, 256))
    with pytest.raises(SystemExit, match="give the same, or another file"):
        program._begun(options, (2048, 1024, 256))
    options.device = "cpu" if device == "cuda" else "cuda"
    with pytest.raises(SystemExit, match="give --device of the same kind, or another file"):
        program._begun(options, (2048, 2048, 256))


def test_a_run_joins_the_files_of_others_and_measures_what_is_missing(tmp_path):
    def cell(seed: int, kind: str, kl: float) -> dict[str, Any]:
        return {"kind": kind, "seed": seed, "rows": [row("a", kl)]}

    files = [tmp_path / f"{i}.json" for i in range(2)]
    for file, cells in zip(
        files, ([cell(1, "code", 0.1)], [cell(1, "code", 0.2), cell(0, "ICL", 0.3), cell(0, "code", 0.4)]), strict=True
    ):
        options = argparse.Namespace(json=file, join=[], commit="abc", device="cpu")
        program._write(file, program._begun(options, (8, 8, 8)) | {"cells": cells})
    options = argparse.Namespace(json=files[0], join=files[1:], device="cpu", seeds=3, only=None)
    joined = program._begun(options, (8, 8, 8))
    assert joined["cells"] == [cell(0, "ICL", 0.3), cell(0, "code", 0.4), cell(1, "code", 0.1)]
    assert program._missing(options, joined) == [(1, "ICL"), (2, "ICL"), (2, "code")]
    options.only = [1]
    assert program._missing(options, joined) == [(1, "ICL")]
