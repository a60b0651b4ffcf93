"""An assessment measures what an independent computation of the same levels gives, and recommends by it."""

from __future__ import annotations

import io
import math
import sys
from itertools import accumulate, pairwise
from typing import Any

import lazyrope
import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.recovery import PageChoice
from lazyrope.transformers import Assessment, Engine, LevelResult, Sample
from lazyrope.transformers.assessment import _compare, _Tally
from lazyrope.transformers.frontier import figure_of, frontier
from lazyrope.transformers.work import Work

from tests.conftest import HAS_GPU
from tests.support import recovery_mask
from tests.support.serving import assert_nothing_is_held, budget_of, make_engine, random_token_lists
from tests.support.tiny_models import tiny_model

PREFIX, ANSWER, FIRST, SECOND, *TEXTS = random_token_lists(21, 12, 5, 7, 9, 30, 40, 25)
SHARE = 0.5  # more than the documents' first tokens
APE = (0.7, 0.8)  # the temperature and the scale
SAMPLES = [Sample(FIRST, TEXTS, ANSWER), Sample(SECOND, TEXTS[::-1])]
needs_float32 = pytest.mark.skipif(HAS_GPU, reason="the kernels do not support float32")


@pytest.fixture(scope="module")
def capped() -> Any:
    """A model that caps its logits, so that its last hidden states alone do not give them."""
    return tiny_model("gemma2", torch.bfloat16 if HAS_GPU else torch.float32, "cuda" if HAS_GPU else "cpu")


def chosen_of(model: Any, prompt: list[int], texts: list[list[int]]) -> list[list[int]]:
    """Returns the tokens of each document that level "guided" computes again: the choice knows no answer."""
    choice = PageChoice(tuple(map(len, texts)), SHARE, 16)
    assert choice.needs_scores
    mass = torch.cat(recovery_mask.run(model, prompt, texts, PREFIX).mass)
    chosen = choice.tokens([float(mass[page.start : page.stop].sum()) for page in choice.pages])
    ends = [0, *accumulate(map(len, texts))]
    return [[i - begin for i in chosen if begin <= i < end] for begin, end in pairwise(ends)]


def log_probabilities(
    model: Any, prompt: list[int], answer: list[int], texts: list[list[int]], level: str
) -> torch.Tensor:
    """Computes those before and after each token of an answer by the reference of recovery."""
    prefix, documents, overlay_tokens = PREFIX, texts, 16 if level == "first_page" else 0
    again = chosen_of(model, prompt, texts) if level == "guided" else None
    if level == "none":
        prefix, documents = [], [PREFIX, *texts]
    elif level == "full":
        overlay_tokens = 1000
    ape = APE if level == "ape" else None
    states = recovery_mask.run(model, [*prompt, *answer], documents, prefix, overlay_tokens, again, ape).prompt
    states = states[len(prompt) - 1 :]
    cap = model.config.final_logit_softcapping
    with torch.no_grad():
        return (torch.tanh(model.lm_head(states) / cap) * cap).log_softmax(-1)


def expected_of(model: Any, level: str) -> LevelResult:
    kl, agrees = [], []
    for sample in SAMPLES:
        answer: list[int] = []
        for _ in range(3):
            row = log_probabilities(model, sample.prompt, answer, sample.documents, "full")[-1]
            answer.append(int(row.argmax()))
        both = [
            log_probabilities(model, sample.prompt, answer[:-1], sample.documents, each) for each in ("full", level)
        ]
        kl.append((both[0].exp() * (both[0] - both[1])).sum(-1))
        agrees.append(both[0].argmax(-1) == both[1].argmax(-1))
    given = log_probabilities(model, FIRST, ANSWER[:-1], TEXTS, level)
    nll = -sum(float(row[token]) for row, token in zip(given, ANSWER, strict=True))
    every = torch.cat(kl)
    chosen = [chosen_of(model, sample.prompt, sample.documents) for sample in SAMPLES] if level == "guided" else []
    guided = sum(len(own) for documents in chosen for own in documents) / (2 * (12 + 95))
    return LevelResult(
        level,
        sum(bool(row[0]) for row in agrees) / len(agrees),
        sum(bool(row.all()) for row in agrees) / len(agrees),
        float(every.mean()),
        float(every.quantile(0.99)),
        math.exp(nll / len(ANSWER)),
        0.0,
        {"first_page": 2 * 16 / (12 + 95), "guided": guided, "full": 1.0}.get(level, 0.0),
    )


