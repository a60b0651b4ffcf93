"""The README's example runs as it stands, and its tables say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def python_example() -> str:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 1
    return blocks[0]


def rotate(x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    angle = positions.double()[:, None] * frequencies
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.double().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def test_the_example_computes_attention():
    """Against fp64 attention over keys rotated from scratch for where the request put the documents."""
    names: dict[str, object] = {}
    exec(compile(python_example(), "README.md", "exec"), names)
    k, v, q, spec = (names[n] for n in ("k", "v", "q", "spec"))
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


def test_tables_are_current():
    """Figures and variables come from files and code, never from a keyboard."""
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / "readme_tables.py", "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
