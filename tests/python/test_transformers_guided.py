"""The engine at level "guided" of recovery: what the question reads, what is chosen, and what is computed again."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import lazyrope
import pytest
import torch
from lazyrope.recovery import PageChoice

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import engine as engine_module
from lazyrope.transformers import passes

from tests.conftest import HAS_GPU
from tests.python.test_transformers_recovery import Spy, as_served, assert_equal, needs_float32
from tests.support import recovery_mask
from tests.support.serving import (
    assert_near,
    assert_nothing_is_held,
    make_engine,
    random_token_lists,
    recorded_masses,
)
from tools.quality import levels
from tools.quality.reference import Reference

# These models have RoPE alone, windows with a softcap, and sinks.
TYPES = ("llama", "gemma2", "gpt_oss")
PREFIX, PROMPT, *DOCUMENTS = random_token_lists(11, 21, 12, 33, 50, 9, 40)
LENGTHS = tuple(map(len, DOCUMENTS))
SHARE = 0.45


def expected_masses(
    model: Any, choice: PageChoice, prefix: list[int], question: list[int], own: slice = slice(None)
) -> list[float]:
    """Returns the mass of each page by an explicit mask, over the documents as they are stored."""
    whole = recovery_mask.run(model, question, DOCUMENTS, prefix)
    every = torch.cat(whole.mass)
    if own != slice(None):  # without the attention of the tokens that do not count
        every = every - torch.cat(recovery_mask.run(model, question[: own.start], DOCUMENTS, prefix).mass)
    return [float(every[page.start : page.stop].sum()) for page in choice.pages]


@needs_float32
@pytest.mark.parametrize(
    "options", [{}, {"prefix": PREFIX, "page_size": 48, "overlay_tokens": 5}], ids=["plain", "pages of 48 tokens"]
)
@pytest.mark.parametrize("model_type", TYPES)
def test_the_engine_equals_an_explicit_mask(model_type, options, monkeypatch):
    """The masses, the choice by them, and the states of all tokens, also in passes that cut them."""
    model = as_served(model_type)
    prefix = options.get("prefix", [])
    choice = PageChoice(LENGTHS, SHARE, options.get("overlay_tokens", 16))
    masses = recorded_masses(monkeypatch)
    expected = expected_masses(model, choice, prefix, PROMPT)
    chosen = choice.tokens(expected)
    for cut in ({}, {"max_pass_tokens": 17, "max_requests": 2}):
        engine = make_engine(model, recovery="guided", share=SHARE, **options, **cut)
        for layer in range(model.config.num_hidden_layers):  # no slot is read before it is written
            engine.store.k_pool(layer).fill_(torch.nan)
            engine.store.v_pool(layer).fill_(torch.nan)
        for _ in ("new", "stored"):
            masses.clear()
            scores = engine.score(PROMPT, DOCUMENTS)
            torch.testing.assert_close(torch.tensor(masses), torch.tensor([expected]), atol=1e-4, rtol=1e-3)
            firsts = [sum(LENGTHS[:i]) for i in range(len(LENGTHS))]
            assert [first + i for first, own in zip(firsts, scores.recomputed, strict=True) for i in own] == chosen
            states = recovery_mask.run(model, PROMPT, DOCUMENTS, prefix, again=scores.recomputed)
            assert_equal(scores, states)
            assert [hidden is None for hidden in scores.overlays] == [not own for own in scores.recomputed]
        assert_nothing_is_held(engine)


@needs_float32
def test_a_pass_measures_no_more_pairs_than_the_limit(monkeypatch):
    """A long question over many pages is measured in several passes, beside that of another request."""
    model = as_served("llama")
    choice = PageChoice(LENGTHS, SHARE, 16)
    masses, rooms = recorded_masses(monkeypatch), []
    pack = passes.pack

    def record(*given: Any) -> Any:
        packed = pack(*given)
        rooms.append(0 if packed.masses is None else packed.masses.room)
        return packed

    monkeypatch.setattr(passes, "pack", record)
    monkeypatch.setattr(engine_module, "MAX_MASS_PAGES", 90)
    engine = make_engine(model, recovery="guided", share=SHARE)
    expected = [expected_masses(model, choice, [], question) for question in (PROMPT, PREFIX)]
    generations = [engine.generate(question, DOCUMENTS, max_new_tokens=1) for question in (PROMPT, PREFIX)]
    for generation in generations:
        generation.result()
    torch.testing.assert_close(torch.tensor(masses), torch.tensor(expected), atol=1e-4, rtol=1e-3)
    assert 45 < max(rooms) <= 90
    assert sum(room > 0 for room in rooms) > 2
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss"])
def test_kernels_equal_an_explicit_mask(model_type):
    """The kernels run on a GPU or in the emulator."""
    model, exact = (as_served(model_type, dtype, num_hidden_layers=2) for dtype in (torch.bfloat16, torch.float32))
    engine = make_engine(
        model, arch=None if HAS_GPU else "emu:sm_80", recovery="guided", share=SHARE, prefix=PREFIX, overlay_tokens=3
    )
    scores = engine.score(PROMPT, DOCUMENTS)
    assert sum(map(len, scores.recomputed)) >= SHARE * sum(LENGTHS)
    expected, eager = (recovery_mask.run(m, PROMPT, DOCUMENTS, PREFIX, again=scores.recomputed) for m in (exact, model))
    assert_equal(scores, expected, eager)


@needs_float32
@pytest.mark.parametrize("prefix", [[], PREFIX], ids=["no prefix", "prefix"])
@pytest.mark.parametrize(
    ("share", "first", "layers"), [(0.15, 0, None), (0.3, 3, None), (0.45, 16, None), (0.6, 16, None), (0.3, 0, 1)]
)
def test_choice_and_logits_equal_those_that_the_quality_is_measured_by(prefix, share, first, layers):
    """The figures of ``python -m tools.quality`` come from a reference of its own, so they hold for the engine."""
    model = as_served("llama")
    engine = make_engine(model, recovery="guided", prefix=prefix, select_layers=layers)
    reference = Reference(model)
    scores = engine.score(PROMPT, DOCUMENTS, share=share, overlay_tokens=first, num_logits=len(PROMPT))
    stored = reference.store(prefix, DOCUMENTS, behind_prefix=True)
    request = levels.Request(stored, PROMPT, reference.read(stored, PROMPT, wants_mass=True), [], None)
    chosen = levels.guided(share, first, layers)(request)
    assert layers is None or chosen != levels.guided(share, first)(request), "all layers choose the same"
    again = zip(stored.documents(), scores.recomputed, strict=True)
    assert [document[i] for document, own in again for i in own] == chosen
    assert_near(scores.logits, reference.read(stored, PROMPT, chosen).logits)


@needs_float32
def test_layers_whose_attention_does_not_count_are_not_measured(monkeypatch):
    model = as_served("llama")
    engine = make_engine(model, recovery="guided", share=SHARE, select_layers=1)
    measured = []
    [attention] = engine._runner.backend.measuring
    call = type(attention).__call__

    def record(self: Any, *given: Any, **named: Any) -> Any:
        measured.append(named.get("page_mass") is not None)
        return call(self, *given, **named)

    monkeypatch.setattr(type(attention), "__call__", record)
    engine.score(PROMPT, DOCUMENTS)
    assert model.config.num_hidden_layers > 1
    assert sum(measured) == 1


def test_without_memory_for_a_larger_step_the_present_one_stays():
    class Kernels:
        plans = 0
        spec = SimpleNamespace(states=False)

        def plan(self, *_: Any, **__: Any) -> Any:
            self.plans += 1
            if self.plans == 2:
                raise lazyrope.SpecError("no memory")
            return SimpleNamespace(update=lambda *_: None)

    def packed(tokens: int) -> Any:
        sizes = {"q_indptr": 2, "segments.base": 1, "q_position": tokens}
        return SimpleNamespace(masses=None, max_rows=tokens, size=sizes.__getitem__)

    kernels, store = Kernels(), SimpleNamespace(pages=None, page_size=16)
    step = passes._GrowingStep(kernels, store, passes.MIN_CAPACITY)
    views = defaultdict(lambda: None)
    step.update(packed(1), views)
    with pytest.raises(lazyrope.SpecError, match="no memory"):
        step.update(packed(2), views)
    step.update(packed(1), views)
    assert kernels.plans == 2
    step.update(packed(2), views)
    assert kernels.plans == 3


@pytest.mark.parametrize("prefix", [[], PREFIX], ids=["no prefix", "prefix"])
def test_the_ends_of_the_share_equal_other_levels(model, prefix, monkeypatch):
    """No pages, first pages alone and all pages. None of them needs a pass of the question."""
    engine = make_engine(model, recovery="prefix" if prefix else "none", prefix=prefix)
    engine.score(PROMPT, DOCUMENTS, recovery="guided", share=0, overlay_tokens=0)
    spy = Spy(engine, monkeypatch)
    without: dict[str, Any] = {"recovery": "prefix"} if prefix else {"recovery": "none"}
    others: list[tuple[dict[str, Any], float, int]] = [
        (without, 0, 0),
        ({"recovery": "first_page", "overlay_tokens": 16}, 0, 16),
        ({"recovery": "first_page", "overlay_tokens": 1000}, 1, 16),
        ({"recovery": "first_page", "overlay_tokens": 1000}, 0, 1000),
    ]
    for options, share, first in others:
        expected = engine.score(PROMPT, DOCUMENTS, **options)
        spy.passes.clear()
        given = engine.score(PROMPT, DOCUMENTS, recovery="guided", share=share, overlay_tokens=first)
        again = [token for document in DOCUMENTS[1:] for token in document[: 50 if share else first]]
        assert spy.passes == [[again, PROMPT] if again else [PROMPT]]
        assert given.recomputed == expected.recomputed
        assert (given.prompt - expected.prompt).norm() < (2e-2 if HAS_GPU else 1e-4) * expected.prompt.norm()
    full = engine.score(PROMPT, DOCUMENTS, mode="full", recovery="guided")
    assert full.recomputed == [[], [], [], []] and full.overlays == [None] * 4
    assert (given.prompt - full.prompt).norm() < (2e-2 if HAS_GPU else 1e-4) * full.prompt.norm()


def test_the_question_runs_first_and_then_the_chosen_tokens_with_the_prompt(model, monkeypatch):
    engine = make_engine(model, recovery="guided", share=SHARE)
    spy = Spy(engine, monkeypatch)
    generation = engine.generate(PROMPT, DOCUMENTS, max_new_tokens=2, stop=[])
    assert generation.recomputed == []
    generation.result()
    again = [d[i] for d, own in zip(DOCUMENTS, generation.recomputed, strict=True) for i in own]
    assert spy.passes == [[*DOCUMENTS, PROMPT], [again, PROMPT], [generation.tokens[:1]]]
    assert SHARE * sum(LENGTHS) <= len(again) < SHARE * sum(LENGTHS) + 16
    assert all({*range(min(16, n))} <= {*own} for n, own in zip(LENGTHS[1:], generation.recomputed[1:], strict=True))
    stats = engine.store.stats
    assert (stats.documents, stats.private_bytes) == (len(DOCUMENTS), 0), "only the shared documents are stored"
    spy.passes.clear()
    moved = DOCUMENTS[::-1]
    both = [engine.generate(PROMPT, texts, max_new_tokens=1, stop=[]) for texts in (moved, DOCUMENTS)]
    engine.run()
    assert [generation.hits for generation in both] == [4, 4]
    assert spy.passes[0] == [PROMPT, PROMPT] and [len(each) for each in spy.passes] == [2, 4]
    assert both[1].tokens == generation.tokens[:1] and both[1].recomputed == generation.recomputed
    assert_nothing_is_held(engine)


@needs_float32
def test_a_pass_of_questions_alone_ends_after_the_layers_that_choose(monkeypatch):
    """Keys of later layers are never written. A cut question reads them in a pass that other jobs run through."""
    model = as_served("llama")
    expected = make_engine(model, recovery="guided", share=SHARE, select_layers=1).score(PROMPT, DOCUMENTS)
    engine = make_engine(
        model, recovery="guided", share=SHARE, select_layers=1, max_pass_tokens=len(PROMPT), max_requests=8
    )
    for layer in range(model.config.num_hidden_layers):
        engine.store.k_pool(layer).fill_(torch.nan)
        engine.store.v_pool(layer).fill_(torch.nan)
    guided = engine.generate(PROMPT, DOCUMENTS, max_new_tokens=2, stop=[])
    for _ in range(sum(LENGTHS) // 11):  # one token of each pass is reserved for the prompt
        engine.step()
    layers: list[tuple[int, int]] = []
    attend = passes.Pass.attend

    def record(self: Any, layer: int, call: Any, q: torch.Tensor, *rest: Any) -> torch.Tensor:
        layers.append((layer, len(q)))
        return attend(self, layer, call, q, *rest)

    monkeypatch.setattr(passes.Pass, "attend", record)
    engine.step()
    assert layers == [(0, 11)]
    other = engine.generate(PROMPT[:1], max_new_tokens=1, recovery="none", stop=[])
    engine.step()
    assert layers[1:] == [(layer, 2) for layer in range(model.config.num_hidden_layers)] and other.is_done
    engine.run()
    assert guided.recomputed == expected.recomputed
    assert guided.tokens[0] == int((expected.prompt[-1] @ model.lm_head.weight.T).argmax())
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("documents", [[], DOCUMENTS[:1]], ids=["no documents", "one document"])
def test_nothing_is_chosen_without_a_second_document(model, documents, monkeypatch):
    engine = make_engine(model, recovery="guided", prefix=PREFIX)
    spy = Spy(engine, monkeypatch)
    given = engine.score(PROMPT, documents)
    assert spy.passes == [[PREFIX, *documents, PROMPT]] and given.recomputed == [[]] * len(documents)
    expected = engine.score(PROMPT, documents, recovery="prefix").prompt.float()
    # The documents are stored now, so passes have fewer rows, and products may round differently.
    tolerance = 1e-4 if given.prompt.dtype == torch.float32 else 2e-2
    assert (given.prompt.float() - expected).norm() < tolerance * expected.norm()


@needs_float32
def test_the_question_is_the_end_of_the_prompt_or_what_comes_before_the_answer(monkeypatch):
    model = as_served("llama")
    choice = PageChoice(LENGTHS, SHARE, 16)
    masses = recorded_masses(monkeypatch)
    engine = make_engine(model, recovery="guided", share=SHARE, question_tokens=5)
    engine.score(PROMPT, DOCUMENTS)
    engine.score([*PROMPT, 1, 2, 3], DOCUMENTS, question_length=len(PROMPT))
    expected = expected_masses(model, choice, [], PROMPT, slice(len(PROMPT) - 5, None))
    torch.testing.assert_close(torch.tensor(masses), torch.tensor([expected] * 2), atol=1e-4, rtol=1e-3)


def test_a_request_is_cancelled_at_any_step(model):
    engine = make_engine(model, recovery="guided", share=SHARE, max_pass_tokens=33)
    expected = engine.generate(PROMPT, DOCUMENTS, max_new_tokens=2, stop=[]).result()
    engine.store.clear()
    for steps in range(12):
        generation = engine.generate(PROMPT, DOCUMENTS, max_new_tokens=2, stop=[])
        for _ in range(steps):
            engine.step()
        generation.cancel()
        assert_nothing_is_held(engine)
    assert generation.finish_reason == "length"
    assert generation.tokens == engine.generate(PROMPT, DOCUMENTS, max_new_tokens=2, stop=[]).result()
    # The documents are computed in other passes than at first, which a GPU may round in another way.
    assert HAS_GPU or generation.tokens == expected


def test_an_error_of_the_model_ends_the_request(model, monkeypatch):
    engine = make_engine(model, recovery="guided", share=SHARE)
    generation = engine.generate(PROMPT, DOCUMENTS)
    monkeypatch.setattr("lazyrope.transformers.measuring.Meter.masses_of", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.run()
    assert generation.finish_reason == "error"
    assert_nothing_is_held(engine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 2}, "share = 2; it must be a number, 0 to 1"),
        ({"recovery": "first_page", "share": 0.5}, 'share is given; recovery = "first_page" does not use it'),
        ({"mode": "block"}, 'mode = "block" with recovery = "guided"; the modes with recovery are: lazy, full'),
        ({"question_length": 0}, "question_length = 0; it must be 1 to 12, or None"),
        ({"question_length": 13}, "question_length = 13; it must be 1 to 12, or None"),
    ],
)
def test_mistakes_are_refused(model, options, message):
    engine = make_engine(model, recovery="guided")
    with pytest.raises(lazyrope.SpecError, match=message):
        engine.score(PROMPT, DOCUMENTS, **options)
    assert_nothing_is_held(engine)
