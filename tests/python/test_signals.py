"""Compilation in processes that get SIGINT or ignore SIGCHLD."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import lazyrope
import pytest

HAS_EMULATOR = pytest.mark.skipif("emu:sm_80" not in lazyrope.archs(), reason="this build has no emulator")

COMPILE = """
import sys, lazyrope
arch = sys.argv[1]
spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=2, num_kv_heads=1, rope=lazyrope.rope.neox(theta=1e4))
print("begins", flush=True)
kernel = lazyrope.compile(spec, arch=arch, threads=1)
print(len(kernel.kernels), flush=True)
"""
KERNELS = 5


def begin(code: str, arch: str, cache: Path) -> subprocess.Popen[str]:
    """Starts a process in its own process group, as a shell does for Ctrl-C."""
    environment = os.environ | {"LAZYROPE_CACHE_DIR": str(cache)}
    # A shell starts background jobs with SIGINT ignored, and Python leaves it so.
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", handler + code, arch]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)


def num_cached(cache: Path) -> int:
    return len([*cache.rglob("*.lzr")])


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("emu:sm_80", marks=HAS_EMULATOR)])
def test_ctrl_c_ends_a_compilation(arch, tmp_path):
    """SIGINT raises KeyboardInterrupt. Compiled kernels stay in the cache, and the others are not begun."""
    process = begin(COMPILE, arch, tmp_path)
    assert process.stdout.readline() == "begins\n"
    deadline = time.monotonic() + 120
    while num_cached(tmp_path) == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert out == ""
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert 0 < num_cached(tmp_path) < KERNELS


@HAS_EMULATOR
def test_the_emulator_compiles_when_sigchld_is_ignored(tmp_path):
    code = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)" + COMPILE
    out, errors = begin(code, "emu:sm_80", tmp_path).communicate(timeout=300)
    assert out == f"begins\n{KERNELS}\n", errors


@HAS_EMULATOR
def test_an_absent_temporary_directory_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    out, errors = begin(COMPILE, "emu:sm_80", tmp_path).communicate(timeout=60)
    assert out == "begins\n"
    assert "CompileError" in errors and str(tmp_path / "none") in errors
