"""Without a GPU and PyTorch, the library works with the emulator, NumPy arrays and a C++ compiler."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import lazyrope
import pytest

from tests.support.command import environment

pytestmark = pytest.mark.skipif("emu:sm_80" not in lazyrope.archs(), reason="this build has no emulator")

SPEC = "lazyrope.AttentionSpec(head_dim=64, num_q_heads=4, num_kv_heads=2, rope=lazyrope.rope.neox(), dtype='float16')"

# A request of 3 query tokens sees two documents of 40 and 21 tokens, the second one first.
ARRAYS = f"""
import sys

sys.modules |= {{"torch": None, "cupy": None}}  # importing them fails
import lazyrope
import numpy as np

kernel = lazyrope.compile({SPEC}, arch="emu:sm_80")
random = np.random.default_rng(3)
k, v = (random.standard_normal((61, 2, 64)).astype(np.float16) for _ in "kv")
q = random.standard_normal((3, 4, 64)).astype(np.float16)
k_pool, v_pool = (np.full((6, 16, 2, 64), np.nan, dtype=np.float16) for _ in "kv")


def ints(*values):
    return np.array(values, dtype=np.int32)


pages = ints(5, 1, 3, 0, 2)
spans = lazyrope.TokenSpans(indptr=ints(0, 40, 61), start=ints(0, 0), first_page=ints(0, 3))
writes = kernel.plan_append(spans, pages, capacity=lazyrope.AppendCapacity(61), check=True)
kernel.append(k, v, k_pool, v_pool, writes)
positions = ints(61, 62, 63)
segments = lazyrope.Segments(ints(0, 2), ints(0, 21), ints(0, 0), ints(21, 40), ints(3, 0))
step = kernel.plan(ints(0, 3), positions, segments, pages)


def rotate(x, positions):
    angle = positions.astype(np.float64)[:, None] * np.array(kernel.spec.frequencies)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


order = np.r_[40:61, 0:40]
keys = rotate(k[order], np.arange(61)).repeat(2, axis=1)
score = np.einsum("thd,khd->thk", rotate(q, positions), keys) * kernel.spec.scale
weights = np.exp(score)
exact = np.einsum("thk,khd->thd", weights / weights.sum(-1, keepdims=True), v[order].repeat(2, axis=1).astype(float))
exact_lse = np.log(weights.sum(-1))


def check(out, lse):
    assert type(out) is type(lse) is np.ndarray and (out.dtype, lse.dtype) == (np.float16, np.float32)
    assert np.linalg.norm(out - exact) < 2e-3 * np.linalg.norm(exact)
    assert np.abs(lse - exact_lse).max() < 5e-3


check(*kernel(q, k_pool, v_pool, step))
out, lse = np.full_like(q, np.nan), np.full(q.shape[:2], np.nan, dtype=np.float32)
given = kernel(q, k_pool, v_pool, step, out=out, lse=lse)
assert given[0] is out and given[1] is lse
check(out, lse)
print("as the reference")
"""

WITHOUT_COMPILER = f"""
import lazyrope

try:
    lazyrope.compile({SPEC}, arch="emu:sm_80")
except lazyrope.CompileError as error:
    print(error)
"""


def run(program: str, **changes: str | Path | None) -> str:
    variables = environment(LAZYROPE_CACHE_DIR="none", **changes)
    command = [sys.executable, "-c", textwrap.dedent(program)]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_numpy_arrays_agree_with_the_reference():
    assert run(ARRAYS) == "as the reference\n"


@pytest.mark.parametrize(
    ("changes", "tried"),
    [({"LAZYROPE_CXX": "/nonexistent/g++ -m64"}, "/nonexistent/g++ -m64"), ({"PATH": "/nonexistent"}, "c++")],
    ids=["LAZYROPE_CXX", "PATH"],
)
def test_a_missing_compiler_is_named(changes, tried):
    error = run(WITHOUT_COMPILER, **changes)
    assert f'(arch "emu:...") needs a C++20 compiler; tried "{tried}"' in error and "not found" in error
    assert "apt-get install g++" in error and "LAZYROPE_CXX" in error