@needs_float32
def test_an_assessment_equals_the_reference_of_recovery(capped, monkeypatch):
    monkeypatch.setattr(capped.generation_config, "eos_token_id", None)
    ape = dict(zip(("attention_temperature", "lse_scale"), APE, strict=True))
    engine = make_engine(capped, recovery="prefix", prefix=PREFIX, share=SHARE, **ape)
    found = engine.assess(SAMPLES, max_new_tokens=3)
    assert [row.level for row in found.levels] == ["none", "prefix", "ape", "first_page", "guided", "full"]
    for row in found.levels:
        expected = expected_of(capped, row.level)
        assert row.first_token_agreement == expected.first_token_agreement
        assert row.answer_agreement == expected.answer_agreement
        assert row.recomputed_share == pytest.approx(expected.recomputed_share)
        for name in ("mean_kl", "p99_kl", "perplexity"):
            assert getattr(row, name) == pytest.approx(getattr(expected, name), rel=1e-3, abs=1e-6), (row.level, name)
        assert row.first_token_ms > 0
    assert found.levels[0].mean_kl > 1e-4  # documents that see each other change this model's answers
    assert_nothing_is_held(engine)


def test_overlays_of_whole_documents_are_recommended_where_nothing_else_is_near(model):
    engine = make_engine(model, overlay_tokens=100)
    samples = [{"prompt": FIRST, "documents": TEXTS}]
    near = engine.assess(samples, max_new_tokens=2, max_kl=1e-2 if HAS_GPU else 1e-6)
    assert [row.level for row in near.levels] == ["none", "ape", "first_page", "guided", "full"]
    assert near.recommended == "first_page" and near.levels[0].perplexity is None
    assert engine.assess(samples, max_new_tokens=2, max_kl=1e9).recommended == "none"
    some = make_engine(model, overlay_tokens=0, share=0).assess(samples, max_new_tokens=2, max_kl=0)
    assert some.recommended is None and some.levels[0].mean_kl == pytest.approx(some.levels[2].mean_kl, rel=1e-3)
    assert some.levels[3].mean_kl == pytest.approx(some.levels[0].mean_kl, rel=1e-3)


def passes_of(engine: Engine, patch: pytest.MonkeyPatch) -> list[Work]:
    """Returns a list to which each pass of an engine is added."""
    passes: list[Work] = []
    run = engine._runner.run

    def record(work: Work, temperatures: list[float]) -> list[int]:
        passes.append(work)
        return run(work, temperatures)

    patch.setattr(engine._runner, "run", record)
    return passes


def test_times_are_of_stored_documents_and_new_overlays(model, monkeypatch):
    engine = make_engine(model, overlay_tokens=16, share=SHARE)
    passes = passes_of(engine, monkeypatch)
    engine.assess([Sample(FIRST, TEXTS), Sample(SECOND, TEXTS)], max_new_tokens=1)
    computed = [work.num_tokens for work in passes if all(job.logits_from is None for job, _ in work.rows)]
    tokens = sum(map(len, TEXTS))
    expected = []
    for once in map(len, (FIRST, SECOND)):
        again = computed[len(expected) + 3] - once
        assert SHARE * tokens <= again < SHARE * tokens + 16
        guided = [tokens + once, once, again + once]
        # In order: the ordinary prefill; "guided" that stores the documents, its question, and its tokens with the
        # prompt; "first_page" without and with overlays; "ape" and "none" twice. The first time warms up. At last
        # comes the question of the scores. The second sample has the same documents: overlays of the first one would
        # serve it.
        expected += 2 * [tokens + once, *guided, once, 32 + once, once, once, once, once] + [once]
    assert computed == expected


def test_no_hidden_states_are_kept(model, monkeypatch):
    engine = make_engine(model)
    passes = passes_of(engine, monkeypatch)
    engine.assess([Sample(FIRST, TEXTS, ANSWER)], max_new_tokens=1)
    assert any(job.logits for work in passes for job, _ in work.rows)
    assert all(job.hidden is None for work in passes for job, _ in work.rows)


