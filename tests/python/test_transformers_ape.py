"""The engine at level "ape" of recovery: attention to the documents with a temperature, merged by log-sum-exp."""

from __future__ import annotations

from typing import Any

import lazyrope
import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from tests.conftest import HAS_GPU
from tests.python.test_transformers_recovery import Spy, as_served, assert_equal, needs_float32
from tests.support import recovery_mask
from tests.support.serving import assert_near, assert_nothing_is_held, make_engine, random_token_lists
from tools.quality.reference import Reference, Temperature

# These models have RoPE alone, windows with a softcap, sinks, layers without RoPE, and a temperature of queries.
TYPES = ("llama", "gemma2", "gpt_oss", "smollm3", "cohere2", "ministral3")
PREFIX, PROMPT, *DOCUMENTS = random_token_lists(13, 21, 23, 33, 50, 9, 40)
APE: dict[str, Any] = {"recovery": "ape", "attention_temperature": 0.6, "lse_scale": 0.7}
OTHER: dict[str, Any] = {"attention_temperature": 1.7, "lse_scale": 1.2}


@needs_float32
@pytest.mark.parametrize(
    ("model_type", "options"),
    [("llama", {}), *((model_type, {"prefix": PREFIX, "page_size": 48}) for model_type in TYPES)],
)
def test_the_engine_equals_an_explicit_mask(model_type, options):
    """Documents are new, then stored and moved, then read with other parameters, also in passes that cut the prompt."""
    model = as_served(model_type)
    prefix = options.get("prefix", [])
    calls = [(DOCUMENTS, {}), (DOCUMENTS[::-1], {}), (DOCUMENTS, OTHER)]
    for cut, served in (({}, calls), ({"max_pass_tokens": 17, "max_requests": 2}, calls[:1])):
        engine = make_engine(model, **APE, **options, **cut)
        for layer in range(model.config.num_hidden_layers):  # no slot is read before it is written
            engine.store.k_pool(layer).fill_(torch.nan)
            engine.store.v_pool(layer).fill_(torch.nan)
        for documents, changes in served:
            ape = APE | changes
            scores = engine.score(PROMPT, documents, **changes)
            by = (ape["attention_temperature"], ape["lse_scale"])
            expected = recovery_mask.run(model, PROMPT, documents, prefix, ape=by)
            assert_equal(scores, expected)
            without = recovery_mask.run(model, PROMPT, documents, prefix).prompt
            assert (scores.prompt - without).norm() > 1e-2 * without.norm(), "temperature and scale change nothing"
        assert_nothing_is_held(engine)


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss"])
def test_kernels_equal_an_explicit_mask(model_type):
    """The kernels run on a GPU or in the emulator."""
    model, exact = (as_served(model_type, dtype, num_hidden_layers=2) for dtype in (torch.bfloat16, torch.float32))
    engine = make_engine(model, arch=None if HAS_GPU else "emu:sm_80", prefix=PREFIX, **APE)
    scores = engine.score(PROMPT, DOCUMENTS)
    expected, eager = (recovery_mask.run(m, PROMPT, DOCUMENTS, PREFIX, ape=(0.6, 0.7)) for m in (exact, model))
    assert_equal(scores, expected, eager)


@needs_float32
@pytest.mark.parametrize("prefix", [[], PREFIX], ids=["no prefix", "prefix"])
def test_logits_and_tokens_equal_those_that_the_quality_is_measured_by(prefix):
    """The figures of ``python -m tools.quality`` come from a reference of its own, so they hold for the engine."""
    model = as_served("llama")
    engine, reference = make_engine(model, prefix=prefix, **APE), Reference(model)
    stored = reference.store(prefix, DOCUMENTS, behind_prefix=True)
    temperature = Temperature(APE["attention_temperature"], APE["lse_scale"])
    scores = engine.score(PROMPT, DOCUMENTS, num_logits=len(PROMPT))
    assert_near(scores.logits, reference.read(stored, PROMPT, temperature=temperature).logits)
    tokens = engine.generate(PROMPT, DOCUMENTS, max_new_tokens=8, stop=[]).result()
    expected: list[int] = []
    for _ in tokens:
        logits = reference.read(stored, [*PROMPT, *expected], temperature=temperature).logits
        expected.append(int(logits[-1].argmax()))
    assert tokens == expected


def test_requests_of_several_levels_share_passes(model):
    """Each request of a pass has its own temperature, scale and level."""
    requests: list[dict[str, Any]] = [{"recovery": "none"}, APE, APE | OTHER, {"recovery": "guided", "share": 0.5}]
    alone = [make_engine(model).generate(PROMPT, DOCUMENTS, max_new_tokens=4, stop=[], **each) for each in requests]
    engine = make_engine(model)
    together = [engine.generate(PROMPT, DOCUMENTS, max_new_tokens=4, stop=[], **each) for each in requests]
    engine.run()
    assert [each.tokens for each in together] == [each.result() for each in alone] or HAS_GPU
    assert len({tuple(each.tokens) for each in together[:3]}) == 3
    assert_nothing_is_held(engine)


def test_nothing_is_computed_again_and_requests_of_other_levels_share_the_documents(model, monkeypatch):
    engine = make_engine(model, prefix=PREFIX, **APE)
    engine.score(PROMPT, DOCUMENTS, recovery="prefix")
    spy = Spy(engine, monkeypatch)
    generation = engine.generate(PROMPT, DOCUMENTS, max_new_tokens=2, stop=[])
    generation.result()
    assert spy.passes == [[PROMPT], [generation.tokens[:1]]]
    assert generation.hits == len(DOCUMENTS) and generation.recomputed == [[]] * len(DOCUMENTS)


@pytest.mark.parametrize("prefix", [[], PREFIX], ids=["no prefix", "prefix"])
def test_the_ends_equal_other_levels(model, prefix):
    """A temperature and a scale of 1, no documents, and an ordinary prefill."""
    engine = make_engine(model, prefix=prefix, **APE)
    base: dict[str, Any] = {"recovery": "prefix"} if prefix else {"recovery": "none"}
    pairs: list[tuple[list[list[int]], dict[str, Any], dict[str, Any]]] = [
        (DOCUMENTS, {"attention_temperature": 1, "lse_scale": 1}, base),
        ([], {}, base),
        (DOCUMENTS, {"mode": "full"}, {"mode": "full", **base}),
    ]
    for documents, options, other in pairs:
        given, expected = (engine.score(PROMPT, documents, **each).prompt for each in (options, other))
        assert (given - expected).norm() < (2e-2 if HAS_GPU else 1e-5) * expected.norm()
        plain = engine.score(PROMPT, documents).prompt
        assert not documents or (plain - expected).norm() > 5e-2 * expected.norm()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_temperature": 0}, "attention_temperature = 0; it must be a finite number greater than 0"),
        ({"lse_scale": float("nan")}, "lse_scale = nan; it must be a finite number greater than 0"),
        ({"lse_scale": "1"}, "lse_scale = '1'; it must be a finite number greater than 0"),
        ({"share": 0.5}, 'share is given; recovery = "ape" does not use it'),
        ({"recovery": "none", "lse_scale": 1}, 'lse_scale is given; recovery = "none" does not use it'),
        ({"mode": "block"}, 'mode = "block" with recovery = "ape"; the modes with recovery are: lazy, full'),
    ],
)
def test_mistakes_are_refused(model, options, message):
    engine = make_engine(model, **APE)
    with pytest.raises(lazyrope.SpecError, match=message):
        engine.score(PROMPT, DOCUMENTS, **options)
    assert_nothing_is_held(engine)
