"""Engines over the ranks of a divided model (tensor parallelism): processes that exchange by gloo, or by NCCL."""

from __future__ import annotations

import lazyrope
import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from tests.conftest import HAS_GPU
from tests.gpu import two_gpus
from tests.support import ranks
from tests.support.ranks import HEADS, RANKS, Found
from tools.rag.model import tiny_llama

pytestmark = pytest.mark.skipif(HAS_GPU and torch.cuda.device_count() < RANKS, reason="two ranks need two GPUs")


def names_of_models(config: pytest.Config) -> list[str]:
    """Returns all models, or on the CPU without --soak one."""
    return [*HEADS] if HAS_GPU or config.getoption("soak") else ["10-1"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names_of_models(metafunc.config))


@pytest.fixture(scope="module")
def found(pytestconfig, tmp_path_factory) -> list[dict[str, Found]]:
    """Returns what each rank has found."""
    names = names_of_models(pytestconfig)
    return ranks.run_ranks(tmp_path_factory.mktemp("ranks"), names, "cuda" if HAS_GPU else "cpu")


@pytest.fixture
def of_model(name, found) -> list[Found]:
    return [of_rank[name] for of_rank in found]


def test_all_ranks_do_the_same(of_model):
    ranks.check_alike(of_model)


def test_the_divided_model_gives_what_the_whole_one_gives(of_model):
    ranks.check_outputs(of_model)


def test_documents_are_stored_once_and_found_in_any_order(of_model):
    ranks.check_stored(of_model)


def test_documents_are_evicted_alike(of_model):
    ranks.check_evicted(of_model)


def test_each_rank_has_the_heads_of_its_spec(of_model, name):
    ranks.check_heads(of_model, name)


def test_the_rows_of_two_gpus_have_the_figures_of_each_model(found):
    """tests/gpu/two_gpus.py makes them of what ranks on GPUs have found."""
    for row, name in zip(two_gpus.rows_of_ranks(found), found[0], strict=True):
        assert row["heads"] == found[0][name]["heads"] and row["error"] < ranks.ERROR[ranks.DTYPE]
        assert row["hits"] > row["misses"] > 0


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
