"""The slow reference of the levels of recovery agrees with transformers where both compute the same."""

from __future__ import annotations

import random

import pytest
import torch

from tools.quality import facts
from tools.quality.levels import (
    Level,
    Request,
    all_levels,
    at_random,
    deviating,
    first_tokens,
    guided,
    guided_by_both,
)
from tools.quality.measure import _outcome, compare
from tools.quality.reference import Reference, Temperature
from tools.rag.model import tiny_llama

PREFIX, PROMPT = [3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5]
DOCUMENTS = [random.Random(length).choices(range(100), k=length) for length in (40, 23, 70)]
SHARE = 0.3


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(tiny_llama())


def full_logits(reference: Reference, documents=DOCUMENTS, prefix=PREFIX) -> torch.Tensor:
    ids = [*prefix, *(token for document in documents for token in document), *PROMPT]
    return reference.model(torch.tensor([ids])).logits[0, -len(PROMPT) :].detach()


def request_of(reference: Reference, documents=DOCUMENTS) -> Request:
    stored = reference.store(PREFIX, documents, behind_prefix=True)
    first = reference.read(stored, PROMPT, wants_mass=True)
    ids = [*stored.ids, *PROMPT]
    return Request(stored, PROMPT, first, reference.full(ids)[1], random.Random(1))


def test_an_ordinary_prefill_is_that_of_transformers(reference):
    ids = [*PREFIX, *DOCUMENTS[0], *PROMPT]
    logits, values = reference.full(ids)
    torch.testing.assert_close(logits, reference.model(torch.tensor([ids])).logits[0].detach(), atol=1e-4, rtol=1e-4)
    assert len(values) == reference.model.config.num_hidden_layers


@pytest.mark.parametrize("behind_prefix", [False, True])
def test_to_compute_every_token_again_is_an_ordinary_prefill(reference, behind_prefix):
    stored = reference.store(PREFIX, DOCUMENTS, behind_prefix=behind_prefix)
    again = range(len(PREFIX), len(stored.ids))
    found = reference.read(stored, PROMPT, again).logits
    torch.testing.assert_close(found, full_logits(reference), atol=1e-3, rtol=1e-3)
    alone = reference.read(stored, PROMPT).logits
    assert (alone - found).abs().max() > 0.1, "documents that were computed alone make no difference"


def test_one_document_behind_the_prefix_needs_nothing_again(reference):
    stored = reference.store(PREFIX, DOCUMENTS[:1], behind_prefix=True)
    found = reference.read(stored, PROMPT).logits
    torch.testing.assert_close(found, full_logits(reference, DOCUMENTS[:1]), atol=1e-3, rtol=1e-3)


def test_the_last_documents_tokens_alone_suffice_where_only_they_see_another_document(reference):
    stored = reference.store(PREFIX, DOCUMENTS[:2], behind_prefix=True)
    found = reference.read(stored, PROMPT, stored.documents()[1]).logits
    torch.testing.assert_close(found, full_logits(reference, DOCUMENTS[:2]), atol=1e-3, rtol=1e-3)


def test_the_mass_is_that_of_the_models_own_attention(reference):
    ids = torch.tensor([[*PREFIX, *DOCUMENTS[0], *PROMPT]])
    model = reference.model
    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    attentions = model(ids, output_attentions=True).attentions
    model.config._attn_implementation = before
    expected = sum(each[0, :, -len(PROMPT) :].sum((0, 1)) for each in attentions)
    stored = reference.store(PREFIX, DOCUMENTS[:1], behind_prefix=True)
    found = reference.read(stored, PROMPT, wants_mass=True).mass
    torch.testing.assert_close(found, expected[: len(found)], atol=1e-3, rtol=1e-3)


def test_ape_without_temperature_and_scale_changes_nothing(reference):
    stored = reference.store(PREFIX, DOCUMENTS, behind_prefix=True)
    plain = reference.read(stored, PROMPT).logits
    same = reference.read(stored, PROMPT, temperature=Temperature(1.0, 1.0)).logits
    torch.testing.assert_close(same, plain, atol=1e-3, rtol=1e-3)
    other = reference.read(stored, PROMPT, temperature=Temperature(0.5, 0.9)).logits
    assert (other - plain).abs().max() > 1e-2


def test_levels_choose_whole_pages_up_to_their_share(reference):
    request = request_of(reference)
    total = sum(map(len, DOCUMENTS))
    for choose in (guided(SHARE), guided_by_both(SHARE), at_random(SHARE), deviating(SHARE)):
        chosen = choose(request)
        assert SHARE * total <= len(chosen) < SHARE * total + 16
        assert chosen == sorted(set(chosen))
        # Nothing stands before the first document but the prefix, which it has seen.
        assert min(chosen) >= len(PREFIX) + len(DOCUMENTS[0])
    second, third = request.stored.documents()[1:]
    assert first_tokens(16)(request) == [*second[:16], *third[:16]]
    assert {*second[:16], *third[:16]} <= set(guided(SHARE)(request))


def test_guided_pages_are_those_with_the_most_mass(reference):
    request = request_of(reference)
    request.first.mass = torch.zeros(len(request.stored.ids))
    page = request.stored.documents()[2][32:48]
    request.first.mass[page.start] = 1.0
    assert set(page) <= set(guided(SHARE)(request))


def test_outcomes_of_all_levels_are_summed_up(reference):
    cases = [facts.Case(kind, DOCUMENTS, PROMPT, [7, 8], "text") for kind in ("one document", "two documents")]
    levels = [Level("everything", True, lambda request: [*range(len(PREFIX), len(request.stored.ids))]), *all_levels()]
    results = compare(reference, levels, PREFIX, cases, seed=1)
    rows = {row["level"]: row for row in results.summary()}
    assert rows["none"]["gap_closed"] == 0 and rows["none"]["share"] == 0 and rows["none"]["kl_mean"] > 1e-3
    assert rows["everything"]["kl_mean"] == pytest.approx(0, abs=1e-5)
    assert rows["everything"]["gap_closed"] == pytest.approx(1, abs=1e-2) and rows["everything"]["share"] == 1
    assert all(row["cases"] == 2 for row in rows.values())


def test_a_token_that_is_impossible_at_every_level_adds_nothing_to_the_divergence():
    case = facts.Case("one document", DOCUMENTS, PROMPT, [1], "text")
    full, level = (torch.tensor([[1.0, x, -torch.inf]]).log_softmax(-1) for x in (2.0, 3.0))
    expected = torch.nn.functional.kl_div(level[:, :2], full[:, :2], log_target=True, reduction="sum")
    assert _outcome(case, full, full, 0.0).answer_kl == 0
    assert _outcome(case, full, level, 0.0).answer_kl == pytest.approx(float(expected))


def test_documents_have_the_facts_in_the_order_that_the_question_needs():
    class Words:
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [len(word) for word in text.split()]

    made = list(facts.cases(Words(), 6, seed=3, documents=(3, 4), tokens=(30, 60), limit=200))
    assert [case.kind for case in made] == [*facts.KINDS, *facts.KINDS]
    for case in made:
        assert 2 <= len(case.documents) <= 4 and case.answer
    again = list(facts.cases(Words(), 6, seed=3, documents=(3, 4), tokens=(30, 60), limit=200))
    assert made == again
