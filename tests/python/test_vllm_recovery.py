"""Serves documents inside a real vLLM at the levels of recovery: `make test-vllm`, as for test_vllm.py.

The reference is a model of transformers with explicit masks (tools/quality/reference.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="make test-vllm")

import lazyrope.vllm
from lazyrope.recovery import Recovery
from lazyrope.vllm import backend
from lazyrope.vllm.plan import RequestView, Run
from vllm import LLM

from tests.conftest import HAS_GPU
from tests.python.test_vllm import (
    BLOCK,
    DOCUMENTS,
    TOLERANCE,
    Answer,
    ask_prompts,
    builders_of,
    clear_cache,
    distance,
    engine_of,
    environment,
    model,
    passes,
    scheduler_of,
    start,
    unrotated_plan,
)
from tests.python.test_vllm_schedules import Core, strict_kernel_of
from tests.support.recovery_levels import reference_logits
from tests.support.serving import DTYPE, random_tokens
from tools.quality.reference import Reference

__all__ = ["environment", "model", "passes", "start"]  # fixtures
SHORT, WHOLE = random_tokens(random.Random(70), 45), random_tokens(random.Random(71), 2 * BLOCK)  # prefixes


@pytest.fixture(scope="module")
def llm(start: Callable[..., LLM]) -> Iterator[LLM]:
    yield from engine_of(start)


@dataclass(frozen=True)
class Question:
    """A request with a level of recovery."""

    documents: Sequence[Sequence[int]]
    tokens: Sequence[int]
    level: str = "first_page"
    prefix: Sequence[int] = ()
    overlay_tokens: int = 16
    max_tokens: int = 5
    salt: str | None = None
    n: int = 1

    @property
    def overlays(self) -> list[int]:
        """The tokens of each document that are computed again."""
        count = self.overlay_tokens if self.level == "first_page" else 0
        return [min(count, len(text)) if i else 0 for i, text in enumerate(self.documents)]

    @property
    def padded(self) -> int:
        """The tokens of the blocks of all documents, the prefix included."""
        return sum(-(-len(text) // BLOCK) * BLOCK for text in (self.prefix, *self.documents))

    @property
    def tail(self) -> int:
        """The tokens that are computed if all documents are stored."""
        return sum(self.overlays) + len(self.tokens) + self.max_tokens - 1

    @property
    def options(self) -> dict[str, Any]:
        """The options of its prompt."""
        named = {"overlay_tokens": self.overlay_tokens} if self.level == "first_page" else {}
        return named | {"prefix": self.prefix, "recovery": self.level}


def ask(llm: LLM, questions: Sequence[Question]) -> list[Answer]:
    return [answers[0] for answers in ask_all(llm, questions)]


def ask_all(llm: LLM, questions: Sequence[Question]) -> list[list[Answer]]:
    asked = [lazyrope.vllm.prompt(None, each.documents, each.tokens, **each.options) for each in questions]
    return ask_prompts(llm, asked, questions)


def error_of(model: Any, question: Question, answer: Answer, overlays: Sequence[int] | None = None) -> float:
    """Returns the distance of an answer from the reference.

    Args:
        model: The model in fp32.
        question: The request.
        answer: Its answer.
        overlays: The tokens that the reference computes again, of each document. None: those of the request.
    """
    text = [*question.tokens, *answer.tokens[:-1]]
    recomputed = [range(count) for count in overlays or question.overlays]
    recovery = Recovery(question.level, tuple(question.prefix))
    logits = reference_logits(Reference(model), text, question.documents, recovery, recomputed)
    return distance(answer, logits[-len(answer.tokens) :])


def assert_all_right(model: Any, llm: LLM, questions: Sequence[Question]) -> list[Answer]:
    """Each token must be the best one of the reference, and its log-probability that of the reference."""
    answers = ask(llm, questions)
    for question, answer in zip(questions, answers, strict=True):
        assert answer.reason == "length" and len(answer.tokens) == question.max_tokens
        assert error_of(model, question, answer) < TOLERANCE[DTYPE], question
    return answers


def random_questions(rng: random.Random, count: int, **options: Any) -> list[Question]:
    """Returns requests of random levels and orders. Documents may repeat, and some are shorter than an overlay."""
    result = []
    for _ in range(count):
        level, prefix = rng.choice(
            [("first_page", ()), ("first_page", SHORT), ("first_page", WHOLE), ("prefix", SHORT)]
        )
        documents = rng.choices([*DOCUMENTS, [5, 6, 7]], k=rng.randrange(1, 6))
        own = random_tokens(rng, rng.randrange(1, 40))
        result.append(Question(documents, own, level, prefix, rng.choice([3, 16, 16, 40]), **options))
    return result


def test_overlays_alone_are_computed_again(model, llm, passes):
    """A request whose documents are stored computes its overlays and its question, wherever the documents are."""
    clear_cache(llm)
    rng = random.Random(1)
    a, b, c = DOCUMENTS[3], DOCUMENTS[5], DOCUMENTS[7]
    cold = Question([a, b, c], random_tokens(rng, 9))
    assert_all_right(model, llm, [cold])
    assert passes.tokens == cold.padded + cold.tail
    for order in ([c, b, a], [b], [c, a, a]):
        before, question = passes.tokens, Question(order, random_tokens(rng, 7))
        [answer] = assert_all_right(model, llm, [question])
        assert passes.tokens - before == question.tail and answer.cached == question.padded
    assert passes.shifted > 0


def test_levels_share_documents_but_not_those_after_a_prefix(model, llm, passes):
    clear_cache(llm)
    plain = Question(DOCUMENTS[4:6], [1, 2, 3], "first_page")
    assert_all_right(model, llm, [plain])
    alone, after_prefix = replace(plain, level="none"), replace(plain, level="prefix", prefix=SHORT)
    assert [assert_all_right(model, llm, [each])[0].cached for each in (alone, after_prefix)] == [plain.padded, 0]
    moved = replace(after_prefix, documents=plain.documents[::-1], level="first_page")
    [found, salted] = assert_all_right(model, llm, [moved, replace(after_prefix, salt="other")])
    assert (found.cached, salted.cached) == (moved.padded, 0)
    shorter = replace(after_prefix, prefix=SHORT[:-2])
    longer = replace(shorter, prefix=[*shorter.prefix, shorter.prefix[-1]])  # padded, both are the same tokens
    assert [assert_all_right(model, llm, [each])[0].cached for each in (shorter, longer)] == [BLOCK, 2 * BLOCK]


def test_a_document_is_filled_after_the_prefix(model, llm, passes):
    """A missing document before a stored one is computed by a request that finds the prefix in the cache."""
    clear_cache(llm)
    a, b, c = DOCUMENTS[4:7]
    first = Question([b], [1, 2, 3], "prefix", SHORT)
    assert_all_right(model, llm, [first])
    fills, before = scheduler_of(llm).counts.fills, passes.tokens
    question = Question([a, b, c], [4, 5], "first_page", SHORT)
    [answer] = assert_all_right(model, llm, [question])
    assert scheduler_of(llm).counts.fills == fills + 1
    missing = sum(-(-len(text) // BLOCK) * BLOCK for text in (a, c))
    assert passes.tokens - before == missing + question.tail
    assert answer.cached == question.padded - -(-len(c) // BLOCK) * BLOCK


def test_an_ordinary_prompt_shares_blocks_with_a_document_after_whole_blocks(model, llm):
    clear_cache(llm)
    document = DOCUMENTS[6]
    assert_all_right(model, llm, [Question([DOCUMENTS[5], document], [1, 2], "prefix", WHOLE)])
    [answer] = ask(llm, [Question([], [*WHOLE, *document, 3], "none")])
    assert error_of(model, Question([[*WHOLE, *document]], [3], "none"), answer) < TOLERANCE[DTYPE]
    assert answer.cached == len(WHOLE) + len(document) // BLOCK * BLOCK


def test_a_prefix_without_documents(model, llm):
    clear_cache(llm)
    assert_all_right(model, llm, [Question([], [4, 5], "first_page", SHORT), Question([], [6], "prefix", WHOLE)])


def test_several_answers_of_one_request(model, llm):
    question = Question(DOCUMENTS[3:6], [7, 8, 9], prefix=SHORT, n=3)
    for answer in ask_all(llm, [question])[0]:
        assert error_of(model, question, answer) < TOLERANCE[DTYPE]


def test_tails_are_shared_by_requests_of_the_same_documents(model, llm):
    """The blocks of a tail depend on all documents, and on which of the tail's tokens are overlays."""
    clear_cache(llm)
    a, b = DOCUMENTS[4:6]
    question = Question([a, b], random_tokens(random.Random(2), 2 * BLOCK), "first_page")
    assert_all_right(model, llm, [question])
    same, moved, plain, fewer = assert_all_right(
        model,
        llm,
        [
            replace(question, max_tokens=3),
            replace(question, documents=[b, a]),
            replace(question, level="none", tokens=[*b[:16], *question.tokens]),
            replace(question, overlay_tokens=8, tokens=[*b[8:16], *question.tokens]),
        ],
    )
    assert same.cached == question.padded + 2 * BLOCK
    assert moved.cached == plain.cached == fewer.cached == question.padded


