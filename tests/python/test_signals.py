"""Compilation in processes that get SIGINT or ignore SIGCHLD."""

from __future__ import annotations

import os
import re
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
    assert out == "", errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert 0 < num_cached(tmp_path) < KERNELS


def seconds_after_ctrl_c(process: subprocess.Popen[str]) -> float:
    """Sends SIGINT to the process alone, and returns the seconds until KeyboardInterrupt ends it."""
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    out, errors = process.communicate(timeout=120)
    assert out == "" and errors.rstrip().endswith("KeyboardInterrupt"), errors
    return time.monotonic() - begin


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("emu:sm_80", marks=HAS_EMULATOR)])
def test_ctrl_c_ends_a_kernel_that_is_compiled(arch, tmp_path):
    """The first kernel takes two seconds to compile, and SIGINT comes in the first of them."""
    larger = COMPILE.replace("head_dim=64, num_q_heads=2", "head_dim=256, num_q_heads=8")
    process = begin(larger, arch, tmp_path)
    assert process.stdout.readline() == "begins\n"
    time.sleep(0.3)
    assert seconds_after_ctrl_c(process) < 1
    assert num_cached(tmp_path) == 0


RUN = """
import sys, lazyrope, torch
spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=8, num_kv_heads=1, rope=lazyrope.rope.neox())
kernel = lazyrope.compile(spec, arch=sys.argv[1])
q, pool = torch.ones(4000, 8, 64, dtype=torch.bfloat16), torch.ones(250, 16, 1, 64, dtype=torch.bfloat16)
request = lazyrope.Request(range(4000), [lazyrope.Segment(lazyrope.Document(0, 4000), base=0)])
step = kernel.plan(lazyrope.batch([request], torch.arange(250, dtype=torch.int32)))
print("begins", flush=True)
try:
    kernel(q, pool, pool.clone(), step)  # a minute
except KeyboardInterrupt:
    try:
        kernel(q, pool, pool.clone(), step)
    except lazyrope.SpecError as error:
        print(error, file=sys.stderr)
    raise
"""


@HAS_EMULATOR
def test_ctrl_c_ends_a_kernel_that_the_emulator_runs(tmp_path):
    process = begin(RUN, "emu:sm_80", tmp_path)
    assert process.stdout.readline() == "begins\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    out, errors = process.communicate(timeout=120)
    assert time.monotonic() - start < 2
    assert out == "" and errors.rstrip().endswith("KeyboardInterrupt")
    assert "the step is broken, because a kernel ended early; update() refills it" in errors


THREADS = (
    RUN[: RUN.index('print("begins"')].replace("4000", "400").replace("250", "25")
    + """
import signal, threading
def attend(check):
    for _ in range(3):
        kernel(q, pool, pool.clone(), step, check=check)
others = [threading.Thread(target=attend, args=(check,)) for check in (True, False)]
for thread in others:
    thread.start()
attend(False)
for thread in others:
    thread.join()
refused = []
def handler(*_):
    try:
        attend(False)
    except lazyrope.DriverError as error:
        refused.append(error)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.1)
while not refused:
    attend(False)
print(refused[0])
"""
)


@HAS_EMULATOR
def test_threads_and_handlers_do_not_wait_for_each_other_for_ever(tmp_path):
    """A thread that runs a kernel needs the interpreter's lock, which a thread that waits for that kernel may hold."""
    out, errors = begin(THREADS, "emu:sm_80", tmp_path).communicate(timeout=120)
    assert "a signal or logging handler cannot run a kernel in the emulator while this thread runs one" in out, errors


def test_ctrl_c_ends_a_wait_for_another_process(tmp_path):
    """A process that is stopped holds the lock. The one that waits logs the lock's file, and is interrupted."""
    holder = begin(COMPILE, "sm_80", tmp_path)
    while not [*tmp_path.rglob("*.lock")]:
        time.sleep(0.005)
    holder.send_signal(signal.SIGSTOP)
    (lock,) = tmp_path.rglob("*.lock")
    waits = begin(COMPILE, "sm_80", tmp_path)
    assert waits.stdout.readline() == "begins\n"
    try:
        assert f"waiting for {lock}" in waits.stderr.readline()
        assert seconds_after_ctrl_c(waits) < 2
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("emu:sm_80", marks=HAS_EMULATOR)])
def test_a_timeout_ends_a_compilation(arch, tmp_path):
    code = COMPILE.replace("threads=1", "threads=1, timeout=0.5") + "print('not reached')"
    process = begin(code, arch, tmp_path)
    assert process.stdout.readline() == "begins\n"
    start = time.monotonic()
    out, errors = process.communicate(timeout=120)
    assert time.monotonic() - start < 5
    assert out == "" and re.search(r"CompileError: the time limit of 0.5 s is over; \d of 5 kernels are ready", errors)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_that_is_no_duration_is_refused(timeout):
    spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=2, num_kv_heads=1, rope=lazyrope.rope.neox(theta=1e4))
    with pytest.raises(lazyrope.SpecError, match=r"timeout = .*; it must be a number of seconds, more than 0"):
        lazyrope.compile(spec, "sm_80", timeout=timeout)


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
