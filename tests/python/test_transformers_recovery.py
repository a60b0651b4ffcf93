"""The engine computes what a level of recovery says: against transformers' own modules under an explicit mask."""

from __future__ import annotations

import random
from typing import Any

import lazyrope
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import Engine, Scores  # noqa: E402

from tests.conftest import HAS_GPU  # noqa: E402
from tests.support import recovery_mask  # noqa: E402
from tests.support.recovery_mask import Expected  # noqa: E402
from tests.support.serving import (  # noqa: E402
    assert_near,
    assert_nothing_is_held,
    budget_of,
    make_engine,
    random_token_lists,
    random_tokens,
)
from tests.support.tiny_models import tiny_model  # noqa: E402
from tools.quality.reference import Reference  # noqa: E402

# These models have RoPE alone, windows with a softcap, sinks, layers without RoPE, and a temperature of queries.
TYPES = ("llama", "gemma2", "gpt_oss", "smollm3", "cohere2", "ministral3")
PREFIX, PROMPT, *DOCUMENTS = random_token_lists(11, 21, 12, 33, 50, 9, 40)
LEVELS: dict[str, dict[str, Any]] = {
    "prefix": {"recovery": "prefix", "prefix": PREFIX},
    "first page": {"recovery": "first_page", "overlay_tokens": 16},
    "first page after a prefix": {"recovery": "first_page", "prefix": PREFIX, "overlay_tokens": 20},
}
needs_float32 = pytest.mark.skipif(HAS_GPU, reason="the kernels do not support float32")


