"""Runs rare schedules of a real vLLM, which must not stop the engine: `make test-vllm`, as for test_vllm.py."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="make test-vllm")

import lazyrope.vllm
from lazyrope import SpecError
from lazyrope.vllm import backend
from lazyrope.vllm.chains import HashChains
from lazyrope.vllm.homes import BlockHomes
from lazyrope.vllm.markers import DocumentToken
from lazyrope.vllm.plan import Plan, plan
from lazyrope.vllm.requests import RequestCheck
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.request_queue import SchedulingPolicy
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


def run_session(
    llm: LLM, parts: list[list[int]], extra_args: list[dict[str, Any] | None], *, is_preempted: bool = False
) -> list[list[int]]:
    """Runs a session whose prompt comes in parts, and returns the answer to each.

    Args:
        llm: The engine.
        parts: The tokens of each part.
        extra_args: Those of the sampling parameters of each part.
        is_preempted: If True, the session is preempted after the first token of each answer.
    """
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
            if is_preempted and len(answers[-1]) == 1:
                core.scheduler.running.remove(core.scheduler.requests["session"])
                core.scheduler._preempt_request(core.scheduler.requests["session"], time.time())
    core.abort_requests(["session"])
    return answers


@pytest.mark.parametrize("is_preempted", [False, True])
@pytest.mark.parametrize("documents", [None, [10**9], "documents"])
def test_an_ordinary_session_of_streamed_input_goes_on(llm, documents, is_preempted):
    """A session resumes inside a block. Documents in a later part are ignored: the session has begun without them."""
    rng = random.Random(1)
    parts = [random_tokens(rng, 21), random_tokens(rng, 9)]
    extra = None if documents is None else {"lazyrope_documents": documents}
    first, second = run_session(llm, parts, [None, extra], is_preempted=is_preempted)
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


def test_sinks_that_are_loaded_again_replace_those_that_graphs_read():
    sinks = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    layer = backend.Attention(4, 64, 0.125, sinks=sinks)
    layer.process_weights_after_loading(torch.bfloat16)
    read = layer._kernel_sinks
    sinks.data.fill_(2)
    layer.process_weights_after_loading(torch.bfloat16)
    assert layer._kernel_sinks is read and read.dtype == torch.float32 and read.tolist() == [2.0] * 4


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"lazyrope_document": [5]}, "the keys of lazyrope are"),
        ({"lazyrope_recovery": "bad"}, "which is unknown"),
        ({"lazyrope_documents": [5]}, "5 tokens together, and the prompt has 3"),
    ],
)
def test_errors_of_arriving_requests_are_those_of_vllm_and_can_be_sent(extra, message):
    """Without documents in the arguments, the scheduler checks the rest."""
    params = SamplingParams(extra_args=extra)
    with pytest.raises(SpecError, match=message) as caught:
        RequestCheck(lambda inputs, params: None)({"prompt_token_ids": [1, 2, 3]}, params)
    sent = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(sent, VLLMValidationError) and str(sent) == str(caught.value)


def test_remembered_chains_are_those_of_vllm(llm):
    """vLLM's hashes depend on the tokens, the salt, the name of the LoRA adapter and, in 0.32, its path."""
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
    least = len({(salt, adapter and adapter.lora_name) for salt, adapter in cases})
    assert least <= len(set(expected)) <= len(cases) and {len(chain) for chain in expected} == {4}
    for _ in range(2):
        assert [hashes(remembering, *case) for case in cases] == expected


