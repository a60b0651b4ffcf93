"""Engines over the ranks of a divided model (tensor parallelism): processes that exchange by gloo, or by NCCL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lazyrope
import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from tests.conftest import HAS_GPU
from tests.support.serving import DTYPE
from tools.rag.model import tiny_llama

RANKS = 2
ROOT = Path(__file__).parents[2]
# The heads of the whole model, and those of one rank. One KV head of the last model is repeated for both ranks.
HEADS = {"16-4": (16, 4), "18-6": (18, 6), "10-1": (10, 1)}
# The most that hidden states may differ, relative to their norm: sums over ranks have another order.
ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

pytestmark = pytest.mark.skipif(HAS_GPU and torch.cuda.device_count() < RANKS, reason="two ranks need two GPUs")


def names_of_models(config: pytest.Config) -> list[str]:
    """Returns all models, or on the CPU without --soak one."""
    return [*HEADS] if HAS_GPU or config.getoption("soak") else ["10-1"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names_of_models(metafunc.config))


def save_model(folder: Path, heads: tuple[int, int]) -> None:
    """Saves a tiny model, in which KV heads are repeated until each rank has one."""
    counts = {"num_attention_heads": heads[0], "num_key_value_heads": max(RANKS, heads[1])}
    model = tiny_llama(dtype=DTYPE, hidden_size=16 * heads[0], **counts)
    repeats = max(1, RANKS // heads[1])
    for layer in model.model.layers:
        for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj):
            first = projection.weight.data[: len(projection.weight) // repeats]
            projection.weight.data.copy_(first.repeat(repeats, 1))
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def found(pytestconfig, tmp_path_factory) -> list[dict[str, Any]]:
    """Returns what each rank has found."""
    folder = tmp_path_factory.mktemp("ranks")
    for name in names_of_models(pytestconfig):
        save_model(folder / "models" / name, HEADS[name])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.support.ranks"]
    kind = "cuda" if HAS_GPU else "cpu"
    logs = [folder / f"{rank}.log" for rank in range(RANKS)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("w") as output:
            given = [*command, str(rank), str(RANKS), str(folder), kind]
            ranks.append(subprocess.Popen(given, cwd=ROOT, env=environment, stdout=output, stderr=output))
    try:
        for rank, log in zip(ranks, logs, strict=True):
            assert rank.wait(300) == 0, log.read_text()
    finally:
        for rank in ranks:
            rank.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture
def of_model(name, found) -> list[dict[str, Any]]:
    return [of_rank[name] for of_rank in found]


def test_all_ranks_do_the_same(of_model):
    first, second = of_model
    assert first == second


def test_the_divided_model_gives_what_the_whole_one_gives(of_model):
    for rank in of_model:
        assert rank["error"] < ERROR[DTYPE]
        if DTYPE == torch.float32:  # near ties differ in bfloat16
            assert rank["divided"]["tokens"] == rank["whole"]["tokens"]
            assert rank["divided"]["chosen"] == rank["whole"]["chosen"]


def test_documents_are_stored_once_and_found_in_any_order(of_model):
    for rank in of_model:
        hits, misses = rank["divided"]["found"]
        assert [hits, misses] == rank["whole"]["found"] and hits > misses
        assert len(set(rank["divided"]["keys"])) == len(rank["whole"]["keys"]) == misses


def test_documents_are_evicted_alike(of_model):
    for rank in of_model:
        kept = rank["evicted"]
        assert all(1 <= len(keys) <= 3 for keys in kept) and len({key for keys in kept for key in keys}) == 4
        assert kept[-1] != kept[-2]


def test_each_rank_has_the_heads_of_its_spec(found, name):
    heads = HEADS[name]
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 64,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 4096,
    }
    spec = lazyrope.AttentionSpec.from_hf(config, tensor_parallel=RANKS)
    assert [rank[name]["heads"] for rank in found] == [[spec.num_q_heads, spec.num_kv_heads]] * RANKS


def test_a_model_whose_heads_transformers_does_not_divide_is_refused():
    """The plan of such models gathers the heads again before the attention, or leaves the attention out."""
    model = tiny_llama()
    model._tp_size = RANKS
    for plan in ({}, {"layers.*.self_attn.q_proj": "colwise_gather_output"}):
        model.config.base_model_tp_plan = plan
        with pytest.raises(lazyrope.SpecError, match=r'divided among 2 ranks; for model_type = "llama", transformers'):
            lazyrope.transformers.attach(model, budget="1MiB")


def test_a_model_with_fewer_kv_heads_than_ranks_is_refused():
    """transformers would divide the only KV head."""
    model = tiny_llama(num_attention_heads=4, num_key_value_heads=1)
    model._tp_size = RANKS
    with pytest.raises(lazyrope.SpecError, match=r"2 ranks divide a model of 4 query and 1 KV heads.* Repeat the KV"):
        lazyrope.transformers.attach(model, budget="1MiB")
