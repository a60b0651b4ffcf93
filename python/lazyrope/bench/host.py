"""What ``lazyrope bench`` says of the machine: its GPU, its versions, and what a call costs its host."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import lazyrope

from .rows import Bench, LazyAttention
from .shapes import Shape
from .timer import Call, Timer, torch_with_gpu

# Run in a process of its own on two cores: everything that a first compilation needs is done for the first time.
COMPILE = """
import os, sys, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import lazyrope
spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.llama3())
begin = time.perf_counter()
kernel = lazyrope.compile(spec, arch="sm_90a", tune=False)
print(1e3 * (time.perf_counter() - begin))
"""


def compile_costs(runs: int = 5) -> dict[str, float]:
    """Milliseconds of compile() in a fresh process on two cores, with an empty cache and with a full one."""

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
    """Microseconds that a call takes the host, its results given or allocated; batches too short to fill a queue."""
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


def environment(timer: Timer, commit: str | None) -> dict[str, Any]:
    torch = torch_with_gpu()
    a, b = (torch.randn((8192, 8192), dtype=torch.bfloat16, device="cuda") for _ in range(2))
    times = timer.medians({"gemm": lambda: a @ b, "floor": lambda: torch.cuda._sleep(1)})
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "sms": properties.multi_processor_count,
        "driver": _command(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "date": datetime.date.today().isoformat(),
        "commit": commit or _command(["git", "rev-parse", "--short", "HEAD"]),
        "versions": {"lazyrope": lazyrope.__version__, "torch": torch.__version__} | _versions_of_peers(torch),
        "floor_us": times["floor"],
        "gemm_tflops": 2 * 8192**3 / times["gemm"] / 1e6,
    }


def _versions_of_peers(torch: Any) -> dict[str, str]:
    """Of cuDNN, and of those packages of peers that are there."""
    versions = {"cudnn": str(torch.backends.cudnn.version())}
    for package in ("nvidia-cudnn-frontend", "flashinfer-python", "flash-attn-4"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _command(command: list[str]) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip().splitlines()[0] if result.stdout.strip() else None
