"""Forks, sub-interpreters, killed processes, and processes that share a cache directory without flock()."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = """
import os, sys, time, lazyrope
def spec(i):
    # 384 kernels of reposition. Other frequencies would not give other binaries.
    i, dtype = divmod(i, 2)
    i, pairing = divmod(i, 2)
    i, units = divmod(i, 32)
    rope = (lazyrope.rope.neox, lazyrope.rope.gptj)[pairing](rotary_dim=4 * units + 4)
    head_dim, dtype = (128, 192, 256)[i % 3], ("bfloat16", "float16")[dtype]
    return lazyrope.AttentionSpec(head_dim=head_dim, num_q_heads=2, num_kv_heads=1, rope=rope, dtype=dtype)
"""
# A thread compiles one kernel after the other. Children that are forked meanwhile compile the same kernel and another.
FORKS = (
    SOURCE
    + """
import threading
at, is_done, hung, failed = 0, False, 0, 0
def compile_for_ever():
    global at
    while not is_done:
        at += 1
        lazyrope.compile_reposition(spec(at), arch="sm_80")
thread = threading.Thread(target=compile_for_ever)
thread.start()
for i in range(int(sys.argv[1])):
    time.sleep(0.013 * (i % 11))
    child = os.fork()
    if child == 0:
        try:
            lazyrope.compile_reposition(spec(at), arch="sm_80")
            lazyrope.compile_reposition(spec(-1 - i), arch="sm_80")
        except BaseException as error:
            print(error, flush=True)
            os._exit(1)
        os._exit(0)
    deadline, ended, status = time.monotonic() + 30, 0, 0
    while not ended and time.monotonic() < deadline:
        time.sleep(0.005)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, 9)
        os.waitpid(child, 0)
    hung, failed = hung + (not ended), failed + (status != 0)
is_done = True
thread.join()
print("hung", hung, "failed", failed)
"""
)
SUB_INTERPRETER = """
import _xxsubinterpreters as interpreters
try:
    interpreters.run_string(interpreters.create(), "import lazyrope")
except interpreters.RunFailedError as error:
    print(error)
"""
# CPython 3.12 and later warn of a fork in a process with threads. The forks are what the test is about.
NO_FORK_WARNING = "ignore:This process:DeprecationWarning"
# flock() of a file system that has none.
NO_FLOCK = (
    "#include <errno.h>\nint flock(int fd, int operation) { (void)fd, (void)operation; errno = ENOLCK; return -1; }"
)
COMPILE = (
    SOURCE
    + """
kernel = lazyrope.compile(spec(0), arch="sm_80", threads=1)
print(sum(not k.from_cache for k in kernel.kernels.values()))
"""
)
COMPILE_MANY = SOURCE + "for i in range(int(sys.argv[1])): lazyrope.compile_reposition(spec(i), arch='sm_80')"


def start(code: str, cache: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = os.environ | {"LAZYROPE_CACHE_DIR": str(cache)} | variables
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def output_of(process: subprocess.Popen[str], timeout: float) -> str:
    try:
        return process.communicate(timeout=timeout)[0]
    finally:
        process.kill()


def entries(cache: Path) -> int:
    return len([*cache.glob("*.lzr")])


@pytest.mark.sample(1, runs_kernels=False)
@pytest.mark.parametrize("part", range(25))
def test_children_forked_during_a_compilation_compile(part, tmp_path):
    """Locks of the library and of NVRTC that the compiling thread holds do not stop 200 children, or 8 in a sample."""
    process = start(FORKS, tmp_path, "8", PYTHONWARNINGS=NO_FORK_WARNING)
    assert output_of(process, timeout=8 * 40) == "hung 0 failed 0\n"


def test_a_sub_interpreter_is_refused(tmp_path):
    if sys.version_info[:2] not in [(3, 10), (3, 11), (3, 12)]:
        pytest.skip("_xxsubinterpreters has another name here")
    out = output_of(start(SUB_INTERPRETER, tmp_path), timeout=30)
    assert "ImportError" in out and "main interpreter only" in out


@pytest.mark.skipif(shutil.which("cc") is None, reason="the test compiles a library in C")
def test_without_flock_processes_compile_each_kernel_about_once(tmp_path):
    """The processes use files named *.claim instead, and say once that there is no lock."""
    (tmp_path / "flock.c").write_text(NO_FLOCK)
    library, cache, processes = tmp_path / "flock.so", tmp_path / "cache", 6
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "flock.c"], check=True)
    started = [start(COMPILE, cache, LD_PRELOAD=str(library), LAZYROPE_LOG="warning") for _ in range(processes)]
    outputs = [output_of(process, timeout=120) for process in started]
    compiled = [int(out.splitlines()[-1]) for out in outputs]
    kernels = entries(cache)
    assert kernels <= sum(compiled) <= kernels + 1
    assert all(out.count("No locks available") <= 1 for out in outputs)
    assert any("*.claim" in out for out in outputs)
    assert not [*cache.glob("*.claim")] and not [*cache.glob("*.lock")]


@pytest.mark.sample(1, runs_kernels=False)
@pytest.mark.parametrize("part", range(34))
def test_killed_processes_leave_a_good_cache(part, tmp_path, command):
    """After SIGKILL while two processes compile and store, all entries verify and no lock is left to wait for."""
    chance = random.Random(part)
    for _ in range(3):
        before = entries(tmp_path)
        processes = [start(COMPILE_MANY, tmp_path, "1000") for _ in range(2)]
        deadline = time.monotonic() + 60
        while entries(tmp_path) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.random())
        for process in processes:
            process.kill()
            process.communicate()
    verified = subprocess.run([command, "cache", "verify", "--cache", tmp_path], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    killed_at = entries(tmp_path)
    assert killed_at > 0
    assert output_of(start(COMPILE_MANY, tmp_path, str(killed_at + 5), LAZYROPE_LOG="warning"), timeout=60) == ""
