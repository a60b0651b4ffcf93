"""`make demo` runs the README's example where there is no GPU, and prints its error against fp64."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HAS_GPU
from tests.support.command import environment

ROOT = Path(__file__).parents[2]


def run(*statements: str) -> subprocess.CompletedProcess[str]:
    """Runs statements without the part of the demo that compiles for GPUs, which takes longest."""
    lines = ["import tools.demo", "from tools import first_call", "tools.demo.show_kernels = lambda: None"]
    return subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, *statements])],
        cwd=ROOT,
        env=environment() | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(HAS_GPU, reason="the demo runs kernels on the GPU instead")
def test_the_demo_runs_the_example_of_the_readme():
    done = run("tools.demo.main()")
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(
        r"example ran in the emulator.*error of out against fp64: (\S+); of lse: (\S+)\.", done.stdout, re.DOTALL
    )
    assert found and 0 < float(found[1]) < 1e-2 and 0 < float(found[2]) < 1e-2


@pytest.mark.skipif(HAS_GPU, reason="the demo runs kernels on the GPU instead")
def test_the_demo_fails_if_the_example_is_wrong():
    done = run("first_call.SECOND_THEN_FIRST = first_call.FIRST_THEN_SECOND", "tools.demo.main()")
    assert done.returncode == 1 and "These errors are too large" in done.stderr