@pytest.mark.parametrize("chunk", [16, 45, 400])
def test_random_levels_in_chunks(model, llm, passes, monkeypatch, chunk):
    clear_cache(llm)
    monkeypatch.setattr(scheduler_of(llm), "max_num_scheduled_tokens", chunk)
    rng = random.Random(chunk)
    for _ in range(2):
        assert_all_right(model, llm, random_questions(rng, 6))
    assert passes.shifted > 0


def found_without_overlays(view: RequestView) -> Iterator[Run]:
    """Yields what the question of a request sees if overlays do not replace what is stored."""
    layout = view.layout
    for begin, length, seen in zip(layout.starts, layout.lengths, layout.seen_from, strict=True):
        yield from view._runs(begin, length, seen)


def test_the_comparison_fails_without_recovery(model, llm, monkeypatch):
    """Without the overlays, or without the rotation, the answers are others, and so they are without the prefix."""
    clear_cache(llm)
    question = Question(DOCUMENTS[:4:-1], [1, 2, 3], prefix=SHORT, overlay_tokens=64)
    least = 2 * TOLERANCE[DTYPE]
    [after_prefix] = assert_all_right(model, llm, [replace(question, level="prefix")])
    alone = replace(question, level="none", documents=[SHORT, *question.documents], prefix=())
    assert error_of(model, alone, after_prefix) > least
    for attribute, value in ((RequestView, "_found"), found_without_overlays), ((backend, "plan"), unrotated_plan):
        with monkeypatch.context() as patch:
            patch.setattr(*attribute, value)
            [wrong] = ask(llm, [question])
        assert error_of(model, question, wrong) > least
        is_without_overlays = value is found_without_overlays
        assert (error_of(model, question, wrong, overlays=[0, 0, 0]) < TOLERANCE[DTYPE]) is is_without_overlays
    clear_cache(llm)


