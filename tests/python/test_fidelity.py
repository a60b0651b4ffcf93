"""Compares lazy reading with fp32 on a real model and real text. Limits are relative to the error of eager bf16."""

from __future__ import annotations

import copy
import math
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import attach

from tests.conftest import ARCH, HAS_GPU
from tests.support.serving import as_dtype, random_tokens
from tools.rag import fidelity, reference, texts
from tools.rag.__main__ import compared
from tools.rag.model import find_gguf, load_smollm2, tiny_llama

ROOT = Path(__file__).parents[2]
DEVICE = "cuda" if HAS_GPU else "cpu"


@pytest.fixture(scope="module")
def comparison() -> fidelity.Comparison:
    try:
        find_gguf()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    exact, tokenizer = load_smollm2(torch.float32, DEVICE, cache=ROOT / "build" / "rag")
    model, _ = load_smollm2(torch.bfloat16, DEVICE, cache=ROOT / "build" / "rag")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        engine = attach(model, tokenizer=tokenizer, budget="1GiB")
    return fidelity.Comparison(engine, exact, model)


def short_texts(comparison: fidelity.Comparison, count: int) -> list[texts.Document]:
    return texts.documents(comparison.engine.tokenizer, count, max_tokens=250, seed=5)


def test_lazy_reading_has_the_error_of_bf16(comparison):
    """KL and agreement are within their limits, and perplexity is that of fp32, for documents in two orders."""
    counts, each, prompt_tokens = ((1, 2, 4, 8, 16), 5, 512) if HAS_GPU else ((1, 2), 2, 128)
    for case in fidelity.cases(short_texts(comparison, 40), counts, each, prompt_tokens=prompt_tokens):
        comparison.add(case)
    result = comparison.result
    summary = result.summary()
    print(fidelity.ALL, {name: summary[name][fidelity.ALL] for name in ("lazy", "recompute", fidelity.BASELINE)})
    assert result.complaints("lazy") == result.complaints("recompute") == []
    assert {fidelity.DOCUMENTS, fidelity.PROMPTS, fidelity.MOVED} <= set(summary["lazy"])
    lazy, fp32 = (summary[name][fidelity.ALL]["perplexity"] for name in ("lazy", "fp32 eager"))
    assert fp32 < 40 and abs(lazy / fp32 - 1) < 0.01


def test_documents_in_the_wrong_order_exceed_the_limits(comparison):
    """Rows computed for another order of the documents exceed the limits."""
    one, other, follows = (document.tokens[:120] for document in short_texts(comparison, 3))
    exact = reference.hidden_states(comparison.exact, follows, [one, other])[-120:]
    eager = reference.hidden_states(comparison.eager, follows, [one, other])[-120:]
    wrong = reference.hidden_states(comparison.eager, follows, [other, one])[-120:]
    following = torch.full((120,), -1, device=exact.device)
    result = fidelity.Fidelity()
    with torch.no_grad():
        exact_logits = comparison.exact.lm_head(exact)
        for name, rows in (("lazy", wrong), (fidelity.BASELINE, eager)):
            tally = fidelity.compare(exact_logits, comparison.eager.lm_head(rows), following)
            result.add(name, fidelity.PROMPTS, tally)
    assert any("mean KL of lazy" in complaint for complaint in result.complaints())


@pytest.mark.sample(0)
def test_greedy_texts_differ_only_at_near_ties(comparison):
    engine = comparison.engine
    documents = texts.documents(engine.tokenizer, max_tokens=250, seed=7, sources=["heapq", "bisect", "json"])
    questions = texts.questions_for(documents)[: 12 if HAS_GPU else 3]
    assert questions
    requests = []
    for question in questions:
        chosen = [d.tokens for d in documents if d.source == question.source][:3]
        requests.append((question.text, texts.prompt_of(question, engine.tokenizer), chosen))
    apart = fidelity.compare_texts(comparison, requests, max_new_tokens=24 if HAS_GPU else 12)
    if not comparison.result.margin_errors:  # if this test runs alone
        comparison.add(next(fidelity.cases(short_texts(comparison, 9), [2], 5)))
    noise = comparison.result.noise()
    assert [part for part in apart if part.margin > noise] == []


