"""Tuning on a GPU: one process measures and stores its choice, and the next one uses it without measuring.

Each process has the test's own cache, so that no other test sees what is tuned here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lazyrope
import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROOT = Path(__file__).parents[2]
SPEC = "--head-dim 64 --q-heads 8 --kv-heads 2 --rope neox --rope-param theta=10000".split()
# This program compiles with the given `tune`, compares with fp64, and prints the kernel's tuning as JSON.
PROCESS = """
import dataclasses, json, sys, time
import lazyrope
from tests.support import eager
from tests.support.cases import Setting, random_case
from tests.support.tolerance import assert_close, assert_lse_close

tune = {"None": None, "True": True, "False": False}[sys.argv[1]]
settings = [Setting(head_dim=64, phase=phase) for phase in ("decode", "decode", "mixed", "mixed")]
cases = [random_case(setting, seed, "cuda") for seed, setting in enumerate(settings)]
begin = time.perf_counter()
kernel = lazyrope.compile(cases[0].spec, tune=tune)
seconds = time.perf_counter() - begin
for case in cases:
    out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel))
    exact, exact_lse = case.reference()
    assert_close(out, exact, eager.attention(case))
    assert_lse_close(lse, exact_lse, case.q.dtype)
default = lazyrope.configs(cases[0].spec)[0]
print(json.dumps({
    "seconds": seconds,
    "tuning": kernel.tuning and dataclasses.asdict(kernel.tuning),
    "config": kernel.config,
    "is_default": kernel.config == default,
    "split": kernel.config.min_split_blocks,
    "from_cache": kernel.from_cache,
}, default=repr))
"""


def process(cache: Path, tune: bool | None, **variables: str) -> tuple[dict[str, Any], str]:
    """Runs PROCESS, and returns what it printed and its log."""
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    environment = os.environ | {"LAZYROPE_CACHE_DIR": str(cache), "LAZYROPE_LOG": "warning", "PYTHONPATH": path}
    result = subprocess.run(
        [sys.executable, "-c", PROCESS, str(tune)],
        env=environment | variables,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout), result.stderr


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> tuple[Path, dict[str, Any], str]:
    """Returns a cache in which one process has tuned, what that process printed, and its log."""
    cache = tmp_path_factory.mktemp("tuned")
    return cache, *process(cache, tune=True, LAZYROPE_LOG="info")


def test_the_record_has_the_measurements_and_the_choice(tuned):
    _, printed, log = tuned
    print(log)
    tuning = printed["tuning"]
    print(json.dumps(tuning, indent=1))
    assert tuning["gpu"] == torch.cuda.get_device_name() and tuning["arch"] in lazyrope.archs()
    assert tuning["sm_count"] == torch.cuda.get_device_properties(0).multi_processor_count
    assert tuning["driver"] and tuning["compiler"].startswith("nvrtc 1")
    assert 0 < tuning["compile_seconds"] + tuning["measure_seconds"] <= tuning["seconds"] <= printed["seconds"]
    assert [task["name"] for task in tuning["tasks"]] == ["decode", "prefill", "min_split_blocks"]
    for task in tuning["tasks"]:
        assert len(task["trials"]) >= 4 and task["workloads"]
        for trial in task["trials"]:
            assert trial["rejection"] in ("", "spills registers"), "only configs that spill may be rejected"
            assert len(trial["us"]) == (0 if trial["rejection"] else len(task["workloads"]))
            assert all(2 < us < 1e5 for us in trial["us"])
        chosen = task["trials"][task["chosen"]]
        assert task["chosen"] == 0 or chosen["gain"] > max(0.01, chosen["noise"])
    assert tuning["config"] == printed["config"]
    assert printed["is_default"] == all(task["chosen"] == 0 for task in tuning["tasks"])
    assert "lazyrope: info: tuned head_dim 64" in log and "decode: of " in log and " s: compiling " in log


@pytest.mark.parametrize("tune", [None, True])
@pytest.mark.parametrize("policy", ["jit", "cache_only"])
def test_the_next_process_uses_the_record_without_measuring(tuned, tune, policy):
    cache, first, _ = tuned
    printed, log = process(cache, tune, LAZYROPE_POLICY=policy)
    assert printed["tuning"] == first["tuning"] and printed["from_cache"]
    assert printed["seconds"] < min(2.0, first["tuning"]["seconds"]) and "lazyrope:" not in log


def test_tune_false_gives_the_default(tuned):
    printed, log = process(tuned[0], tune=False)
    assert printed["tuning"] is None and printed["is_default"] and "lazyrope:" not in log


def test_a_corrupt_record_is_a_logged_miss(tuned, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(tuned[0], cache)
    (record,) = (file for file in cache.glob("*.lzr") if b'"entry":"tuning"' in file.read_bytes())
    content = bytearray(record.read_bytes())
    content[-1] ^= 1
    record.write_bytes(content)
    printed, log = process(cache, tune=None)
    assert printed["tuning"] is None and "the tuning record" in log and "checksum mismatch" in log


def test_another_gpus_arch_is_refused():
    spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=8, num_kv_heads=2, rope=lazyrope.rope.neox())
    here = lazyrope.compile(spec).arch
    other = next(arch for arch in lazyrope.archs() if arch.startswith("sm_") and arch != here)
    with pytest.raises(lazyrope.SpecError, match=f"present GPU, .*, which needs {here}"):
        lazyrope.compile(spec, other, tune=True)


def test_the_command_tunes_once(tmp_path):
    command = os.environ.get("LAZYROPE_COMMAND") or shutil.which("lazyrope")

    def run(*arguments: str) -> str:
        result = subprocess.run(
            [command, *arguments, "--cache", tmp_path], capture_output=True, text=True, timeout=300, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    first, second = (json.loads(run("autotune", *SPEC, "--seconds", "5", "--json")) for _ in range(2))
    assert [x["attentions"][0]["is_new"] for x in (first, second)] == [True, False]
    assert first["attentions"][0]["tuning"] == second["attentions"][0]["tuning"]
    assert second["seconds"] < first["seconds"]
    text = run("autotune", *SPEC)
    print(text)
    assert "was tuned on 20" in text and "1 attentions in " in text
    assert text.count("d64-g4-neox-bfloat16 ") >= 3
    again = json.loads(run("autotune", *SPEC, "--seconds", "5", "--force", "--json"))
    assert again["attentions"][0]["is_new"]
    assert "1 tuning records" in run("cache", "list")
