"""Lets processes that vLLM starts find lazyrope's plug-ins."""

from __future__ import annotations

import os
import re
from pathlib import Path

import lazyrope
from lazyrope.vllm import releases

from tests.conftest import HAS_GPU

ROOT = Path(__file__).parents[2]


def variables_of_ranks(folder: Path, ranks: int) -> dict[str, str]:
    """Returns the environment in which vLLM starts a process for each rank. On the CPU, each has a core of its own.

    Args:
        folder: An empty folder, which gets the metadata of the plug-ins.
        ranks: The number of processes.
    """
    write_metadata(folder)
    return {
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(lazyrope.__file__).parents[1]), str(ROOT)]),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(rank) for rank in range(ranks)),
    }


def write_metadata(folder: Path) -> None:
    """Writes what pip writes about lazyrope. On the CPU also about vLLM, whose server wants a distribution "vllm"."""
    groups = re.findall(r'entry-points\."([\w.]+)"\]\n(\w+) = "(.+)"\n', (ROOT / "pyproject.toml").read_text())
    assert len(groups) == 2
    points = "".join(f"[{group}]\n{name} = {target}\n" for group, name, target in groups)
    write_distribution(folder, "lazyrope", lazyrope.__version__, points)
    if not HAS_GPU:
        write_distribution(folder, "vllm", f"{releases.installed_version()}+cpu", "")


def write_distribution(folder: Path, name: str, version: str, entry_points: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
