"""The tests run targets of the Makefile and check what they print."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# ctest runs a suite in each process.
LOG = """\
    Start 1: Arch
1/2 Test #1: Arch .............................   Passed    0.01 sec
    Start 2: Gpu
2/2 Test #2: Gpu ..............................   Passed    0.01 sec

100% tests passed, 0 tests failed out of 2

Label Time Summary:
unit    =   0.02 sec*proc (2 tests)

Total Test time (real) =   0.02 sec
"""
# ctest keeps what the suites print. GoogleTest names a skipped test when it ends, and again in the summary.
OUTPUT = """\
[       OK ] Arch.IsFoundByName (0 ms)
[  PASSED  ] 2 tests.
[  SKIPPED ] Gpu.Launches (0 ms)
[  SKIPPED ] Gpu.Copies (12 ms)
[       OK ] Gpu.IsAbsent (0 ms)
[  PASSED  ] 1 test.
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] Gpu.Launches
[  SKIPPED ] Gpu.Copies
"""


@pytest.fixture
def test_cpp(tmp_path: Path):
    """Returns a function that runs the target test-cpp with a ctest that prints LOG and exits with the given code."""

    def run(code: int) -> subprocess.CompletedProcess:
        (tmp_path / "log").write_text(LOG)
        (tmp_path / "Testing" / "Temporary").mkdir(parents=True)
        (tmp_path / "Testing" / "Temporary" / "LastTest.log").write_text(OUTPUT)
        (tmp_path / "ctest").write_text(f"#!/bin/sh\ncat {tmp_path}/log; exit {code}\n")
        (tmp_path / "ctest").chmod(0o755)
        env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["make", "--no-print-directory", "-C", ROOT, "test-cpp", f"BUILD={tmp_path}"]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    return run


def test_the_summary_of_the_cpp_tests_is_printed_and_no_names_of_skipped_tests(test_cpp, tmp_path):
    assert test_cpp(0).stdout.splitlines() == [
        f"C++ tests: {tmp_path}/ctest.log",
        "100% tests passed, 0 tests failed out of 2",
        "Total Test time (real) =   0.02 sec",
        "3 tests of these suites passed, 2 were skipped",
    ]


def test_the_whole_log_is_printed_if_a_cpp_test_fails(test_cpp):
    run = test_cpp(8)
    assert run.returncode != 0 and LOG in run.stdout
