"""Tests tuning where nothing can be measured. tests/gpu/test_autotune.py tests tuning on a GPU."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import lazyrope
import pytest

from tests.conftest import HAS_GPU
from tests.support.command import SPEC, write_config

WITHOUT_GPU = pytest.mark.skipif(HAS_GPU, reason="there is a GPU to tune on")


@pytest.fixture
def spec() -> lazyrope.AttentionSpec:
    return lazyrope.AttentionSpec(head_dim=64, num_q_heads=4, num_kv_heads=2, rope=lazyrope.rope.neox())


@WITHOUT_GPU
@pytest.mark.parametrize("arch", [None, "sm_90a"])
def test_tuning_without_a_gpu_raises_and_says_where_to_tune(spec, arch):
    with pytest.raises(lazyrope.DriverError, match="tuning measures on the GPU that will run") as caught:
        lazyrope.compile(spec, arch, tune=True)
    assert "lazyrope autotune" in str(caught.value) and "no NVIDIA driver" in str(caught.value)


def test_tuning_for_the_emulator_is_refused(spec):
    with pytest.raises(lazyrope.SpecError, match=r'arch "emu:sm_80": tuning measures kernels on a GPU'):
        lazyrope.compile(spec, "emu:sm_80", tune=True)


def test_config_and_tune_exclude_each_other(spec):
    config = lazyrope.configs(spec, "sm_90a")[0]
    with pytest.raises(lazyrope.SpecError, match="give one of the two"):
        lazyrope.compile(spec, "sm_90a", config=config, tune=True)


@pytest.mark.parametrize("tune", [None, False])
def test_a_named_arch_gets_the_default_config(spec, tune):
    kernel = lazyrope.compile(spec, "sm_80", tune=tune)
    assert kernel.tuning is None and kernel.config == lazyrope.configs(spec, "sm_80")[0]
    assert lazyrope.compile(spec, "sm_80", config=kernel.config, tune=tune).tuning is None


@WITHOUT_GPU
def test_the_command_without_a_gpu_says_where_to_tune(run):
    error = run("autotune", *SPEC, code=1).stderr
    assert error.startswith("lazyrope: tuning measures on the GPU that will run the kernels, and there is none here")


def test_the_command_refuses_bad_arguments(run, tmp_path):
    assert "missing: --head-dim" in run("autotune", code=2).stderr
    assert "--seconds" in run("autotune", *SPEC, "--seconds", -1, code=2).stderr
    assert "--arch" in run("autotune", *SPEC, "--arch", "sm_90a", code=2).stderr
    file = write_config(tmp_path / "tiny", head_dim=88)
    assert "head_dim = 88" in run("autotune", "--model", file, code=1).stderr


def write_record(cache: Path) -> None:
    """Writes a cache file with a tuning record, in the format of cache/entry.h."""
    fields = {"gpu": "a GPU"}
    key = hashlib.sha256(b"3:gpu5:a GPU").hexdigest()
    parts = [json.dumps(x).encode() for x in (fields, {"entry": "tuning", "arch": "sm_90a", "compiler": "nvrtc 13.0"})]
    body = struct.pack("<QQQ", len(parts[0]), len(parts[1]), 0) + b"".join(parts)
    cache.mkdir()
    (cache / f"{key}.lzr").write_bytes(b"LAZYROPE" + struct.pack("<I", 1) + hashlib.sha256(body).digest() + body)


def test_the_cache_command_lists_tuning_records(run, cache):
    write_record(cache)
    text = run("cache", "list").stdout
    assert " tuning  sm_90a " in text and "0 kernels, 1 tuning records, " in text
    (entry,) = json.loads(run("cache", "list", "--json").stdout)["entries"]
    assert (entry["entry"], entry["arch"], entry["error"]) == ("tuning", "sm_90a", None)
    assert run("cache", "verify").stdout.startswith("0 of 1 entries are bad")
    assert "removed 1 entries" in run("cache", "clear", "--yes").stdout