def test_an_assessment_needs_no_more_positions_than_its_answers(model):
    needed = len(FIRST) + len(TEXTS[0]) + 3  # the last of 4 new tokens needs none
    found = make_engine(model, max_model_len=needed).assess([Sample(FIRST, TEXTS[:1])], max_new_tokens=4)
    assert found.levels[-1].answer_agreement == 1


@pytest.mark.parametrize("ends", [False, True])
def test_the_logits_of_a_stop_token_are_compared_and_those_after_the_last_token_are_not(model, monkeypatch, ends):
    engine = make_engine(model)
    answer = engine.generate(FIRST, TEXTS, mode="full", max_new_tokens=3, stop=[]).result()
    stop = answer[2] if ends else None
    monkeypatch.setattr(model.generation_config, "eos_token_id", stop)
    passes = passes_of(engine, monkeypatch)
    engine.assess([Sample(FIRST, TEXTS)], max_new_tokens=3)
    # A stop token may come earlier in the answer, too.
    length = answer.index(stop) if ends else 2
    scored = {tuple(job.tokens): len(job.logits[0]) for work in passes for job, _ in work.rows if job.logits}
    assert scored == {(*FIRST, *answer[:length]): length + 1}


def test_a_token_that_is_impossible_at_every_level_adds_nothing_to_the_divergence():
    impossible, other = (torch.tensor([[1.0, x, -torch.inf]]).log_softmax(-1) for x in (2.0, 3.0))
    divergences = []
    for given in (impossible, other):
        tally = _Tally()
        _compare(tally, impossible, given)
        divergences += tally.kl
    expected = torch.nn.functional.kl_div(other[:, :2], impossible[:, :2], log_target=True, reduction="sum")
    assert float(divergences[0]) == 0 and float(divergences[1]) == pytest.approx(float(expected))


def test_an_assessment_is_shown_as_a_table():
    rows = [
        LevelResult("none", 0.5, 0.25, 1.25, 3.0, 18.5, 20.125, 0.0),
        LevelResult("full", 1.0, 1.0, 0.0, 0.0, None, 271.0, 1.0),
    ]
    lines = Assessment(tuple(rows), 0.1).table().splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines[:3]}) == 1
    assert lines[1].split() == ["none", "50.0%", "25.0%", "1.2500", "3.0000", "18.50", "20.1", "0.0%"]
    assert lines[3] == "recommended for a mean KL of at most 0.1: none of the levels: serve this model with mode full"
    assert Assessment(tuple(rows), 2.0).table().endswith("at most 2: none")


def row_of(level: str, kl: float, ms: float, share: float) -> LevelResult:
    return LevelResult(level, 1.0, 1.0, kl, kl, None, ms, share)


def test_a_plot_has_each_level_and_the_frontier(tmp_path):
    pytest.importorskip("matplotlib")
    rows = (row_of("none", 0.5, 10, 0), row_of("first_page", 0.6, 20, 0.1), row_of("full", 0, 90, 1))
    Assessment(rows, 0.1).plot(tmp_path / "plot.svg")
    figure = figure_of(rows, 0.1)
    for axes, costs in zip(figure.axes, ([0, 10, 100], [10, 20, 90]), strict=True):
        assert [each.get_label() for each in axes.collections] == ["none", "first_page", "full"]
        points = np.concatenate([each.get_offsets() for each in axes.collections])
        np.testing.assert_allclose(points, list(zip(costs, [0.5, 0.6, 0], strict=True)))
        line, limit = axes.lines
        assert list(line.get_xdata()) == [costs[0], costs[2]] and list(limit.get_ydata()) == [0.1, 0.1]
    assert len(figure_of(rows, 9.0).axes[0].lines) == 1, "a far limit is not drawn"
    svg = io.BytesIO()
    Assessment(rows, 0.1).plot(svg)
    for drawn in (svg.getvalue(), (tmp_path / "plot.svg").read_bytes()):
        assert drawn.lstrip().startswith(b"<?xml") and b"<svg" in drawn
    with pytest.raises(lazyrope.SpecError, match=r"plot.abc'; its suffix must be one of .*\.svg"):
        Assessment(rows, 0.1).plot(tmp_path / "plot.abc")


