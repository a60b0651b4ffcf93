"""The README is short, its example computes attention, its commands and links exist, and its figures are current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.first_call import SECOND_THEN_FIRST, assert_computes_attention
from tools.markdown import code_blocks, links

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TEXT = README.read_text()
MAX_BYTES = 9 * 1024
MAX_EXAMPLE_LINES = 15


def test_the_readme_is_short():
    assert len(README.read_bytes()) <= MAX_BYTES


def test_the_example_is_short():
    (example,) = code_blocks(TEXT, "python")
    lines = [line for line in example.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(lines) <= MAX_EXAMPLE_LINES and max(map(len, example.splitlines())) <= 120


def test_the_example_computes_attention():
    (example,) = code_blocks(TEXT, "python")
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert_computes_attention(names, SECOND_THEN_FIRST)


def test_the_commands_of_the_readme_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    commands = [line.split("#")[0].split() for block in code_blocks(TEXT, "sh") for line in block.splitlines()]
    assert ["make", "demo"] in commands and ["make", "test"] in commands
    program = [".venv/bin/python", "python/examples/documents_in_two_orders.py"]  # test_examples.py runs it
    assert program in commands and (ROOT / program[1]).exists()
    for command in commands:
        if command == program:
            continue
        assert command == ["pip", "install", "-v", "."] or (command[0] == "make" and command[1] in targets), command


@pytest.mark.parametrize("file", [README, *sorted(ROOT.glob("*/README.md"))], ids=lambda f: str(f.relative_to(ROOT)))
def test_links_point_to_files(file: Path):
    assert [link for link in links(file.read_text()) if not (file.parent / link).exists()] == []


@pytest.mark.parametrize("folder", ["cache", "codegen", "python", "runtime", "templates", "tests", "tools"])
def test_each_folder_has_a_readme_of_one_screen(folder: str):
    assert len((ROOT / folder / "README.md").read_text().splitlines()) <= 40
    assert f"({folder}/README.md)" in TEXT


def test_generated_pages_and_tables_are_current():
    """The figures and variables of the pages are generated from files and code."""
    command = [sys.executable, "-m", "tools.docs_pages", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["test_nothing", "Nothing"])
def test_a_page_cannot_name_an_absent_test(name: str):
    from tools import docs_pages

    with pytest.raises(SystemExit, match=rf"names the test {name}, which exists 0 times"):
        docs_pages.found_test(name)
