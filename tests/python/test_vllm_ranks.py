"""Serves documents inside a real vLLM with tensor parallelism of two ranks: `make test-vllm`, as for test_vllm.py.

Each rank is a process. On the CPU, the ranks exchange their sums by gloo; on a machine with two GPUs, by NCCL.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="make test-vllm")

from vllm import LLM

from tests.conftest import HAS_GPU
from tests.python.test_vllm import (
    BLOCK,
    DOCUMENTS,
    ENVIRONMENT,
    LAZYROPE,
    ON_GPU,
    Question,
    ask,
    assert_all_right,
    assert_right,
    clear_cache,
    plugin,
    random_questions,
    scheduler_of,
)
from tests.support.serving import DTYPE, as_dtype, random_tokens
from tests.support.vllm_processes import variables_of_ranks
from tools.rag.model import tiny_llama

RANKS = 2
pytestmark = pytest.mark.skipif(
    HAS_GPU and torch.cuda.device_count() < RANKS, reason="two ranks need two GPUs, or the CPU"
)


@pytest.fixture(scope="module", autouse=True)
def processes(tmp_path_factory) -> Iterator[None]:
    """Lets the processes of the ranks find the plug-in, and gives each a core on the CPU."""
    variables = ENVIRONMENT | variables_of_ranks(tmp_path_factory.mktemp("metadata"), RANKS)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


# In the second model, both ranks have the only KV head.
@pytest.fixture(scope="module", params=[(8, 2), (4, 1)], ids="{0[0]}-{0[1]}".format)
def heads(request) -> tuple[int, int]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def saved(heads, tmp_path_factory) -> tuple[Any, str]:
    """Returns the reference in fp32, and the folder of the model."""
    model = tiny_llama(dtype=DTYPE, num_attention_heads=heads[0], num_key_value_heads=heads[1])
    folder = str(tmp_path_factory.mktemp("model"))
    model.save_pretrained(folder)
    return as_dtype(model, torch.float32), folder


@pytest.fixture(scope="module")
def llm(saved, processes) -> Iterator[LLM]:
    plugin.register()
    llm = LLM(
        model=saved[1],
        skip_tokenizer_init=True,
        disable_log_stats=False,
        block_size=BLOCK,
        max_model_len=2048,
        max_num_seqs=8,
        max_num_batched_tokens=128,
        dtype=str(DTYPE).removeprefix("torch."),
        enforce_eager=not HAS_GPU,
        tensor_parallel_size=RANKS,
        distributed_executor_backend="mp",
        **(ON_GPU if HAS_GPU else {}),
        **LAZYROPE,
    )
    yield llm
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()


def test_the_ranks_read_stored_documents_in_any_order(saved, llm):
    model, _ = saved
    clear_cache(llm)
    a, b, c = DOCUMENTS[3:6]
    rng = random.Random(1)
    assert_all_right(model, llm, [Question([a, b, c], random_tokens(rng, 9))])
    before = scheduler_of(llm).counts.shifted_blocks
    for order in ([c, b, a], [b], [a, a]):
        question = Question(order, random_tokens(rng, 7))
        [answer] = ask(llm, [question])
        assert_right(model, question, answer)
        assert answer.cached == sum(-(-len(text) // BLOCK) * BLOCK for text in order)
    assert scheduler_of(llm).counts.shifted_blocks > before


def test_random_orders(saved, llm):
    rng = random.Random(2)
    for _ in range(3):
        assert_all_right(saved[0], llm, random_questions(rng, 8))