def test_steps_grow_for_overlays_that_see_many_documents(model, llm, monkeypatch):
    """Each overlay sees all documents before it: 50 documents have 2,500 segments and more."""
    clear_cache(llm)
    rng = random.Random(3)
    documents = [random_tokens(rng, rng.choice([17, 32])) for _ in range(50)]
    question = Question(documents, [1, 2, 3], overlay_tokens=8, max_tokens=2)
    assert_all_right(model, llm, [question])
    strict = strict_kernel_of(backend.kernel_of)
    [builder] = builders_of(llm)
    kernel = strict(next(iter(builder._kernels.values())).spec, "cpu")
    monkeypatch.setattr(builder, "_kernels", dict.fromkeys(builder._kernels, kernel))
    monkeypatch.setattr(builder, "_graph_sizes", frozenset([1, 2]))
    monkeypatch.setattr(builder, "_steps", {})
    monkeypatch.setattr(builder, "_room", replace(builder._room, requests=20, segments=300))
    assert_all_right(model, llm, [replace(question, documents=documents[::-1])])
    assert builder._room.requests > 20 and builder._room.segments > 2500


def test_preemption_and_eviction(model, start, passes):
    """With few blocks, requests are preempted in their overlays, and documents after a prefix are evicted."""
    rng = random.Random(4)
    for engine in engine_of(start, num_gpu_blocks_override=34, max_model_len=800, max_num_batched_tokens=64):
        for _ in range(2):
            assert_all_right(model, engine, random_questions(rng, 5, max_tokens=30))
        assert passes.resumed > 0 and passes.shifted > 0


