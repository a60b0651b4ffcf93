"""CuPy arrays, side streams, cubins compiled without a GPU, and contexts that PyTorch did not create."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import lazyrope
import pytest
import torch

from tests.support import eager
from tests.support.cases import Setting, random_case
from tests.support.metadata import step_arguments
from tests.support.tolerance import assert_close

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("seed", [2, 3])  # the step of seed 2 has no query tokens
def test_cupy_arrays_on_a_side_stream_agree_with_fp64(seed):
    cupy = pytest.importorskip("cupy")
    case = random_case(Setting(phase="mixed", dtype="float16"), seed, "cuda")
    assert (len(case.q) == 0) == (seed == 2)
    kernel = lazyrope.compile(case.spec)
    q, k_pool, v_pool = (cupy.from_dlpack(t) for t in (case.q, case.k_pool, case.v_pool))
    metadata = {name: cupy.from_dlpack(t) for name, t in case.metadata.items()}
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.use()
        step = kernel.plan(**step_arguments(metadata), page_size=case.setting.page_size, layout=case.setting.layout)
        out, lse = kernel(q, k_pool, v_pool, step)
        stream.synchronize()
    assert isinstance(out, cupy.ndarray) and isinstance(lse, cupy.ndarray)
    assert_close(torch.from_dlpack(out), case.reference()[0], eager.attention(case))


def test_work_is_ordered_on_the_callers_stream():
    """Queries that a side stream writes late are read after the write."""
    case = random_case(Setting(phase="decode"), 4, "cuda")
    kernel = lazyrope.compile(case.spec)
    step = case.plan(kernel)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    q = torch.full_like(case.q, torch.nan)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        q.copy_(case.q)
        out, _ = kernel(q, case.k_pool, case.v_pool, step)
    stream.synchronize()
    assert_close(out, case.reference()[0], eager.attention(case))


SERVE_FROM_CACHE = """
import json, torch, lazyrope
from tests.support import eager
from tests.support.cases import Setting, random_case
from tests.support.tolerance import assert_close
case = random_case(Setting(phase="mixed"), 6, "cuda")
kernel = lazyrope.compile(case.spec)
out, _ = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel))
assert_close(out, case.reference()[0], eager.attention(case))
print(json.dumps({name: k.from_cache for name, k in kernel.kernels.items()}))
"""

COMPILE_WITHOUT_GPU = """
import lazyrope
from tests.support.cases import Setting
lazyrope.compile(Setting(phase="mixed").spec(), arch="sm_90a")
"""


def test_cubins_compiled_without_a_gpu_are_served_without_nvrtc(tmp_path):
    """One process compiles without a GPU, and another one runs the cubins without NVRTC."""
    if lazyrope.compile(Setting().spec()).arch != "sm_90a":
        pytest.skip("the cubins are compiled for sm_90a")
    environment = {**os.environ, "LAZYROPE_CACHE_DIR": str(tmp_path)}
    blind = {**environment, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", COMPILE_WITHOUT_GPU], env=blind, check=True)
    no_compiler = {**environment, "LAZYROPE_NVRTC": "/nonexistent/libnvrtc.so"}
    result = subprocess.run(
        [sys.executable, "-c", SERVE_FROM_CACHE], env=no_compiler, check=True, capture_output=True, text=True
    )
    cached = json.loads(result.stdout)
    assert len(cached) == 5 and all(cached.values())


def test_lazyrope_creates_a_context_without_torch():
    """compile() and doctor() work before any framework has used the GPU."""
    code = "import lazyrope; print(lazyrope.compile(lazyrope.AttentionSpec(head_dim=64, num_q_heads=9, num_kv_heads=3,"
    code += " rope=lazyrope.rope.neox())).arch); assert 'GPU 0' in lazyrope.doctor()"
    subprocess.run([sys.executable, "-c", code], check=True)