class Numbers:
    """A tokenizer for tests that never read the text."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return str(tokens)


def test_the_kernels_have_the_error_of_bf16():
    """Makes the comparison of `make rag` with a tiny model; without a GPU, kernels run in the emulator."""
    model = tiny_llama(dtype=torch.bfloat16, device=DEVICE, seed=1)
    exact = as_dtype(copy.deepcopy(model), torch.float32)
    engine = attach(model, tokenizer=Numbers(), budget="64MiB", arch=ARCH)
    rng = random.Random(1)
    corpus = [texts.Document(str(i), "", random_tokens(rng, rng.randint(5, 50)), "random") for i in range(12)]
    requests = [(str(i), random_tokens(rng, 6), [d.tokens for d in rng.sample(corpus, 3)]) for i in range(2)]
    cases = list(fidelity.cases(corpus, (1, 3, 8), 1, prompt_tokens=32))
    result = compared(fidelity.Comparison(engine, exact, model), cases, requests, max_new_tokens=3)
    assert result["complaints"] == [] and result["backend"] == engine.backend != "eager"
    assert set(result["systems"]["lazy"]) == {fidelity.ALL, fidelity.DOCUMENTS, fidelity.PROMPTS, fidelity.MOVED}
    assert result["systems"]["lazy"][fidelity.ALL]["tokens"] > 300 and len(result["answers"]) == len(requests)


def rows_of(*kl: float) -> fidelity.Tally:
    return fidelity.Tally([torch.tensor(kl, dtype=torch.float64)], [torch.ones(len(kl))], [torch.zeros(len(kl))])


def result_of(ours: fidelity.Tally, base: fidelity.Tally) -> fidelity.Fidelity:
    result = fidelity.Fidelity()
    result.add("lazy", fidelity.PROMPTS, ours)
    result.add(fidelity.BASELINE, fidelity.PROMPTS, base)
    return result


def test_complaints_begin_at_the_limits():
    base = [1.0, 2.0, 3.0] * 1000
    assert result_of(rows_of(*[1.24 * x for x in base]), rows_of(*base)).complaints() == []
    found = result_of(rows_of(*[1.26 * x for x in base]), rows_of(*base)).complaints()
    assert len(found) == 2 and found[0].startswith("all: mean KL of lazy 2.520e+00, of bf16 eager 2.000e+00")
    worse = rows_of(*base)
    worse.agrees[0][:16] = 0
    assert len(result_of(worse, rows_of(*base)).complaints()) == 1  # 16 of 3000 rows: too few for one kind of row


def test_compare_computes_kl_agreement_and_perplexity():
    exact = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    given = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    tally = fidelity.compare(exact, given, torch.tensor([1, -1]))
    p = math.exp(2) / (math.exp(2) + 2)
    q = 1 / (math.exp(2) + 2)
    assert tally.all_of("kl").tolist() == pytest.approx([(p - q) * 2, 0.0])
    assert tally.all_of("agrees").tolist() == [0.0, 1.0]
    assert tally.summary()["perplexity"] == pytest.approx(1 / p) and tally.summary()["perplexity_tokens"] == 1
    assert fidelity.margins(exact, given).tolist() == pytest.approx([4.0, 0.0])


def _ids(count: int) -> Any:
    return list(range(count))


def test_cases_have_each_set_of_documents_in_both_orders():
    corpus = [texts.Document(str(n), "", _ids(n), "s") for n in (10, 20, 30, 40, 50)]
    found = list(fidelity.cases(corpus, [1, 3, 4], 1, prompt_tokens=12))
    assert [len(case.documents) for case in found] == [1, 3, 3, 4, 4]
    assert found[1].documents == found[2].documents[::-1] and found[1].prompt == found[2].prompt
    assert all(case.prompt not in case.documents and len(case.prompt) <= 12 for case in found)
    limited = list(fidelity.cases(corpus, [4], 1, prompt_tokens=12, limit=60))
    assert limited and all(case.context <= 60 for case in limited)