def test_no_level_of_the_frontier_is_dearer_and_farther_than_another():
    points = [(2.0, 3.0), (0.0, 5.0), (1.0, 5.0), (3.0, 1.0), (2.0, 2.0), (4.0, 1.0)]
    assert frontier(points) == [(0.0, 5.0), (2.0, 2.0), (3.0, 1.0)]


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(lazyrope.SpecError, match="matplotlib, which draws the plot, is missing: pip install matplot"):
        Assessment((row_of("full", 0, 1, 1),), 0.1).plot("plot.svg")


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([], {}, "samples are empty; an assessment needs at least one"),
        ([{"prompt": [1]}], {}, r"samples\[0\] = .*; it must be a Sample, or a dict with prompt, documents and answer"),
        ([Sample([1], [])], {}, r"documents = \[\]; it must be at least one document of at least one token"),
        ([Sample([], [[1]])], {}, "prompt = .*; it must be at least one token"),
        (3, {}, r"samples\[0\] = 3; it must be a Sample"),
        ([], {"max_kl": -1}, "max_kl = -1; it must be a number of nats, at least 0"),
        ([], {"max_new_tokens": 0}, "max_new_tokens = 0; it must be an integer, at least 1"),
        ([], {"max_new_tokens": True}, "max_new_tokens = True; it must be an integer, at least 1"),
        ([Sample([1], "one two")], {}, r"documents = 'one two'; it must be a list of texts or of token ids"),
        ([Sample([1], None)], {}, "documents = None; it must be a list of texts or of token ids"),
    ],
)
def test_mistakes_are_refused(model, samples, options, message):
    engine = make_engine(model)
    with pytest.raises(lazyrope.SpecError, match=message):
        engine.assess(samples, **options)
    assert_nothing_is_held(engine)


def test_samples_and_counts_may_be_of_numpy(model):
    engine = make_engine(model)
    sample = Sample(np.array(FIRST), [np.array(text) for text in TEXTS], np.array(ANSWER))
    found = engine.assess([sample], max_new_tokens=np.int64(1))
    assert all(row.perplexity is not None for row in found.levels)
    assert len(engine.score(FIRST, num_logits=np.int64(2)).logits) == 2


def test_a_sample_that_does_not_fit_the_budget_is_an_error(model):
    engine = make_engine(model, budget=budget_of(model, 64))
    with pytest.raises(lazyrope.StoreError, match="the whole budget"):
        engine.assess([Sample(FIRST, TEXTS)])
    assert_nothing_is_held(engine)


def test_scores_have_the_logits_after_the_last_tokens(capped):
    engine = make_engine(capped, max_pass_tokens=40)
    prompt = TEXTS[1] + TEXTS[0]  # two passes
    given = engine.score(prompt, TEXTS[:1], num_logits=35)
    assert given.logits.shape == (35, 1024) and engine.score(prompt).logits is None
    cap = capped.config.final_logit_softcapping
    with torch.no_grad():
        expected = torch.tanh(capped.lm_head(given.prompt[-35:]).float() / cap) * cap
    assert (given.logits - expected).abs().max() < (0.5 if HAS_GPU else 1e-4)
    tokens = engine.generate(prompt, TEXTS[:1], max_new_tokens=1, stop=[]).result()
    assert HAS_GPU or tokens == [int(given.logits[-1].argmax())]
    for wrong in (71, True):
        with pytest.raises(
            lazyrope.SpecError, match=f"num_logits = {wrong}; it must be 0 to 70, the number of the prompt's tok"
        ):
            engine.score(prompt, num_logits=wrong)


def test_samples_may_be_text(model):
    from tests.python.test_docs_examples import Words

    class Known(Words):
        """A tokenizer of the same words, which the engine calls for prompts, documents and answers."""

    texts = ["one two three four", "five six seven"]
    engine = make_engine(model, tokenizer=Known(), recovery="prefix", prefix="answer briefly")
    assert len(engine.recovery.prefix) == 2
    found = engine.assess([Sample("what is one", texts, "two")], max_new_tokens=1)
    assert all(row.perplexity is not None and row.perplexity > 1 for row in found.levels)
    assert all(a.recomputed_share <= b.recomputed_share for a, b in pairwise(found.levels))