def as_served(model_type: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    return tiny_model(model_type, dtype, "cuda" if HAS_GPU else "cpu", **changes)


def expected_of(model: Any, documents: list[list[int]], level: dict[str, Any]) -> Expected:
    prefix, count = level.get("prefix", ()), level.get("overlay_tokens", 0)
    return recovery_mask.run(model, PROMPT, documents, prefix, count)


def assert_equal(scores: Scores, expected: Expected, eager: Expected | None = None) -> None:
    """Checks all states that the engine computed. Documents and overlays that were stored before have none."""

    def states(of: Scores | Expected) -> list[torch.Tensor | None]:
        return [*of.documents, *of.overlays, of.prompt]

    roundings = states(eager) if eager else [None] * len(states(scores))
    for given, exact, rounded in zip(states(scores), states(expected), roundings, strict=True):
        if given is not None:
            assert exact is not None
            assert_near(given, exact.float(), rounded)


@needs_float32
@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("model_type", TYPES)
def test_a_level_equals_an_explicit_mask(model_type, level):
    """Documents are new at first, then stored and in another order, and in passes that cut them."""
    model = as_served(model_type)
    engine = make_engine(model, **level)
    first = engine.score(PROMPT, DOCUMENTS)
    assert_equal(first, expected_of(model, DOCUMENTS, level))
    has_overlays = level["recovery"] == "first_page"
    assert [hidden is None for hidden in first.documents] == [False, False, has_overlays, False]  # the third is short
    assert [hidden is None for hidden in first.overlays] == [True] + [not has_overlays] * 3
    moved = [DOCUMENTS[i] for i in (3, 1, 1, 0)]
    scores = engine.score(PROMPT, moved)
    assert_equal(scores, expected_of(model, moved, level))
    assert scores.documents[1:] == [None] * 3
    cut = make_engine(model, max_pass_tokens=17, max_requests=2, **level).score(PROMPT, DOCUMENTS)
    assert_equal(cut, expected_of(model, DOCUMENTS, level))
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("level", [LEVELS["first page after a prefix"]])
@pytest.mark.parametrize("model_type", ["llama", "gpt_oss"])
def test_kernels_equal_an_explicit_mask(model_type, level):
    """The kernels run on a GPU or in the emulator."""
    model, exact = (as_served(model_type, dtype, num_hidden_layers=2) for dtype in (torch.bfloat16, torch.float32))
    engine = make_engine(model, arch=None if HAS_GPU else "emu:sm_80", **level)
    few = DOCUMENTS[1:]
    for documents in (few, few[::-1]):
        expected, eager = (expected_of(m, documents, level) for m in (exact, model))
        assert_equal(engine.score(PROMPT, documents), expected, eager)


@pytest.mark.parametrize("count", [0, 16])
def test_without_overlays_the_result_is_that_of_no_recovery(model, count):
    """The results are equal bit for bit: with overlays of no tokens, and at level "none" of an engine with others."""
    plain = make_engine(model)
    engine = make_engine(model, recovery="first_page" if count == 0 else "prefix", prefix=PREFIX, overlay_tokens=count)
    how = {"prefix": (), "overlay_tokens": 0} if count == 0 else {"recovery": "none"}
    for _ in ("new", "stored"):
        expected, given = plain.score(PROMPT, DOCUMENTS), engine.score(PROMPT, DOCUMENTS, **how)
        assert torch.equal(given.prompt, expected.prompt)
    assert engine.store.stats.misses == plain.store.stats.misses == len(DOCUMENTS)


@pytest.mark.parametrize("prefix", [[], PREFIX], ids=["no prefix", "prefix"])
def test_overlays_of_whole_documents_equal_an_ordinary_prefill(model, exact, prefix):
    engines = [make_engine(m) for m in (model, exact)] if not HAS_GPU else [make_engine(model)]
    for engine in engines:
        again = engine.score(PROMPT, DOCUMENTS, recovery="first_page", prefix=prefix, overlay_tokens=50)
        full = engine.score(PROMPT, DOCUMENTS, mode="full", recovery="first_page", prefix=prefix)
        assert again.documents[1:] == [None] * 3 and again.overlays[0] is None
        computed = torch.cat([again.documents[0], *again.overlays[1:], again.prompt]).float()
        prefill = torch.cat([*full.documents, full.prompt]).float()
        tolerance = 1e-4 if computed.dtype == engine.model.dtype else 2e-2
        assert (computed - prefill).norm() < tolerance * prefill.norm()
        # Without recovery, the documents differ by far more.
        none = engine.score(PROMPT, DOCUMENTS).prompt.float()
        assert (none - prefill[-len(PROMPT) :]).norm() > 0.1 * none.norm()


@needs_float32
@pytest.mark.parametrize("prefix", [[], PREFIX], ids=["no prefix", "prefix"])
@pytest.mark.parametrize("count", [0, 20, 50])
def test_logits_equal_those_that_the_quality_is_measured_by(prefix, count):
    """The figures of ``python -m tools.quality`` come from a reference of its own, so they hold for the engine."""
    model = as_served("llama")
    engine, reference = make_engine(model), Reference(model)
    stored = reference.store(prefix, DOCUMENTS, behind_prefix=True)
    again = [i for document in stored.documents()[1:] for i in document[:count]]
    how = {"recovery": "first_page", "prefix": prefix, "overlay_tokens": count, "num_logits": len(PROMPT)}
    assert_near(engine.score(PROMPT, DOCUMENTS, **how).logits, reference.read(stored, PROMPT, again).logits)
    full, _ = reference.full([*prefix, *(token for document in DOCUMENTS for token in document), *PROMPT])
    assert_near(engine.score(PROMPT, DOCUMENTS, mode="full", **how).logits, full[-len(PROMPT) :])


class Spy:
    """Records the tokens that each pass of an engine computes."""

    def __init__(self, engine: Engine, patch: pytest.MonkeyPatch) -> None:
        self.passes: list[list[list[int]]] = []
        run = engine._runner.run

        def record(work: Any, temperatures: list[float]) -> list[int]:
            self.passes.append([job.tokens[job.done : job.done + n] for job, n in work.rows])
            return run(work, temperatures)

        patch.setattr(engine._runner, "run", record)


def test_exactly_the_first_tokens_are_computed_again_in_the_pass_of_the_prompt(model, monkeypatch):
    engine = make_engine(model, recovery="first_page", prefix=PREFIX, overlay_tokens=16)
    a, b, c, d = DOCUMENTS
    spy = Spy(engine, monkeypatch)
    engine.score(PROMPT, [a, b, d])
    assert spy.passes == [[PREFIX, a, b, d, b[:16], d[:16], PROMPT]]
    spy.passes.clear()
    engine.score(PROMPT, [b, d, a])  # all documents are stored, at other places
    assert spy.passes == [[d[:16], a[:16], PROMPT]]
    spy.passes.clear()
    engine.score(PROMPT, [b, d, c])  # c is new and shorter than its overlay, so its own tokens are not stored
    assert spy.passes == [[c, PROMPT]]
    spy.passes.clear()
    both = [engine.generate(PROMPT, [d, b, order], max_new_tokens=1, stop=[]) for order in (a, c)]
    engine.run()
    assert spy.passes == [[b[:16], a[:16], PROMPT, c, PROMPT]]  # the overlay of b serves both
    assert [generation.hits for generation in both] == [3, 2]
    assert_nothing_is_held(engine)


def test_overlays_are_stored_as_documents_are(model):
    engine = make_engine(model, recovery="first_page", overlay_tokens=16)
    a, b, _, d = DOCUMENTS
    assert engine.generate(PROMPT, [a, b, d], max_new_tokens=1, stop=[]).result()
    stats = engine.store.stats
    assert (stats.documents, stats.misses, stats.private_bytes, stats.referenced) == (5, 5, 0, 0)
    engine.generate(PROMPT, [a, b, d], max_new_tokens=1, stop=[], salt="other").result()
    assert engine.store.stats.documents == 10
    engine.store.clear()
    assert engine.store.stats.documents == 0


@needs_float32
def test_requests_of_all_levels_in_a_small_store_equal_requests_alone(model):
    """Documents and overlays are evicted, requests share them, wait for them and are cancelled."""
    rng = random.Random(12)
    corpus = [random_tokens(rng, rng.randint(1, 60)) for _ in range(8)]
    guided = [{"recovery": "guided", "share": 0.4, "prefix": prefix} for prefix in ([], PREFIX)]
    levels: list[dict[str, Any]] = [{"recovery": "none"}, *LEVELS.values(), *guided, {"mode": "full"}]
    engine = make_engine(model, budget=budget_of(model, 700), max_requests=6, max_pass_tokens=48)
    alone = make_engine(model)
    asked = []
    for _ in range(60):
        request = (random_tokens(rng, rng.randint(1, 9)), rng.choices(corpus, k=rng.randint(0, 4)))
        options = rng.choice(levels) | {"max_new_tokens": rng.randint(1, 4), "stop": []}
        asked.append((engine.generate(*request, **options), request, options))
        if rng.random() < 0.1:
            rng.choice(asked)[0].cancel()
        if rng.random() < 0.5:
            engine.step()
    engine.run()
    for generation, request, options in asked:
        if generation.finish_reason != "cancelled":
            assert generation.tokens == alone.generate(*request, **options).result()
    assert sum(generation.finish_reason == "length" for generation, _, _ in asked) > 40
    assert engine.store.stats.evictions > 20
    assert_nothing_is_held(engine)


def test_documents_after_a_prefix_that_is_abandoned_are_computed_again(model):
    """Another user of the store gives up the prefix while the engine waits for it. Its pages then have other tokens."""
    level = {"recovery": "prefix", "prefix": PREFIX, "max_new_tokens": 3, "stop": []}
    expected = make_engine(model).generate(PROMPT, DOCUMENTS[:1], **level).result()
    engine = make_engine(model)
    prefix, _ = engine.store.acquire(PREFIX)
    first = engine.generate(PROMPT, DOCUMENTS[:1], **level)
    engine.step()
    engine.store.abandon(prefix)
    engine.store.release(prefix)
    second = engine.generate(PROMPT, DOCUMENTS[:1], **level)
    engine._admit()  # the second request finds the document that the first one computes
    engine.run()
    assert first.tokens == second.tokens == expected
    assert_nothing_is_held(engine)


def beside(engine: Engine, **options: Any) -> Engine:
    """Returns another engine of the same model, on the same store."""
    return Engine(engine.model, engine.store, engine._runner.backend, cuda_graphs=False, **options)


def run_all(*engines: Engine) -> None:
    """Runs engines in turn until all requests have ended."""
    for _ in range(300):
        if not any([engine.step() for engine in engines]):
            return
    raise AssertionError("the engines wait for each other")


def test_a_document_that_is_given_up_leaves_the_jobs_that_do_not_see_it(model):
    """A request that shares such a job may run already. If it were queued again, it would repeat its first token."""
    level = {"recovery": "prefix", "prefix": PREFIX, "max_new_tokens": 6, "stop": []}
    given_up, first, second = DOCUMENTS[1], DOCUMENTS[0], [*DOCUMENTS[0], 5]
    expected = make_engine(model).generate(PROMPT, [first, second], **level).result()
    engine = make_engine(model, max_pass_tokens=46, max_requests=4)
    other = beside(engine, max_pass_tokens=26, max_requests=2)
    other.generate(PROMPT, [], **level).result()  # the prefix is stored
    filler = other.generate(PROMPT, [given_up], **level)
    other.step()
    shared = engine.generate(PROMPT, [first, second], **level)
    waiting = engine.generate(PROMPT, [first, second, given_up], **level)
    engine.step()
    job = shared._fills[-1]
    assert job.left > 0, "the shared job is complete before the document is given up"
    filler.cancel()
    engine.run()
    assert shared.tokens == expected and shared._fills[-1] is job
    assert len(waiting.tokens) == 6
    assert_nothing_is_held(engine)


@needs_float32
def test_a_document_that_is_given_up_behind_one_that_is_still_filled_is_noticed(model):
    """Otherwise a later request adopts the job of an overlay that reads pages which have other tokens by then."""
    level = {"recovery": "first_page", "overlay_tokens": 16}
    options = {**level, "max_new_tokens": 6, "stop": []}
    a, b, _, c = DOCUMENTS
    alone = make_engine(model)
    engine = make_engine(model)
    other = beside(engine, max_pass_tokens=10, max_requests=2)
    lost, _ = engine.store.acquire(b)
    slow = other.generate(PROMPT, [a], max_new_tokens=1, stop=[])
    other.step()
    first = engine.generate(PROMPT, [a, b, c], **options)
    engine.step()
    engine.store.abandon(lost)
    engine.store.release(lost)
    second = engine.generate(PROMPT, [a, b, c], **options)
    engine.step()
    first.cancel()
    slow.result()
    assert second.result() == alone.generate(PROMPT, [a, b, c], **options).result()
    given, expected = (each.score(PROMPT, [a, b, c], **level).prompt.float() for each in (engine, alone))
    # The engines cut their passes differently, so bfloat16 rounds differently.
    tolerance = 1e-4 if model.dtype == torch.float32 else 2e-2
    assert (given - expected).norm() < tolerance * expected.norm()
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("level", [{}, LEVELS["prefix"]], ids=["none", "prefix"])
def test_engines_of_one_store_do_not_wait_for_each_other(model, level):
    """Each engine fills a document that a request of the other one needs first."""
    options = {**level, "max_new_tokens": 2, "stop": []}
    a, b = DOCUMENTS[:2]
    both = [b] if level else [a, b]  # with a prefix, one engine fills the prefix and the other one the document
    engine = make_engine(model)
    other = beside(engine)
    begun = engine.generate(PROMPT, [a], **options)
    engine._admit()
    crossing = other.generate(PROMPT, both, **options)
    other.step()
    waiting = engine.generate(PROMPT, both, **options)
    engine._admit()
    begun.cancel()
    run_all(engine, other)
    assert crossing.tokens == waiting.tokens == make_engine(model).generate(PROMPT, both, **options).result()
    assert_nothing_is_held(engine)


def test_overlays_are_evicted_before_the_documents_and_the_prefix_that_they_see(model):
    engine = make_engine(model, budget=budget_of(model, 192), recovery="first_page", prefix=PREFIX)
    engine.generate(PROMPT, DOCUMENTS[:2], max_new_tokens=1, stop=[]).result()  # 2 pages, 3 and 4, and an overlay of 1
    free = engine.store.num_pages - 10
    larger, _ = engine.store.acquire(range(16 * free + 1))  # one page more than are free
    engine.store.abandon(larger)
    engine.store.release(larger)
    spared = engine.generate(PROMPT, DOCUMENTS[:2], max_new_tokens=1, stop=[])
    engine._admit()
    assert engine.store.stats.evictions == 1
    assert [job.tokens for job in spared._fills] == [DOCUMENTS[1][:16]]
    engine.run()


def test_a_request_that_waits_for_room_is_composed_once(model, monkeypatch):
    from lazyrope.transformers import generation as module

    composed = []
    compose = module.compose
    monkeypatch.setattr(module, "compose", lambda *given: composed.append(given) or compose(*given))
    engine = make_engine(model, budget=budget_of(model, 112), recovery="prefix", prefix=PREFIX)
    both = [engine.generate(PROMPT, [each], max_new_tokens=4, stop=[]) for each in DOCUMENTS[:2]]
    engine.step()
    engine.step()
    assert engine.num_running == engine.num_waiting == 1
    engine.run()
    assert len(composed) == 2 and all(each.finish_reason == "length" for each in both)


def test_a_prefix_counts_among_the_positions():
    engine = make_engine(as_served("llama", torch.bfloat16 if HAS_GPU else torch.float32), max_model_len=100)
    with pytest.raises(
        lazyrope.SpecError,
        match=r"needs 106 positions \(prefix: 21, documents: 73, prompt: 12, max_new_tokens: 0\); the engine allows 10",
    ):
        engine.score(PROMPT, [DOCUMENTS[0], DOCUMENTS[3]], recovery="prefix", prefix=PREFIX)


def test_a_mode_without_recovery_is_refused_by_name(model):
    engine = make_engine(model, recovery="prefix", prefix=PREFIX)
    text = (
        r'mode = "block" with recovery = "prefix"; the modes with recovery are: lazy, full\. Give one of them, or rec'
    )
    with pytest.raises(lazyrope.SpecError, match=text):
        engine.generate(PROMPT, mode="block")
    with pytest.raises(lazyrope.SpecError, match=text):
        make_engine(model, mode="block", recovery="prefix", prefix=PREFIX)
    with pytest.raises(lazyrope.SpecError, match='prefix is given; recovery = "none" does not use it'):
        make_engine(model, prefix=PREFIX)
    assert len(engine.score(PROMPT, DOCUMENTS, mode="block", recovery="none").prompt) == len(PROMPT)
    with pytest.raises(lazyrope.SpecError, match=r"prefix = .*; it must be token ids of 0 to 1023"):
        engine.generate(PROMPT, prefix=[1024])
    with pytest.raises(
        lazyrope.SpecError, match="recovery = 'epic'; it must be one of none, prefix, first_page, guided, ape"
    ):
        engine.generate(PROMPT, recovery="epic")
    assert_nothing_is_held(engine)
