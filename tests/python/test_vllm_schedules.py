"""Runs rare schedules of a real vLLM, which must not stop the engine: `make test-vllm`, as for test_vllm.py."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="make test-vllm")

from lazyrope import SpecError
from lazyrope.vllm import backend
from lazyrope.vllm.chains import HashChains
from lazyrope.vllm.homes import BlockHomes
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import Request

from tests.python.test_vllm import (
    Question,
    ask,
    assert_right,
    builders_of,
    clear_cache,
    engine_of,
    environment,
    scheduler_of,
    start,
)
from tests.python.test_vllm import model as model
from tests.support.serving import random_tokens

__all__ = ["environment", "start"]  # fixtures
GREEDY = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}


@pytest.fixture(scope="module")
def llm(start: Callable[..., LLM]) -> Iterator[LLM]:
    yield from engine_of(start, block_size=16, max_model_len=2560)


def run_session(llm: LLM, parts: list[list[int]], extra_args: list[dict[str, Any] | None]) -> list[list[int]]:
    """Runs a session whose prompt comes in parts, and returns the answer to each."""
    core = llm.llm_engine.engine_core.engine_core
    answers = []
    for part, extra in zip(parts, extra_args, strict=True):
        params = SamplingParams(max_tokens=6, extra_args=extra, **GREEDY)
        names = {"request_id": "session", "resumable": True, "arrival_time": time.time(), "data_parallel_rank": None}
        none = dict.fromkeys(("mm_features", "pooling_params", "lora_request", "cache_salt"))
        core.add_request(
            *core.preprocess_add_request(
                EngineCoreRequest(prompt_token_ids=list(part), sampling_params=params, **names, **none)
            )
        )
        answers.append([])
        while len(answers[-1]) < params.max_tokens:
            outputs, _ = core.step_fn()
            for output in (outputs or {}).values():
                answers[-1] += [token for each in output.outputs for token in each.new_token_ids]
    core.abort_requests(["session"])
    return answers


@pytest.mark.parametrize("documents", [None, [10**9], "documents"])
def test_an_ordinary_session_of_streamed_input_goes_on(llm, documents):
    """A session resumes inside a block. Documents in a later part are ignored: the session has begun without them."""
    rng = random.Random(1)
    parts = [random_tokens(rng, 21), random_tokens(rng, 9)]
    extra = None if documents is None else {"lazyrope_documents": documents}
    first, second = run_session(llm, parts, [None, extra])
    whole = [*parts[0], *first[:-1], *parts[1]]  # vLLM drops the last token of an answer
    [answer] = ask(llm, [Question([], whole)])
    assert second == answer.tokens


def strict_kernel_of(kernel_of: Callable[..., Any]) -> Callable[..., Any]:
    """Returns kernels that check capacities, as the compiled ones do. Plain PyTorch has none."""

    class Kernel:
        def __init__(self, *given: Any) -> None:
            self._kernel = kernel_of(*given)
            self.spec = self._kernel.spec

        def __call__(self, *given: Any, **more: Any) -> Any:
            return self._kernel(*given, **more)

        def plan(self, *given: Any, capacity: Any, **more: Any) -> Any:
            def check(q_indptr: Any, q_position: Any, segments: Any, *_: Any) -> None:
                needed = (len(q_indptr) - 1, len(segments.base), len(q_position))
                allowed = (capacity.requests, capacity.segments, capacity.query_tokens)
                if any(n > a for n, a in zip(needed, allowed, strict=True)):
                    raise SpecError(f"requests, segments, query tokens = {needed}; the step's capacity is {allowed}")

            check(*given)
            step = self._kernel.plan(*given, capacity=capacity, **more)
            update = step.update

            def checked_update(*given: Any) -> None:
                check(*given)
                update(*given)

            step.update = checked_update
            return step

    return Kernel


def test_documents_with_a_shared_beginning_fit_into_the_steps_of_graphs(model, llm, monkeypatch):
    """Documents that begin alike share their first block, which moves otherwise than the rest of them."""
    clear_cache(llm)
    rng = random.Random(2)
    title = random_tokens(rng, 16)
    documents = [[*title, *random_tokens(rng, 16)] for _ in range(70)]
    question = Question(documents, [1, 2, 3], max_tokens=3)
    strict = strict_kernel_of(backend.kernel_of)
    for builder in builders_of(llm):
        spec = next(iter(builder._kernels.values())).spec
        kernel = strict(spec, "cpu")
        monkeypatch.setattr(builder, "_kernels", dict.fromkeys(builder._kernels, kernel))
        monkeypatch.setattr(builder, "_graph_sizes", frozenset([1, 2]))
        monkeypatch.setattr(builder, "_steps", {})
    ask(llm, [question])
    moved = replace(question, documents=documents[::-1])
    [answer] = ask(llm, [moved])
    assert answer.cached == 70 * 32
    assert_right(model, moved, answer)


def test_a_new_request_finds_a_block_that_a_running_one_writes_in_the_same_pass(model, llm, monkeypatch):
    clear_cache(llm)
    scheduler = scheduler_of(llm)
    monkeypatch.setattr(scheduler, "max_num_scheduled_tokens", 32)
    monkeypatch.setattr(scheduler, "homes", BlockHomes(len(scheduler.homes._homes), 16))
    before = scheduler.counts.shifted_blocks
    rng = random.Random(3)
    first, second = random_tokens(rng, 16), random_tokens(rng, 32)
    questions = [Question([first, second], [1, 2, 3]), Question([second], [4, 5])]
    for question, answer in zip(questions, ask(llm, questions), strict=True):
        assert_right(model, question, answer)
    assert scheduler.counts.shifted_blocks - before == 2, "the second request has both blocks of the document moved"


def test_remembered_chains_are_those_of_vllm(llm):
    """vLLM's hashes depend on the tokens, the salt, and the name and the path of the LoRA adapter."""
    stock = llm.llm_engine.engine_core.engine_core.request_block_hasher
    remembering = HashChains(1000).remembering(stock, 16)
    tokens = random_tokens(random.Random(4), 70)
    adapters = [None, *(LoRARequest(name, 1, path) for name, path in (("a", "/x"), ("a", "/y"), ("b", "/x")))]

    def hashes(hasher: Callable[..., Any], salt: str | None, adapter: Any) -> tuple[bytes, ...]:
        params = SamplingParams(max_tokens=1)
        return tuple(
            Request("r", tokens, params, None, lora_request=adapter, cache_salt=salt, block_hasher=hasher).block_hashes
        )

    cases = [(salt, adapter) for salt in (None, "a", "b") for adapter in adapters]
    expected = [hashes(stock, *case) for case in cases]
    assert len(set(expected)) == len(cases) and {len(chain) for chain in expected} == {4}
    for _ in range(2):
        assert [hashes(remembering, *case) for case in cases] == expected
