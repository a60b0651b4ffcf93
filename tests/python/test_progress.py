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