@pytest.fixture
def mark(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns the id of a document token, which no other prompt of the test has."""
    monkeypatch.setattr(scheduler_of(llm), "document_token", DocumentToken(1023))
    return 1023


@pytest.mark.parametrize("documents", [[], [[1, 2, 3], [4, 5]]])
@pytest.mark.parametrize("prefix", [[], [7, 8, 9]])
def test_the_document_token_divides_a_prompt_of_tokens(model, llm, mark, prefix, documents):
    question = Question([part for part in (prefix, *documents) if part], [6, 6, 6])
    tokens = [*prefix, *(token for document in documents for token in (mark, *document)), mark, *question.tokens]
    params = SamplingParams(max_tokens=question.max_tokens, **GREEDY)
    [result] = llm.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)
    [expected] = ask(llm, [question])
    assert_right(model, question, expected)
    assert result.outputs[0].token_ids == expected.tokens and not params.extra_args
    assert result.prompt_token_ids == tokens


def test_a_prompt_with_a_document_token_is_checked_before_it_is_divided(llm, mark):
    """The prompt has no document, but prompt_logprobs would have fewer rows than the prompt has tokens."""
    params = SamplingParams(max_tokens=2, prompt_logprobs=1, **GREEDY)
    [result] = llm.generate([{"prompt_token_ids": [mark, 1, 2]}], params, use_tqdm=False)
    assert result.outputs[0].finish_reason == "error"


@pytest.mark.parametrize("is_one_pass", [False, True])
def test_a_request_takes_no_more_segments_than_a_graph_has_room_for(model, llm, monkeypatch, is_one_pass):
    """A growing document has blocks of many requests. Of 7 blocks, the last question takes 3 and computes 4."""
    clear_cache(llm)
    rng = random.Random(8)
    text = random_tokens(rng, 7 * 16)
    writers = [
        Question([*(random_tokens(rng, 16) for _ in range(8 - blocks)), text[: blocks * 16]], [1])
        for blocks in range(1, 8)
    ]
    segments: list[int] = []

    def count_segments(*given: Any) -> Plan:
        made = plan(*given)
        segments.append(int(np.diff(made.indptr).max(initial=0)))
        return made

    monkeypatch.setattr(backend, "plan", count_segments)
    question = Question([text], [2, 3])
    for limit, cached, most in ((100, 7 * 16, 8), (5, 3 * 16, 4)):  # the question is one segment
        monkeypatch.setattr(scheduler_of(llm), "most_segments", limit)
        clear_cache(llm)
        for batch in [[*writers, question]] if is_one_pass else [writers, [question]]:
            segments.clear()
            answer = ask(llm, batch)[-1]
        assert_right(model, question, answer)
        assert answer.cached == cached and max(segments) == most


class Core:
    """The engine, whose requests the test adds, runs and aborts one by one."""

    def __init__(self, llm: LLM) -> None:
        self._core = llm.llm_engine.engine_core.engine_core
        self.scheduler = self._core.scheduler
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[float]] = {}

    def add(self, name: str, question: Any, *, priority: int = 0, **options: Any) -> None:
        """Adds a request. The options are those of :func:`lazyrope.vllm.prompt`."""
        tokens, extra = lazyrope.vllm.prompt(None, question.documents, question.tokens, **options)
        none = dict.fromkeys(("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank"))
        params = SamplingParams(max_tokens=question.max_tokens, extra_args=extra, logprobs=0, **GREEDY)
        named = {"sampling_params": params, "arrival_time": time.time(), "priority": priority}
        request = EngineCoreRequest(name, prompt_token_ids=tokens, **named, **none)
        self._core.add_request(*self._core.preprocess_add_request(request))
        self.tokens[name] = []

    def abort(self, *names: str) -> None:
        self._core.abort_requests(list(names))

    def step(self) -> None:
        outputs, _ = self._core.step_fn()
        for output in (outputs or {}).values():
            for each in output.outputs:
                self.tokens.setdefault(each.request_id, []).extend(each.new_token_ids)
                rows = each.new_logprobs.logprobs if each.new_logprobs else []
                self.logprobs.setdefault(each.request_id, []).extend(float(row[0]) for row in rows)

    def run(self) -> None:
        while self.scheduler.has_unfinished_requests():
            self.step()
        self.step()  # the worker forgets the last requests

    @property
    def fills(self) -> list[str]:
        """The requests of the scheduler that are not finished."""
        return sorted(name for name in self.scheduler.requests if name not in self.tokens)


@pytest.fixture
def core(llm: LLM) -> Iterator[Core]:
    """Returns an engine whose cache has only the document STORED. It must be empty after the test."""
    clear_cache(llm)
    ask(llm, [Question([STORED], [1, 2, 3], max_tokens=2)])
    core = Core(llm)
    yield core
    core.run()
    assert not core.scheduler.requests and core.scheduler.kv_cache_manager.usage == 0


STORED, MISSING = random_tokens(random.Random(5), 48), random_tokens(random.Random(6), 40)
FILLED = Question([MISSING, STORED], [1, 2, 3])


@pytest.mark.parametrize("steps", [0, 1])
def test_an_aborted_request_takes_its_fills_with_it(core, monkeypatch, steps):
    monkeypatch.setattr(core.scheduler, "max_num_scheduled_tokens", 16)
    core.add("r", FILLED)
    for _ in range(steps):
        core.step()
    assert core.fills == ["r-document-0"]
    core.abort("r")
    assert core.fills == [] and not core.scheduler.has_unfinished_requests()


@pytest.mark.parametrize("steps", [0, 1])
def test_a_fill_for_which_another_request_waits_goes_on(model, llm, core, monkeypatch, steps):
    monkeypatch.setattr(core.scheduler, "max_num_scheduled_tokens", 16)
    other = replace(FILLED, tokens=[4, 5])
    core.add("r", FILLED)
    core.add("s", other)
    for _ in range(steps):
        core.step()
    core.abort("r")
    assert core.fills == ["r-document-0"]
    core.run()
    monkeypatch.undo()
    [answer] = ask(llm, [other])
    assert core.tokens["s"] == answer.tokens and answer.cached == 48 + 48
    assert_right(model, other, answer)


def test_a_fill_ends_with_the_last_request_that_waits(core):
    for name in ("r", "s", "t"):
        core.add(name, FILLED)
    core.abort("s", "r")
    assert core.fills == ["r-document-0"]
    core.abort("t")
    assert core.fills == []


def test_a_request_that_runs_waits_for_no_fill(core, monkeypatch):
    """The first request runs before its fill is finished only if the fill is preempted, which the test pretends."""
    core.add("r", FILLED)
    core.add("s", FILLED)
    monkeypatch.setattr(core.scheduler.requests["s"], "num_computed_tokens", 1)
    core.abort("r")
    assert core.fills == []
    monkeypatch.undo()
    core.run()
    assert len(core.tokens["s"]) == FILLED.max_tokens, "it computes the document itself"


def test_blocks_of_a_request_that_is_preempted_before_its_pass_are_not_found(model, llm, core, monkeypatch):
    """With priorities, vLLM may preempt a request which it has chosen for the same pass. The test lets blocks lack."""
    scheduler = core.scheduler
    low, high = Question([random_tokens(random.Random(9), 128)], [1, 2, 3]), Question([], [4, 5])
    monkeypatch.setattr(scheduler, "policy", SchedulingPolicy.PRIORITY)
    monkeypatch.setattr(scheduler.scheduler_config, "long_prefill_token_threshold", 32)
    core.add("low", low, priority=1)
    core.add("high", high)
    core.step()
    allocate, lacking = scheduler.kv_cache_manager.allocate_slots, ["high"]

    def allocate_but_once(request: Any, *given: Any, **more: Any) -> Any:
        if request.request_id in lacking:
            lacking.remove(request.request_id)
            return None
        return allocate(request, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(scheduler.kv_cache_manager, "allocate_slots", allocate_but_once)
        core.step()
    request = scheduler.requests["low"]
    assert request.num_preemptions == 1 and not lacking
    assert scheduler.kv_cache_manager.get_computed_blocks(request)[1] == 32, "the first pass has computed 32 tokens"
    core.run()
    [answer] = ask(llm, [low])
    assert core.tokens["low"] == answer.tokens
    assert_right(model, low, answer)
