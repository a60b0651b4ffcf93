"""Read-only layers, explained misses and counters: what a fleet of machines asks of the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import KERNELS, MISSING_NVRTC, environment, run_command

SPEC = "--head-dim 64 --q-heads 2 --kv-heads 2 --rope none".split()
OTHER_SPEC = "--head-dim 64 --q-heads 6 --kv-heads 2 --rope none".split()

PROGRAM = """
import json, lazyrope
spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=2, num_kv_heads=2, rope=lazyrope.rope.none())
for _ in range(2):
    lazyrope.compile(spec, arch="sm_80")
print(json.dumps([lazyrope.counters(), lazyrope.open_metrics()]))
"""


@pytest.fixture(scope="module")
def image(command: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory with the kernels of SPEC, as an image has it."""
    root = tmp_path_factory.mktemp("image") / "kernels"
    run_command(command, "precompile", *SPEC, "--arch", "sm_80", "--out", root)
    return root


def run_program(**changes: object) -> tuple[dict[str, float], str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(**changes) | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    counters, text = json.loads(done.stdout)
    return counters, text


def test_kernels_of_a_layer_are_used_without_a_compiler_and_not_copied(image, tmp_path):
    user = tmp_path / "user"
    counters, text = run_program(
        LAZYROPE_CACHE_DIR=user,
        LAZYROPE_CACHE_LAYERS=f"/nonexistent:{image}",
        LAZYROPE_NVRTC=MISSING_NVRTC,
        LAZYROPE_POLICY="cache_only",
    )
    assert counters['lazyrope_kernel_requests_total{from="disk"}'] == len(KERNELS)
    assert counters['lazyrope_kernel_requests_total{from="memory"}'] == len(KERNELS)
    assert sum(value for name, value in counters.items() if "misses" in name) == 0
    assert f'lazyrope_kernel_requests_total{{from="disk"}} {len(KERNELS)}\n' in text
    assert not user.exists()


def test_a_list_of_layers_with_an_empty_path_is_refused(command, image):
    run = run_command(command, "doctor", code=1, LAZYROPE_CACHE_LAYERS=f"{image}:")
    assert "LAZYROPE_CACHE_LAYERS" in run.stderr and "paths, with colons between them" in run.stderr


def test_precompile_fills_its_directory_although_a_layer_has_the_kernels(command, image, tmp_path):
    out = tmp_path / "out"
    run_command(command, "precompile", *SPEC, "--arch", "sm_80", "--out", out, LAZYROPE_CACHE_LAYERS=image)
    assert len([*out.glob("*.lzr")]) == len(KERNELS)


def test_why_names_what_differs_in_the_nearest_entry(command, image):
    options = ["--cache", image, "--arch", "sm_80", "--json"]
    found = json.loads(run_command(command, "cache", "why", *SPEC, *options).stdout)["kernels"]
    assert [kernel["kernel"] for kernel in found] == KERNELS and all(kernel["found"] for kernel in found)
    assert all(kernel["compiler"].startswith("nvrtc ") and kernel["differs"] == [] for kernel in found)

    kernels = json.loads(run_command(command, "cache", "why", *OTHER_SPEC, *options, code=1).stdout)["kernels"]
    decode = next(kernel for kernel in kernels if kernel["kernel"] == "attend_decode")
    (spec, *_) = [difference for difference in decode["differs"] if difference["name"] == "spec"]
    assert "group 1" in spec["there"] and "group 3" in spec["wanted"]
    assert "source" not in [difference["name"] for difference in decode["differs"]]

    text = run_command(command, "cache", "why", *SPEC, "--cache", image, "--arch", "sm_86", code=1).stdout
    assert (
        "arch: sm_80\n      wanted: sm_86" in text and f"{len(KERNELS)} of {len(KERNELS)} kernels are missing" in text
    )


def test_the_refusal_of_cache_only_names_what_differs(image):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("num_q_heads=2", "num_q_heads=6")],
        env=environment(LAZYROPE_CACHE_DIR=image, LAZYROPE_POLICY="cache_only")
        | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CacheError" in run.stderr and "the nearest readable entry differs in: " in run.stderr
    assert "spec" in run.stderr and "lazyrope cache why" in run.stderr


def test_a_hit_and_a_miss_are_logged_at_debug(command, image, tmp_path):
    options = [*SPEC, "--arch", "sm_80"]
    log = run_command(command, "compile", *options, LAZYROPE_CACHE_DIR=image, LAZYROPE_LOG="debug").stderr
    assert "cache hit for lazyrope_plan of sm_80" in log and "cache miss" not in log
    log = run_command(command, "compile", *options, LAZYROPE_CACHE_DIR=tmp_path, LAZYROPE_LOG="debug").stderr
    assert "cache miss for lazyrope_plan of sm_80: absent" in log
