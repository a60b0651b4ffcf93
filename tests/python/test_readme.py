"""The README's examples run as they stand, and its tables say what the code says."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def python_examples() -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 3
    return blocks


def rotate(x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    angle = positions.double()[:, None] * frequencies
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.double().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def test_the_example_computes_attention():
    """By the kernels, on a GPU or in the emulator, against fp64 attention over keys rotated from scratch for where the
    request put the documents."""
    names: dict[str, object] = {}
    exec(compile(python_examples()[0], "README.md", "exec"), names)
    k, v, q, spec = (names[n] for n in ("k", "v", "q", "spec"))
    assert torch.cuda.is_available() or names["kernel"].arch == "emu:sm_80"
    k, v, q = (x.cpu() for x in (k, v, q))
    order = torch.cat([torch.arange(40, 140), torch.arange(0, 40)])
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    keys = rotate(k[order], torch.arange(140), frequencies).repeat_interleave(4, dim=1)
    queries = rotate(q, torch.tensor([140, 141]), frequencies)
    score = torch.einsum("thd,khd->thk", queries, keys) * spec.scale
    exact = torch.einsum("thk,khd->thd", score.softmax(-1), v[order].double().repeat_interleave(4, dim=1))
    out, lse = names["out"].cpu(), names["lse"].cpu()
    assert (out.double() - exact).norm() / exact.norm() < 1e-2
    assert (lse.double() - score.logsumexp(-1)).abs().max() < 2e-2


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # of the compiler's own
def test_the_compiled_example_answers_as_the_kernel(tmp_path: Path):
    """From a file, for torch.compile wants to read the source."""
    first, second, _ = python_examples()
    file = tmp_path / "example.py"
    file.write_text(f"{first}\nexpected = out, lse\n{second}")
    names = runpy.run_path(str(file))
    assert torch.equal(names["out"], names["expected"][0]) and torch.equal(names["lse"], names["expected"][1])


class Words:
    """A tokenizer of 1024 words."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [zlib.crc32(word.encode()) % 1024 for word in text.split()]

    def decode(self, tokens: int | list[int], skip_special_tokens: bool = False) -> str:
        return f"{tokens} "


@pytest.mark.filterwarnings("ignore:the model is on the CPU")
def test_the_engines_example_answers_from_one_copy(monkeypatch: pytest.MonkeyPatch):
    """With a tiny model, for what the example names would be fetched."""
    transformers = pytest.importorskip("transformers", reason="transformers is missing: tools/requirements/rag.txt")
    from tools.rag.model import tiny_llama

    model = tiny_llama(dtype=torch.bfloat16)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **given: model)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: Words())
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(compile(python_examples()[2], "README.md", "exec"), names)
    first, second = names["first"], names["second"]
    assert len(first.tokens) == len(second.tokens) == 128
    assert first.documents == second.documents[::-1] and second.hits == 2
    stats = names["engine"].store.stats
    assert stats.documents == 2 and stats.bytes_copied == 0


def test_the_profile_is_of_lines_that_are_there():
    quoted = re.findall(r"^lazyrope_attend_prefill +(\S+\.cuh):\d+ .*? {2,}(\S[^\n]*;)$", README, re.MULTILINE)
    assert len(quoted) == 3
    for file, line in quoted:
        assert line.split("  ")[-1] in (ROOT / "templates" / file).read_text()


def test_tables_are_current():
    """Figures and variables come from files and code, never from a keyboard."""
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / "readme_tables.py", "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["test_nothing", "Compiles.Nothing"])
def test_tests_that_tables_name_must_be_there(name: str):
    from tools import readme_tables

    path = "compile/compile_test.cpp" if "." in name else "python/test_attention.py"
    with pytest.raises(SystemExit, match=rf"tests/{path}: {name}, which is not there"):
        readme_tables.test(path, name)
