"""Tests which passes the engine captures, and that a replay measures what a plain pass does. The captures are fakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import Engine, passes

from tests.conftest import HAS_GPU
from tests.support.graphs import FakeGraphs
from tests.support.serving import assert_nothing_is_held, make_engine, random_token_lists, recorded_masses
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.skipif(HAS_GPU, reason="tests/gpu has real captures")
PROMPT, *DOCUMENTS = random_token_lists(11, 12, 33, 50, 9, 40)
GUIDED: dict[str, Any] = {"recovery": "guided", "share": 0.45, "overlay_tokens": 3}
MANY = random_token_lists(12, *[20] * 20)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> FakeGraphs:
    return FakeGraphs(monkeypatch)


def joined(masses: list[list[float]]) -> torch.Tensor:
    return torch.tensor([mass for each in masses for mass in each])


@pytest.fixture
def masses(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Returns the masses of each choice of pages, in their order."""
    return recorded_masses(monkeypatch)


def answers(engine: Engine, requests: list[dict[str, Any]]) -> list[tuple[list[int], Any]]:
    """Returns the tokens of requests that run together, and what was computed again."""
    generations = [engine.generate(PROMPT, max_new_tokens=3, stop=[], **request) for request in requests]
    engine.run()
    assert_nothing_is_held(engine)
    return [(generation.tokens, generation.recomputed) for generation in generations]


# Orders of documents, more documents, other levels beside "guided", and several questions in one pass.
ROUNDS: list[list[dict[str, Any]]] = [
    [{"documents": DOCUMENTS}],
    [{"documents": DOCUMENTS[::-1]}],
    [{"documents": DOCUMENTS[:2]}],
    [{"documents": DOCUMENTS}, {"documents": DOCUMENTS[1:]}, {"documents": DOCUMENTS, "recovery": "none"}],
    [
        {"documents": DOCUMENTS, "recovery": "ape"},
        {"documents": DOCUMENTS},
        {"documents": DOCUMENTS, "mode": "block", "recovery": "none"},
    ],
    [{"documents": MANY}],
    [{"documents": DOCUMENTS}],
]


@pytest.mark.parametrize(("model_type", "layers"), [("llama", None), ("gemma2", 1)])
def test_replays_measure_and_answer_as_plain_passes_do(model_type, layers, graphs, masses):
    model = tiny_model(model_type, torch.float32, "cpu")
    options = {**GUIDED, "select_layers": layers}
    engine, plain = graphs.engine(model, **options), make_engine(model, **options)
    for i, requests in enumerate(ROUNDS * 2):
        masses.clear()
        expected = answers(plain, requests)
        exact = joined(masses)
        masses.clear()
        replays = len(graphs.replays)
        assert answers(engine, requests) == expected
        torch.testing.assert_close(joined(masses), exact, atol=1e-5, rtol=1e-4)
        # In the second half, all documents are stored, and passes are small.
        assert i < len(ROUNDS) or any(key.measures for key in graphs.replays[replays:])
    assert any(key.measures and key.has_groups for key in graphs.replays)
    assert {key.num_layers for key in graphs.replays if key.measures} == {None, layers}


def test_a_measuring_pass_is_captured_once_and_again_for_more_pages(graphs, model):
    engine = graphs.engine(model, **GUIDED)
    for _ in range(3):
        answers(engine, [{"documents": DOCUMENTS}])
        answers(engine, [{"documents": DOCUMENTS[::-1]}])
    measuring = [key for key in graphs.captures if key.measures]
    # The first pass also computes the documents. The later ones have the prompt alone.
    assert [key.tokens for key in measuring] == [256, 16]
    for _ in range(2):
        answers(engine, [{"documents": MANY}])
    assert [key.tokens for key in graphs.captures if key.measures] == [256, 16, 16]


def test_pages_of_other_requests_alone_force_another_capture(graphs, model):
    """They need room in the masses, but neither larger steps nor a graph of another size."""
    engine = graphs.engine(model, **GUIDED)
    whole = [token for document in MANY for token in document]
    for _ in range(2):
        answers(engine, [{"documents": DOCUMENTS}])
    engine.score([1], [whole], recovery="none")
    before = len(graphs.captures)
    guided = engine.generate(PROMPT, DOCUMENTS, max_new_tokens=1, stop=[])
    other = engine.generate([1], [whole], max_new_tokens=1, stop=[], recovery="none")
    engine.step()
    assert other.is_done and not guided.is_done
    assert [(key.tokens, key.measures) for key in graphs.captures[before:]] == [(16, True)]
    engine.run()


def test_measuring_passes_that_need_much_memory_are_not_captured(graphs, model, monkeypatch):
    engine = graphs.engine(model, **GUIDED)
    expected = answers(engine, [{"documents": DOCUMENTS}])
    # The documents have 3 + 4 + 1 + 3 pages, and the prompt one.
    for most, captured in ((12 * len(PROMPT), True), (12 * len(PROMPT) - 1, False)):
        monkeypatch.setattr(passes, "GRAPH_MASS_PAGES", most)
        graphs.replays.clear()
        assert answers(engine, [{"documents": DOCUMENTS}]) == expected
        assert any(key.measures for key in graphs.replays) == captured
