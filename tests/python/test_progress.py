"""The function that compile() calls after each kernel."""

from __future__ import annotations

import subprocess
import sys

import lazyrope
import pytest

from tests.support.command import KERNELS, environment

SPEC = "lazyrope.AttentionSpec(head_dim=64, num_q_heads=2, num_kv_heads=2, rope=lazyrope.rope.none())"


def run(code: str, **changes: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import lazyrope\nspec = {SPEC}\n{code}"],
        env=environment(**changes) | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr


def test_progress_is_told_after_each_kernel_in_order(tmp_path):
    code = "lazyrope.compile(spec, 'sm_80', progress=lambda *told: print(*told))"
    for _ in range(2):  # compiled, and then from the cache
        lines = [line.split() for line in run(code, LAZYROPE_CACHE_DIR=tmp_path).splitlines()]
        assert [line[:2] for line in lines] == [[str(n), str(len(KERNELS))] for n in range(1, len(KERNELS) + 1)]
        assert sorted(line[2] for line in lines) == sorted(KERNELS)


def test_an_exception_of_progress_ends_the_call_and_the_next_call_works(tmp_path):
    code = """
def stop(done, total, kernel):
    raise KeyError("enough")
try:
    lazyrope.compile(spec, "sm_80", threads=1, progress=stop)
except KeyError as error:
    print(error)
print(len(lazyrope.compile(spec, "sm_80").kernels))
"""
    assert run(code, LAZYROPE_CACHE_DIR=tmp_path) == f"'enough'\n{len(KERNELS)}\n"


def test_progress_that_cannot_be_called_is_refused():
    spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=2, num_kv_heads=2, rope=lazyrope.rope.none())
    with pytest.raises(lazyrope.SpecError, match="progress must be None or a function"):
        lazyrope.compile(spec, "sm_80", progress=3)


DECODE_FIRST = """
names = []
kernel = lazyrope.compile(
    spec, "sm_80", wait_for_prefill=False, progress=lambda done, total, name: names.append(name)
)
print(*sorted(names))
"""


def test_without_prefill_the_call_waits_for_the_other_kernels_and_a_thread_compiles_prefill(tmp_path):
    code = DECODE_FIRST + "print(*kernel.kernels); print(kernel.spill_bytes)"
    others = sorted(set(KERNELS) - {"attend_prefill"})
    assert run(code, LAZYROPE_CACHE_DIR=tmp_path).splitlines() == [" ".join(others), " ".join(KERNELS), "0"]
    # The interpreter waits for the thread, which finds its kernel in the cache now.
    assert run("print(lazyrope.compile(spec, 'sm_80').from_cache)", LAZYROPE_CACHE_DIR=tmp_path) == "True\n"


def test_the_thread_that_compiles_prefill_fills_the_cache_though_no_one_asks_for_its_kernel(tmp_path):
    run(DECODE_FIRST, LAZYROPE_CACHE_DIR=tmp_path)
    assert run("print(lazyrope.compile(spec, 'sm_80').from_cache)", LAZYROPE_CACHE_DIR=tmp_path) == "True\n"


def test_the_failure_of_prefill_is_raised_where_its_kernel_is_needed(tmp_path):
    run("lazyrope.compile(spec, 'sm_80')", LAZYROPE_CACHE_DIR=tmp_path)
    (prefill,) = [file for file in tmp_path.rglob("*.lzr") if b"lazyrope_attend_prefill" in file.read_bytes()]
    prefill.unlink()
    code = DECODE_FIRST + "print('attend_decode' in kernel.source)\nkernel.kernels"
    out = run(code, LAZYROPE_CACHE_DIR=tmp_path, LAZYROPE_POLICY="cache_only")
    assert out.startswith("append attend_decode plan plan_append\nTrue\n"), out
    assert "lazyrope.errors.CacheError: LAZYROPE_POLICY=cache_only forbids compiling lazyrope_attend_prefill" in out


def test_a_child_compiles_the_prefill_that_its_parent_compiles(tmp_path):
    code = DECODE_FIRST + (
        "import os\nchild = os.fork()\nos.write(1, b'%d\\n' % len(kernel.kernels))\nif child: os.waitpid(child, 0)\n"
        "else: os._exit(0)"
    )
    assert run(code, LAZYROPE_CACHE_DIR=tmp_path).splitlines().count(str(len(KERNELS))) == 2