def test_random_arrivals_priorities_and_aborts(model, start, passes):
    """Requests come while others run, some are aborted, and a later one may preempt those of less priority."""
    rng = random.Random(7)
    few = {"num_gpu_blocks_override": 34, "max_model_len": 800, "max_num_batched_tokens": 80}
    for engine in engine_of(start, **few, scheduling_policy="priority", long_prefill_token_threshold=40):
        core = Core(engine)
        questions = {f"r{i}": each for i, each in enumerate(random_questions(rng, 20, max_tokens=30))}
        aborted = rng.sample(sorted(questions), 5)
        for name, question in questions.items():
            core.add(name, question, priority=rng.randrange(3), **question.options)
            for _ in range(rng.randrange(8)):
                core.step()
            if name in aborted:
                core.abort(name)
        core.run()
        assert not core.scheduler.requests and core.scheduler.kv_cache_manager.usage == 0
        for name in questions.keys() - aborted:
            answer = Answer(core.tokens[name], core.logprobs[name], 0, "length")
            assert len(answer.tokens) == len(answer.logprobs) == 30
            assert error_of(model, questions[name], answer) < TOLERANCE[DTYPE], questions[name]
        assert passes.resumed > 0 and passes.shifted > 0


def test_without_prefix_caching_levels_are_right(model, start):
    for engine in engine_of(start, enable_prefix_caching=False, block_size=16):
        answers = assert_all_right(model, engine, random_questions(random.Random(5), 5))
        assert {answer.cached for answer in answers} == {0}


@pytest.mark.skipif(not HAS_GPU, reason="CUDA graphs need a GPU")
def test_cuda_graphs(model, start, passes):
    rng = random.Random(8)
    for engine in engine_of(start, enforce_eager=False, block_size=16):
        for _ in range(3):
            assert_all_right(model, engine, random_questions(rng, 8, max_tokens=20))
    assert passes.shifted > 0


@pytest.mark.skipif(HAS_GPU, reason="the other tests run the kernels on the GPU")
def test_the_kernels_run_in_the_emulator(model, start, passes, monkeypatch):
    """The compiled kernels read overlays from the tail, and the rest of a document from inside of its blocks.

    Eight requests decode together, so that they share what several of them read.
    """
    monkeypatch.setattr(backend, "kernel_of", lambda spec, _: lazyrope.compile(spec, arch="emu:sm_80"))
    orders = ([DOCUMENTS[1], DOCUMENTS[4]], [DOCUMENTS[4], DOCUMENTS[1]])
    questions = [Question(orders[i % 2], [5, 6, i], overlay_tokens=9, max_tokens=3) for i in range(8)]
    for engine in engine_of(start, block_size=16, dtype="bfloat16", max_num_seqs=8):
        for _ in range(2):
            for each, answer in zip(questions, ask(engine, questions), strict=True):
                assert error_of(model, each, answer) < TOLERANCE[torch.bfloat16]
        [builder] = builders_of(engine)
        assert backend.CASCADE in {key for _, key in builder._steps}
    assert passes.shifted > 0
