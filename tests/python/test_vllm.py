"""Serves documents inside a real vLLM, and compares tokens and log-probabilities with those of transformers.

On the CPU, vLLM has an environment of its own: `make test-vllm`. Where it is not installed, the tests are skipped. On a
GPU, they run the compiled kernels. VLLM_USE_V2_MODEL_RUNNER=1 chooses vLLM's V2 model runner. It needs Triton, which
`make test-vllm-v2` provides on the CPU.
"""

from __future__ import annotations

import copy
import gc
import importlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="make test-vllm")

import lazyrope.vllm
from lazyrope import SpecError
from lazyrope.vllm import backend, metrics, plugin
from lazyrope.vllm.ledger import Ledger
from lazyrope.vllm.plan import Plan, plan
from lazyrope.vllm.scheduler import Counts
from prometheus_client import generate_latest
from vllm import LLM, SamplingParams
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from tests.conftest import HAS_GPU
from tests.support.serving import DTYPE, as_dtype, random_tokens
from tools.rag import reference
from tools.rag.model import tiny_llama

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is in this process, where the tests can look at it
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "0"),
    "VLLM_NO_USAGE_STATS": "1",
}
# An engine may start while the memory of the last one becomes free, for vLLM measures none.
ON_GPU = {"kv_cache_memory_bytes": 1 << 30, "gpu_memory_utilization": 0.02}
BLOCK = 32
# The most that log-probabilities may differ from those of fp32. In bfloat16, weights and activations are rounded.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}
LAZYROPE = {
    "attention_backend": "CUSTOM",
    "scheduler_cls": "lazyrope.vllm.Scheduler",
    "worker_cls": "lazyrope.vllm.Worker",
}
DOCUMENTS = [random_tokens(random.Random(i), n) for i, n in enumerate((1, 31, 32, 33, 64, 70, 100, 129))]


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def model() -> Any:
    """Returns the reference in fp32."""
    return as_dtype(copy.deepcopy(saved_model()), torch.float32)


def saved_model() -> Any:
    return tiny_llama(dtype=DTYPE)


@pytest.fixture(scope="module")
def start(environment, tmp_path_factory) -> Callable[..., LLM]:
    folder = str(tmp_path_factory.mktemp("model"))
    saved_model().save_pretrained(folder)
    defaults = {
        "block_size": BLOCK,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "dtype": str(DTYPE).removeprefix("torch."),
        "enforce_eager": True,
        **(ON_GPU if HAS_GPU else {}),
    }

    def start(**options: Any) -> LLM:
        gc.collect()
        if HAS_GPU:
            torch.cuda.empty_cache()
        return LLM(model=folder, skip_tokenizer_init=True, disable_log_stats=False, **{**defaults, **options})

    return start


def engine_of(start: Callable[..., LLM], **options: Any) -> Iterator[LLM]:
    plugin.register()
    llm = start(**{**LAZYROPE, **options})
    yield llm
    del llm
    gc.collect()


@pytest.fixture(scope="module")
def stock_answers(start) -> list[Answer]:
    """Returns the answers of vLLM without the plug-in. It must come first in this process."""
    llm = start()
    result = ask(llm, PLAIN)
    del llm
    gc.collect()
    return result


@pytest.fixture(scope="module")
def llm(start, stock_answers) -> Iterator[LLM]:
    """Returns an engine with room for everything."""
    yield from engine_of(start)


@dataclass(frozen=True)
class Question:
    """A request: its documents, its own tokens, and more arguments of its sampling parameters."""

    documents: Sequence[Sequence[int]]
    tokens: Sequence[int]
    max_tokens: int = 6
    salt: str | None = None
    n: int = 1


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    logprobs: list[float]
    cached: int
    reason: str | None


PLAIN = [Question([], random_tokens(random.Random(50 + n), n), max_tokens=12) for n in (1, 5, 70, 200)]


def ask(llm: LLM, questions: Sequence[Question]) -> list[Answer]:
    """Runs requests together. Returns the first answer of each."""
    return [answers[0] for answers in ask_all(llm, questions)]


def ask_all(llm: LLM, questions: Sequence[Question]) -> list[list[Answer]]:
    asked = [lazyrope.vllm.prompt(None, question.documents, question.tokens) for question in questions]
    return ask_prompts(llm, asked, questions)


