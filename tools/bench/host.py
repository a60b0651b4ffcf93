"""The commit, the packages of peers and the costs of the host, which ``lazyrope bench`` does not record."""

from __future__ import annotations

import importlib.metadata
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from lazyrope.bench import host
from lazyrope.bench.rows import LazyAttention
from lazyrope.bench.timer import Call, Timer, torch_with_gpu

from tools.bench.rows import Bench
from tools.bench.shapes import Shape

PACKAGES = ("nvidia-cudnn-frontend", "flashinfer-python", "flash-attn-4", "vllm")
# A process of its own runs this, so that the first compilation includes everything that is done once a process.
COMPILE = """
import os, sys, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import lazyrope
spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.llama3())
begin = time.perf_counter()
kernel = lazyrope.compile(spec, arch="sm_90a", tune=False)
print(1e3 * (time.perf_counter() - begin))
"""


def environment(timer: Timer, commit: str | None) -> dict[str, Any]:
    """Returns the entries that describe the machine and what was measured. Without `commit`, git gives it."""
    result = host.environment(timer)
    result["versions"] |= versions_of_packages()
    return result | {"commit": commit or host.first_line(["git", "rev-parse", "--short", "HEAD"])}


def versions_of_packages() -> dict[str, str]:
    """Returns the versions of the peers' packages that are installed."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def compile_costs(runs: int = 5) -> dict[str, float]:
    """Returns milliseconds of compile() in a new process on two cores, with an empty cache and from the disk cache."""

    def once(cache: str) -> float:
        environment = {**os.environ, "LAZYROPE_CACHE_DIR": cache}
        result = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, check=True)
        return float(result.stdout)

    cold, hit = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(once(cache))
            hit.append(once(cache))
    return {"cold_compile_ms": statistics.median(cold), "disk_hit_ms": statistics.median(hit)}


def call_costs(bench: Bench) -> dict[str, float]:
    """Returns microseconds of the host for one call, timed over 100 calls, too few to fill the driver's queue."""
    torch = torch_with_gpu()
    lazy = LazyAttention(Shape("decode", 1, 1, 64, 64), bench)

    def host_us(call: Call) -> float:
        batches = []
        for _ in range(50):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                call()
            batches.append((time.perf_counter() - begin) * 1e4)
        return statistics.median(batches)

    return {
        "call_us": host_us(lazy.attend),
        "call_allocating_us": host_us(lambda: lazy.kernel(lazy.q, lazy.k_pool, lazy.v_pool, lazy.step)),
        "update_us": host_us(lazy.update),
        "torch_op_us": host_us(lazy.out.zero_),
    }
