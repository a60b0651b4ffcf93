"""Runs the examples of python/docs as they are written, and compares quotations with the sources.

A Python block is an example with a test if the comment <!-- test: NAME --> is directly above it. Blocks of one NAME,
which must be on one page, are joined in their order and run as one program, after the example that CONTINUES names.
Programs run on a GPU or on the CPU, with the root of the repository as the working directory. CHECKS has a function
for some names, which checks results or provides a small model; other programs need only run without an error.
"""

from __future__ import annotations

import re
import runpy
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tools.first_call import FIRST_THEN_SECOND, SECOND_THEN_FIRST, assert_computes_attention
from tools.markdown import code_blocks, links, marked_examples

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "python" / "docs"
PAGES = {file.relative_to(DOCS).as_posix(): file for file in sorted(DOCS.rglob("*.md"))}
Run = Callable[[], dict[str, Any]]


class Words:
    """A tokenizer of 1024 words."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [zlib.crc32(word.encode()) % 1024 for word in text.split()]

    def decode(self, tokens: int | list[int], skip_special_tokens: bool = False) -> str:
        return f"{tokens} "


# Each of these examples continues another one, which may be on another page.
CONTINUES = {"first-move": "first-call", "torch-compile": "first-call"}


def check_first_call(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_computes_attention(run(), SECOND_THEN_FIRST)


def check_first_move(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_computes_attention(run(), FIRST_THEN_SECOND)


def check_transformers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the engine answers from one copy of each document.

    A tiny model replaces the one that the example would download.
    """
    transformers = pytest.importorskip("transformers", reason="transformers is missing: tools/requirements/rag.txt")
    from tools.rag.model import tiny_llama

    model = tiny_llama(dtype=torch.bfloat16)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **given: model)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: Words())
    names = run()
    first, second = names["first"], names["second"]
    assert len(first.tokens) == len(second.tokens) == 32
    assert first.documents == second.documents[::-1] and second.hits == 2
    stats = names["engine"].store.stats
    # The store has both documents alone and after the prefix, the prefix, and an overlay of the second document.
    assert len(names["recovered"].tokens) == 32 and names["recovered"].recovery.level == "first_page"
    rules, hours = names["guided"].documents
    again = sum(map(len, names["guided"].recomputed))
    assert names["guided"].recomputed[0] == [] and again >= min(len(hours), 0.5 * (len(rules) + len(hours)))
    # The assessment has both documents and an overlay, once to warm up and once to measure.
    assert stats.documents == 6 + 2 * 3 and stats.bytes_copied == 0
    assert [row.level for row in names["assessment"].levels] == ["none", "ape", "first_page", "guided", "full"]


def check_memory(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the engine reads the memory in place of its document. A tiny model replaces that of the example."""
    transformers = pytest.importorskip("transformers", reason="transformers is missing: tools/requirements/rag.txt")
    from tools.rag.model import tiny_llama

    model = tiny_llama()
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **given: model)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: Words())
    with tempfile.TemporaryDirectory() as folder:  # the example saves a memory
        monkeypatch.chdir(folder)
        names = run()
        monkeypatch.undo()
    memory = names["memory"]
    assert memory.kind == "compact" and len(memory) == 192 and names["answer"].documents[0].key == memory.key
    assert len(names["answer"].tokens) == 8 and 0 <= names["share"] <= 1
    states = names["states"]
    assert states.kind == "states" and names["paper_answer"].documents[0].key == states.key
    assert len(names["paper_answer"].tokens) == 8


def check_torch_compile(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the compiled layer returns the same bits as the kernel."""
    names = run()
    out, lse = names["kernel"](*(names[name] for name in ("q", "k_pool", "v_pool", "step")))
    assert torch.equal(names["out"], out) and torch.equal(names["lse"], lse)


CHECKS = {
    "first-call": check_first_call,
    "first-move": check_first_move,
    "memory": check_memory,
    "transformers": check_transformers,
    "torch-compile": check_torch_compile,
}
EXAMPLES = {page: marked_examples(file.read_text()) for page, file in PAGES.items()}
PROGRAMS = {name: program for of_page in EXAMPLES.values() for name, program in of_page.items()}


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # by torch.compile
@pytest.mark.filterwarnings("ignore:the model is on the CPU")
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The example runs from a file, because torch.compile reads the source."""
    file = tmp_path / "example.py"
    parts = [PROGRAMS[CONTINUES[name]]] if name in CONTINUES else []
    file.write_text("\n".join([*parts, PROGRAMS[name]]))
    monkeypatch.chdir(ROOT)

    def run() -> dict[str, Any]:
        return runpy.run_path(str(file))

    if name in CHECKS:
        CHECKS[name](run, monkeypatch)
    else:
        run()


@pytest.mark.parametrize("name", sorted({*CHECKS, *PROGRAMS}))
def test_an_example_is_on_one_page(name: str):
    pages = [page for page, examples in EXAMPLES.items() if name in examples]
    assert len(pages) == 1, f"<!-- test: {name} --> is above a Python block on {pages or 'no page'} of python/docs"


def test_markers_are_directly_above_python_blocks():
    for page, file in PAGES.items():
        text = file.read_text()
        markers = re.findall(r"<!-- test: ([\w-]+) -->", text)
        followed = re.findall(r"<!-- test: [\w-]+ -->\n```python", text)
        assert len(markers) == len(followed), f"a marker of {page} is not directly above a Python block: {markers}"


@pytest.mark.parametrize("page", PAGES)
def test_links_point_to_pages(page: str):
    file = PAGES[page]
    assert [link for link in links(file.read_text()) if not (file.parent / link).exists()] == []


def test_the_cpp_page_quotes_the_compiled_example():
    """The page quotes tests/consumer/main.cpp, which test_install.py builds and runs."""
    text = PAGES["howto/cpp-engine.md"].read_text()
    included = re.search(r'--8<-- "[^"]*tests/consumer/main\.cpp"', text)
    assert included or (ROOT / "tests" / "consumer" / "main.cpp").read_text() in code_blocks(text, "cpp")


def test_quoted_profiles_quote_lines_of_the_templates():
    quoted = [
        (file, line)
        for page in PAGES.values()
        for file, line in re.findall(
            r"^lazyrope_\w+ +(\S+\.cuh):\d+ .*? {2,}(\S[^\n]*;)$", page.read_text(), re.MULTILINE
        )
    ]
    for file, line in quoted:
        assert line.split("  ")[-1] in (ROOT / "templates" / file).read_text()
