"""Runs the unchanged examples, on a GPU or in the emulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "python" / "examples"
SAYS = {
    "first_call.py": "out (2, 4, 64)",
    "documents_in_two_orders.py": "order BA: equals recomputed attention",
    "cuda_graph.py": "the last output is that of a plain call",
    "transformers_engine.py": "2 documents stored, 2 found by the second request, 0 bytes copied",
    "cost_of_documents.ipynb": "head_dim 128: {64: ",
}


def test_every_example_is_run():
    assert {file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".ipynb")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(name: str, tmp_path: Path):
    for module in {"transformers_engine.py": ["transformers"], "cost_of_documents.ipynb": ["matplotlib"]}.get(name, []):
        pytest.importorskip(module, reason=f"{module} is missing: tools/requirements/rag.txt")
    program = EXAMPLES / name
    if program.suffix == ".ipynb":
        program = tmp_path / "notebook.py"
        program.write_text(code_of(EXAMPLES / name))
    result = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        check=False,
        cwd=EXAMPLES,
        env=os.environ | {"MPLBACKEND": "Agg"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert SAYS[name] in result.stdout


def code_of(notebook: Path) -> str:
    """Returns the code cells of a notebook as one program."""
    cells = json.loads(notebook.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