def ask_prompts(llm: LLM, asked: Sequence[tuple[list[int], Any]], questions: Sequence[Any]) -> list[list[Answer]]:
    """Runs requests together: prompts, each with its extra_args. Returns all answers of each."""
    prompts, params = [], []
    for (tokens, extra), question in zip(asked, questions, strict=True):
        prompts.append({"prompt_token_ids": tokens, **({"cache_salt": question.salt} if question.salt else {})})
        greedy = {"temperature": 1.0, "top_k": 1, "ignore_eos": True, "detokenize": False, "logprobs": 0}
        params.append(SamplingParams(max_tokens=question.max_tokens, n=question.n, extra_args=extra or None, **greedy))
    return [
        [
            Answer(
                list(output.token_ids),
                [next(iter(row.values())).logprob for row in output.logprobs or []],
                result.num_cached_tokens,
                output.finish_reason,
            )
            for output in result.outputs
        ]
        for result in llm.generate(prompts, params, use_tqdm=False)
    ]


def scheduler_of(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def runner_of(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def builders_of(llm: LLM) -> list[Any]:
    groups = [group for groups in runner_of(llm).attn_groups for group in groups]
    return [builder for group in groups for builder in group.metadata_builders]


def clear_cache(llm: LLM) -> None:
    assert llm.reset_prefix_cache()


def assert_right(model: Any, question: Question, answer: Answer, dtype: torch.dtype = DTYPE) -> None:
    """Compares with transformers under the block mask at contiguous positions.

    Each token must be the best one of the reference, and its log-probability must be that of the reference, within the
    error of the dtype.
    """
    assert answer.reason == "length" and len(answer.tokens) == question.max_tokens
    assert error_of(model, question, answer) < TOLERANCE[dtype], question


def error_of(model: Any, question: Question, answer: Answer) -> float:
    """Returns how far the answer's log-probabilities, or those of the reference's best tokens, are from its tokens'."""
    hidden = reference.hidden_states(model, [*question.tokens, *answer.tokens[:-1]], question.documents)
    with torch.no_grad():
        return distance(answer, model.lm_head(hidden[-len(answer.tokens) :]).float())


def distance(answer: Answer, logits: torch.Tensor) -> float:
    """Returns what :func:`error_of` says by the reference's logits of the answer's tokens, [tokens, vocabulary]."""
    logprobs = logits.log_softmax(-1)
    exact = logprobs.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
    distances = torch.cat([logprobs.max(-1).values - exact, (exact - torch.tensor(answer.logprobs)).abs()])
    return float(distances.max())


def assert_all_right(model: Any, llm: LLM, questions: Sequence[Question]) -> list[Answer]:
    answers = ask(llm, questions)
    for question, answer in zip(questions, answers, strict=True):
        assert_right(model, question, answer)
    return answers


def random_questions(rng: random.Random, count: int, **options: Any) -> list[Question]:
    return [
        Question(rng.choices(DOCUMENTS, k=rng.randrange(5)), random_tokens(rng, rng.randrange(1, 40)), **options)
        for _ in range(count)
    ]


class Passes:
    """Counts what a worker computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens = self.resumed = self.shifted = 0
        self._names: Counter[str] = Counter()
        begin_pass, admit = Ledger.begin_pass, Ledger.admit

        def count_tokens(ledger: Ledger, counts: dict[str, int]) -> None:
            self.tokens += sum(counts.values())
            begin_pass(ledger, counts)

        def count_admissions(ledger: Ledger, name: str, *rest: Any) -> None:
            self._names[name] += 1
            self.resumed += self._names[name] > 1
            admit(ledger, name, *rest)

        def count_shifts(*given: Any) -> Plan:
            made = plan(*given)
            self.shifted += made.shifted
            return made

        monkeypatch.setattr(Ledger, "begin_pass", count_tokens)
        monkeypatch.setattr(Ledger, "admit", count_admissions)
        monkeypatch.setattr(backend, "plan", count_shifts)


def unrotated_plan(*given: Any) -> Plan:
    """Returns a plan in which moved documents are at their positions, and queries are not rotated for them."""
    made = plan(*given)
    return replace(made, start=made.start + made.base, base=0 * made.base)


def without_rotation(move: Callable[..., None]) -> Callable[..., None]:
    """Returns a copy of blocks that leaves their keys as they are."""
    return lambda mover, copy, homes: move(mover, copy, np.arange(len(homes)) * BLOCK)


@pytest.fixture
def passes(monkeypatch) -> Passes:
    return Passes(monkeypatch)


def test_without_documents_answers_are_those_of_vllm(model, stock_answers, llm):
    answers = ask(llm, PLAIN)
    for question, mine, stock in zip(PLAIN, answers, stock_answers, strict=True):
        assert_right(model, question, mine)
        same = next((i for i, (a, b) in enumerate(zip(mine.tokens, stock.tokens, strict=True)) if a != b), 12)
        assert same == 12 or DTYPE == torch.bfloat16  # near ties differ in bfloat16, and the texts differ after them
        limit = TOLERANCE[DTYPE]
        assert all(abs(a - b) < limit for a, b in zip(mine.logprobs[:same], stock.logprobs[:same], strict=True))


def test_the_model_runner_is_the_one_asked_for(llm):
    assert hasattr(runner_of(llm), "model_state") == (ENVIRONMENT["VLLM_USE_V2_MODEL_RUNNER"] == "1")


def test_documents_are_computed_once_and_read_in_any_order(model, llm, passes):
    """Only the question's tokens are computed when the documents are stored, wherever they are in the prompt."""
    clear_cache(llm)
    a, b, c, d = DOCUMENTS[3:7]
    rng = random.Random(1)
    cold = Question([a, b, c, d], random_tokens(rng, 9))
    assert_all_right(model, llm, [cold])
    padded = sum(-(-len(text) // BLOCK) * BLOCK for text in (a, b, c, d))
    assert passes.tokens == padded + 9 + 5 and passes.shifted > 0  # the question sees no padding
    for order in ([d, c, b, a], [b], [c, a], [a, a, d]):
        before = passes.tokens
        [answer] = assert_all_right(model, llm, [Question(order, random_tokens(rng, 7))])
        assert passes.tokens - before == 7 + 5, "a stored document is computed again"
        assert answer.cached == sum(-(-len(text) // BLOCK) * BLOCK for text in order)


def test_a_cold_batch_computes_each_document_once(model, llm, passes):
    clear_cache(llm)
    a, b, c = DOCUMENTS[4:7]
    rng = random.Random(2)
    orders = [[a, b, c], [c, b, a], [b, a], [a, a]]
    assert_all_right(model, llm, [Question(order, random_tokens(rng, 5)) for order in orders])
    assert passes.tokens == sum(-(-len(text) // BLOCK) * BLOCK for text in (a, b, c)) + 4 * (5 + 5)


def test_a_missing_document_before_a_stored_one_is_computed_first(model, llm, passes):
    clear_cache(llm)
    a, b, c = DOCUMENTS[4:7]
    assert_all_right(model, llm, [Question([b], [1, 2, 3])])
    fills, before = scheduler_of(llm).counts.fills, passes.tokens
    [answer] = assert_all_right(model, llm, [Question([a, b, c], [4, 5])])
    assert scheduler_of(llm).counts.fills == fills + 1
    assert answer.cached == 2 * BLOCK + -(-len(b) // BLOCK) * BLOCK
    missing = sum(-(-len(text) // BLOCK) * BLOCK for text in (a, c))
    assert passes.tokens - before == missing + 2 + 5


@pytest.mark.parametrize("chunk", [16, 45, 300])
def test_random_orders_in_chunks(model, llm, passes, monkeypatch, chunk):
    clear_cache(llm)
    monkeypatch.setattr(scheduler_of(llm), "max_num_scheduled_tokens", chunk)
    rng = random.Random(chunk)
    for _ in range(2):
        assert_all_right(model, llm, random_questions(rng, 8))
    assert passes.shifted > 0


def test_a_request_finds_blocks_that_a_running_one_writes_in_the_same_pass(model, llm, monkeypatch):
    clear_cache(llm)
    monkeypatch.setattr(scheduler_of(llm), "max_num_scheduled_tokens", 100)
    document = DOCUMENTS[7]  # 5 blocks, of which the first pass computes 3
    answers = assert_all_right(model, llm, [Question([document], [1, 2, 3]), Question([document], [4, 5])])
    assert [answer.cached for answer in answers] == [0, 5 * BLOCK]


def test_salts_keep_documents_apart(model, llm):
    clear_cache(llm)
    one = Question([DOCUMENTS[5]], [1, 2, 3], salt="one")
    assert_all_right(model, llm, [one])
    [other, again] = assert_all_right(model, llm, [replace(one, salt="two"), replace(one, tokens=[3, 2, 1])])
    assert (other.cached, again.cached) == (0, 96)


def test_several_answers_of_one_request(model, llm):
    question = Question(DOCUMENTS[4:6], [7, 8, 9], n=3)
    [answers] = ask_all(llm, [question])
    assert len(answers) == 3
    for answer in answers:
        assert_right(model, question, answer)


def test_questions_after_other_documents_share_no_blocks(model, llm):
    """A question of whole blocks is stored, too. Its keys depend on all documents, on their order and lengths."""
    clear_cache(llm)
    a, b = DOCUMENTS[4], DOCUMENTS[5]
    tokens = random_tokens(random.Random(6), 3 * BLOCK)
    first = Question([a, b], tokens)
    assert_all_right(model, llm, [first])
    [again, other, shorter] = assert_all_right(
        model, llm, [first, replace(first, documents=[b, a]), replace(first, documents=[a, [*b[:-1], b[-2]]])]
    )
    documents = 2 * BLOCK + 3 * BLOCK
    assert again.cached == documents + 2 * BLOCK and other.cached == documents and shorter.cached < documents


def test_an_ordinary_prompt_shares_blocks_with_a_document(model, llm):
    """A document's hashes are those of a prompt that is the document alone, at whatever position it was computed."""
    clear_cache(llm)
    a, b = DOCUMENTS[5], DOCUMENTS[6]
    assert_all_right(model, llm, [Question([a, b], [1, 2, 3])])
    [plain] = assert_all_right(model, llm, [Question([], [*b, 4, 5, 6])])
    assert plain.cached == 3 * BLOCK == len(b) // BLOCK * BLOCK
    clear_cache(llm)
    assert_all_right(model, llm, [Question([], [*b, 4, 5, 6])])
    [moved] = assert_all_right(model, llm, [Question([b, a], [1, 2, 3])])
    assert moved.cached == 3 * BLOCK


def test_the_comparison_fails_without_the_rotation(model, llm, monkeypatch):
    monkeypatch.setattr(backend, "plan", unrotated_plan)
    clear_cache(llm)
    questions = [Question([DOCUMENTS[5], DOCUMENTS[6]], [1, 2, 3]), Question([DOCUMENTS[6], DOCUMENTS[5]], [1, 2, 3])]
    answers = ask(llm, questions)
    with pytest.raises(AssertionError):
        for question, answer in zip(questions, answers, strict=True):
            assert_right(model, question, answer)
    clear_cache(llm)


@pytest.mark.parametrize(
    ("extra_args", "more", "message"),
    [
        ({"lazyrope_documents": [20]}, {}, "20 tokens together, and the prompt has 10"),
        ({"lazyrope_documents": "all"}, {}, "it must be a list of integers"),
        ({"lazyrope_documents": [2], "lazyrope_recovery": "guided"}, {}, "does not serve yet"),
        ({"lazyrope_documents": [2], "lazyrope_recovery": "prefix"}, {}, "needs lazyrope_prefix_tokens"),
        ({"lazyrope_documents": [2]}, {"prompt_logprobs": 1}, "prompt_logprobs would count the padding"),
        ({"lazyrope_documents": [1] * 80}, {"tokens": 100}, "at most 2047 leave room for an answer"),
    ],
)
def test_a_mistake_ends_one_request_alone(model, llm, caplog, monkeypatch, extra_args, more, message):
    more = dict(more)
    wrong = {"prompt_token_ids": [3] * more.pop("tokens", 10)}
    params = SamplingParams(max_tokens=4, extra_args=extra_args, detokenize=False, **more)
    right = SamplingParams(max_tokens=4, temperature=0.0, detokenize=False, ignore_eos=True)
    if len(wrong["prompt_token_ids"]) == 10:
        with pytest.raises(SpecError, match=message):  # found where the request arrives
            llm.generate([wrong], [params], use_tqdm=False)
        monkeypatch.setattr(current_platform, "validate_request", current_platform.validate_request._stock)
    before = scheduler_of(llm).counts.refused
    results = llm.generate([wrong, {"prompt_token_ids": [3] * 10}], [params, right], use_tqdm=False)
    assert [(len(r.outputs[0].token_ids), r.outputs[0].finish_reason) for r in results] == [(0, "error"), (4, "length")]
    assert message in caplog.text and scheduler_of(llm).counts.refused == before + 1


def test_counts_reach_the_metrics(model, llm):
    """The counts travel in vLLM's statistics from the scheduler to the server's plug-in, once."""
    scheduler = scheduler_of(llm)
    a, b = DOCUMENTS[4], DOCUMENTS[6]  # 64 and 100 tokens, 2 and 4 blocks
    clear_cache(llm)
    scheduler.make_stats()
    config = SimpleNamespace(attention_config=SimpleNamespace(backend=AttentionBackendEnum.CUSTOM))
    stat_logger = metrics.StatLogger(config, 7)
    before = {name: counter.labels("7")._value.get() for name, counter in metrics.counters().items()}
    scheduler.counts = Counts()
    scheduler._reported = scheduler.counts.metrics()
    collected: list[Any] = []
    make_stats = scheduler.make_stats
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "make_stats", lambda *args, **kw: collected.append(make_stats(*args, **kw)))
        ask(llm, [Question([a, b], [1, 2, 3])])
        ask(llm, [Question([b, a], [4, 5, 6]), Question([], [7, 8, 9])])
    for stats in collected:
        stat_logger.record(stats, None)
        assert not stats.waiting_lora_adapters
    after = {name: counter.labels("7")._value.get() - before[name] for name, counter in metrics.counters().items()}
    assert after == {
        "documents": 4,
        "document_hits": 2,
        "document_fills": 0,
        "refused_requests": 0,
        "tokens_not_recomputed": 6 * BLOCK,
        "shifted_blocks": 6,
    }
    text = generate_latest().decode()
    assert 'lazyrope:shifted_blocks_total{engine="7"} 6.0' in text


def test_nothing_is_held_after_all_requests(llm):
    ask(llm, random_questions(random.Random(7), 4))
    scheduler = scheduler_of(llm)
    assert not scheduler.requests and scheduler.kv_cache_manager.usage == 0
    assert not [r for r in scheduler._coming.values() if not r.is_finished()]


# The tests from here on make engines of their own. The end of an engine is the end of all others of its process.


def test_preemption_and_eviction(model, start, stock_answers, passes):
    """With few blocks, requests are preempted, and documents are evicted in the middle and computed again."""
    rng = random.Random(3)
    for engine in engine_of(start, num_gpu_blocks_override=24, max_model_len=600, max_num_batched_tokens=64):
        for _ in range(3):
            assert_all_right(model, engine, random_questions(rng, 6, max_tokens=40))
        assert passes.resumed > 0 and passes.shifted > 0


def test_blocks_of_16(model, start, stock_answers, passes):
    rng = random.Random(4)
    for engine in engine_of(start, block_size=16):
        assert_all_right(model, engine, random_questions(rng, 6))
        assert_all_right(model, engine, random_questions(rng, 6))
        assert passes.shifted > 0


def test_without_prefix_caching_documents_are_right(model, start, stock_answers):
    for engine in engine_of(start, enable_prefix_caching=False):
        answers = assert_all_right(model, engine, random_questions(random.Random(5), 6))
        assert {answer.cached for answer in answers} == {0}


def test_a_pool_of_8_bits(model, start, stock_answers, monkeypatch):
    """Keys and values are rounded to 8 bits, so the limit is wide. Without the rotation, errors exceed it."""
    questions = random_questions(random.Random(9), 6)

    def worst_error(llm: LLM) -> float:
        ask(llm, questions)  # the second time, documents are stored
        return max(error_of(model, *each) for each in zip(questions, ask(llm, questions), strict=True))

    for engine in engine_of(start, kv_cache_dtype="fp8_e4m3"):
        assert worst_error(engine) < 1
        monkeypatch.setattr(backend, "plan", unrotated_plan)
        clear_cache(engine)
        assert worst_error(engine) > 2


def test_copied_documents_are_right(model, start, stock_answers, passes, monkeypatch):
    """The benchmark's Block-Attention copies each stored block, rotates it, and reads nothing at another position."""
    options = {"scheduler_cls": "tools.vllm_bench.copies.Scheduler", "worker_cls": "tools.vllm_bench.copies.Worker"}
    rng = random.Random(11)
    for engine in engine_of(start, **options, num_gpu_blocks_override=60, max_model_len=600):
        for _ in range(4):
            assert_all_right(model, engine, random_questions(rng, 6))
        scheduler = scheduler_of(engine)
        assert scheduler.copied_blocks > 0 and scheduler.kv_cache_manager.usage == 0
        question = Question([DOCUMENTS[5], DOCUMENTS[6]], [1, 2, 3])
        assert_all_right(model, engine, [question])
        copied = scheduler.copied_blocks
        moved = replace(question, documents=question.documents[::-1])
        assert_all_right(model, engine, [moved, moved])
        assert scheduler.copied_blocks - copied == 2 * sum(-(-len(text) // BLOCK) for text in question.documents)
        copies = importlib.import_module("tools.vllm_bench.copies")  # its import replaces vLLM's attention on the CPU
        monkeypatch.setattr(copies.Mover, "move", without_rotation(copies.Mover.move))
        [wrong] = ask(engine, [moved])
        assert error_of(model, moved, wrong) > TOLERANCE[DTYPE]


@pytest.mark.skipif(HAS_GPU, reason="the other tests run the kernels on the GPU")
def test_the_kernels_run_in_the_emulator(model, start, stock_answers, passes, monkeypatch):
    """The compiled kernels read vLLM's pool and its block table. They compute in bfloat16."""
    kernels = []

    def compile_for_emulator(spec: lazyrope.AttentionSpec, _: str) -> lazyrope.Attention:
        kernels.append(lazyrope.compile(spec, arch="emu:sm_80"))
        return kernels[-1]

    monkeypatch.setattr(backend, "kernel_of", compile_for_emulator)
    questions = [Question(order, [5, 6, 7], max_tokens=3) for order in ([DOCUMENTS[1], DOCUMENTS[3]], [DOCUMENTS[3]])]
    for engine in engine_of(start, block_size=16, dtype="bfloat16", max_num_seqs=2):
        [builder] = builders_of(engine)
        builder._graph_sizes = frozenset([1, 2])  # passes of decode use the steps that graphs would capture
        for _ in range(2):
            for question, answer in zip(questions, ask(engine, questions), strict=True):
                assert_right(model, question, answer, torch.bfloat16)
        assert {backend.PASSES, 2} <= {key for _, key in builder._steps}
    assert passes.shifted > 0 and kernels


@pytest.mark.skipif(not HAS_GPU, reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("mode", ["FULL_AND_PIECEWISE", "PIECEWISE", "NONE"])
def test_cuda_graphs(model, start, stock_answers, passes, mode, is_async):
    """Steps of decode are captured whole, or around attention alone. The scheduler plans a pass ahead, or does not."""
    rng = random.Random(8)
    settings = {"compilation_config": {"cudagraph_mode": mode}, "async_scheduling": is_async}
    for engine in engine_of(start, enforce_eager=False, block_size=16, **settings):
        for _ in range(3):
            assert_all_right(model, engine, random_questions(rng, 8, max_tokens=20))
        [builder] = builders_of(engine)
        captured = {backend.CASCADE, 1} if mode == "FULL_AND_PIECEWISE" else set()
        assert {backend.PASSES} | captured <= {key for _, key in builder._steps}
        assert engine.llm_engine.vllm_config.scheduler_config.async_scheduling == is_async
    assert passes.shifted > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_backend": None}, "the attention backend is None; start vLLM with --attention-backend CUSTOM"),
        ({"block_size": 40}, "--block-size 40 is not a multiple of 16"),
        ({"additional_config": {"lazyrope": {"document_token": 1024}}}, "it must be a token id from 0 to 1023"),
    ],
)
def test_settings_that_are_refused(start, stock_answers, options, message):
    with pytest.raises(SpecError, match=message):
        start(**{**LAZYROPE, **options})


def test_a_layer_that_differs_from_the_config_is_refused_at_start(start, stock_answers, monkeypatch):
    make = backend.Attention.__init__

    def make_with_window(layer: backend.Attention, *args: Any, **kwargs: Any) -> None:
        make(layer, *args, **kwargs)
        layer.sliding_window = 7

    monkeypatch.setattr(backend.Attention, "__init__", make_with_window)
    with pytest.raises(SpecError, match="a sliding window = 7; by the model's config, lazyrope expects None"):
        start(**LAZYROPE)


def test_registration_leaves_another_backend(caplog):
    custom = AttentionBackendEnum.CUSTOM
    plugin.register()
    assert custom.get_path() == plugin.BACKEND
    register_backend(custom, "other.Backend")
    plugin.register()
    assert custom.get_path() == "other.Backend" and "lazyrope leaves it" in caplog.text
    custom.clear_override()
    plugin.register()
