"""The tests run targets of the Makefile and check what they print."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# ctest prints the names of skipped tests after its summary.
LOG = """\
      Start 1: Arch.IsFoundByName
1/3 Test #1: Arch.IsFoundByName ..........................   Passed    0.01 sec
2/3 Test #2: Gpu.Launches ................................***Skipped   0.01 sec
3/3 Test #3: Gpu.Copies ..................................***Skipped   0.01 sec

100% tests passed, 0 tests failed out of 3

Label Time Summary:
unit    =   0.03 sec*proc (3 tests)

Total Test time (real) =   0.04 sec

The following tests did not run:
\t  2 - Gpu.Launches (Skipped)
\t  3 - Gpu.Copies (Skipped)
"""


@pytest.fixture
def test_cpp(tmp_path: Path):
    """Returns a function that runs the target test-cpp with a ctest that prints LOG and exits with the given code."""

    def run(code: int) -> subprocess.CompletedProcess:
        (tmp_path / "log").write_text(LOG)
        (tmp_path / "ctest").write_text(f"#!/bin/sh\ncat {tmp_path}/log; exit {code}\n")
        (tmp_path / "ctest").chmod(0o755)
        env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["make", "--no-print-directory", "-C", ROOT, "test-cpp", f"BUILD={tmp_path}"]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    return run


def test_the_summary_of_the_cpp_tests_is_printed_and_no_names_of_skipped_tests(test_cpp, tmp_path):
    assert test_cpp(0).stdout.splitlines() == [
        f"C++ tests: {tmp_path}/ctest.log",
        "100% tests passed, 0 tests failed out of 3",
        "Total Test time (real) =   0.04 sec",
        "2 tests were skipped",
    ]


def test_the_whole_log_is_printed_if_a_cpp_test_fails(test_cpp):
    run = test_cpp(8)
    assert run.returncode != 0 and LOG in run.stdout
