"""The slow reference of the levels of recovery agrees with transformers where both compute the same."""

from __future__ import annotations

import argparse
import random
import re

import pytest
import torch

from tools.quality import facts
from tools.quality.__main__ import chosen_levels
from tools.quality.levels import (
    Level,
    Request,
    all_levels,
    at_random,
    deviating,
    first_pages,
    first_tokens,
    guided,
    guided_by_both,
    pages_of,
)
from tools.quality.measure import _outcome, compare
from tools.quality.reference import Reference, Temperature
from tools.rag.model import tiny_llama
from tools.rag.reference import attending_by

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
    with attending_by(model, "eager"):
        attentions = model(ids, output_attentions=True).attentions
    expected = sum(each[0, :, -len(PROMPT) :].sum((0, 1)) for each in attentions)
    stored = reference.store(PREFIX, DOCUMENTS[:1], behind_prefix=True)
    found = reference.read(stored, PROMPT, wants_mass=True).mass()
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


def test_all_rules_choose_as_many_tokens_as_guided_where_first_pages_exceed_the_share(reference):
    request = request_of(reference, [document[:20] for document in DOCUMENTS] * 3)
    total = len(request.stored.ids) - len(PREFIX)
    count = len(guided(0.1)(request))
    assert count == 8 * 16 > 0.2 * total
    rules = (guided_by_both(0.1), at_random(0.1), deviating(0.1), first_pages(0.1))
    assert [len(choose(request)) for choose in rules] == len(rules) * [count]


def test_first_pages_are_as_many_of_each_document(reference):
    request = request_of(reference)
    second, third = request.stored.documents()[1:]
    chosen = first_pages(SHARE)(request)
    assert len(chosen) == len(guided(SHARE)(request))
    of_second, of_third = ([i for i in chosen if i in document] for document in (second, third))
    assert of_second == [*second][: len(of_second)] and of_third == [*third][: len(of_third)]
    assert len(of_second) == len(second) or abs(len(of_second) - len(of_third)) <= 16


@pytest.mark.parametrize("behind_prefix", [False, True])
@pytest.mark.parametrize("prefix", [[], PREFIX], ids=["no prefix", "prefix"])
def test_all_pages_together_make_an_ordinary_prefill(reference, prefix, behind_prefix):
    """The first document is among them only if there is a prefix that it has not seen."""
    stored = reference.store(prefix, DOCUMENTS, behind_prefix=behind_prefix)
    every = [i for page in pages_of(stored) for i in page]
    assert (every[0] > len(prefix)) == (behind_prefix or not prefix)
    expected = full_logits(reference, prefix=prefix)
    torch.testing.assert_close(reference.read(stored, PROMPT, every).logits, expected, atol=1e-3, rtol=1e-3)
    request = Request(stored, PROMPT, reference.read(stored, PROMPT), [], random.Random(1))
    assert first_tokens(100)(request) == every


def test_guided_pages_are_those_with_the_most_mass(reference):
    request = request_of(reference)
    request.first.layer_mass = torch.zeros(2, len(request.stored.ids))
    one, other = (request.stored.documents()[2][begin : begin + 16] for begin in (32, 48))
    request.first.layer_mass[0, one.start] = 1.0
    request.first.layer_mass[1, other.start] = 2.0
    count = len(guided(0, 16)(request)) + 16
    share = count / (len(request.stored.ids) - len(PREFIX))
    assert set(other) <= set(guided(share)(request)) and not set(one) & set(guided(share)(request))
    assert set(one) <= set(guided(share, layers=1)(request)) and not set(other) & set(guided(share, layers=1)(request))


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


class WordTokenizer:
    """Each word is a token, so that texts can be read back."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.ids: dict[str, int] = {}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        for word in text.split():
            if word not in self.ids:
                self.ids[word] = len(self.words)
                self.words.append(word)
        return [self.ids[word] for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.words[i] for i in ids)


NAME = r"(\w+ \w+)"
FORMS = {
    "two documents": (
        r"In which town does the leader of the (\w+) team work\?",
        rf"The leader of the (\w+) team is {NAME}\.",
        rf"{NAME} works in the town of (\w+)\.",
    ),
    "an earlier name": (
        rf"To which town did {NAME} move\?",
        rf"The last owner of the (\w+) was {NAME}\.",
        r"The owner of the (\w+) later moved to the town of (\w+)\.",
    ),
}


@pytest.fixture(scope="module")
def made() -> list[tuple[facts.Case, list[str]]]:
    """Cases with the texts of their documents."""
    tokenizer = WordTokenizer()
    cases = list(facts.cases(tokenizer, 24, seed=3, documents=(2, 5), tokens=(30, 60), limit=200))
    assert cases == list(facts.cases(tokenizer, 24, seed=3, documents=(2, 5), tokens=(30, 60), limit=200))
    assert [case.kind for case in cases[:6]] == [*facts.KINDS, *facts.KINDS]
    for case in cases:
        assert tokenizer.decode(case.answer) in case.text
    return [(case, [tokenizer.decode(document) for document in case.documents]) for case in cases]


@pytest.mark.parametrize("kind", FORMS)
def test_an_answer_needs_two_sentences_of_documents_of_their_own(made, kind):
    question, first, second = FORMS[kind]
    orders = set()
    for case, texts in made:
        if case.kind != kind:
            continue
        asked = re.match(question, case.text).group(1)
        firsts, seconds = (
            [(i, *found) for i, text in enumerate(texts) for found in re.findall(form, text)]
            for form in (first, second)
        )
        # The first sentence of a pair leads from what is asked to the second one, which has the town.
        known = 1 if kind == "two documents" else 2
        [(one, *pair)] = [each for each in firsts if each[known] == asked]
        [(other, _, town)] = [each for each in seconds if each[1] == pair[2 - known]]
        assert one != other and case.text.endswith(f"{town}.")
        orders.add(one < other)
        rivals = [each for each in firsts + seconds if each[0] not in (one, other)]
        assert len(rivals) == len(firsts + seconds) - 2 == 4, "each document with a needed sentence has that one alone"
        assert len({each[2] for each in seconds}) == 3 and len({each[1:] for each in firsts}) == 3
        assert all(each[known] != asked for each in firsts if each in rivals)
    assert orders == ({False, True} if kind == "two documents" else {True})


def test_an_answer_of_one_document_is_in_one(made):
    for case, texts in made:
        if case.kind == "one document":
            [who] = [found for text in texts for found in re.findall(rf"The \w+ of \w+ was made by {NAME}\.", text)]
            assert case.text.endswith(f" {who}.")


def test_the_program_measures_chosen_levels_and_none(capsys):
    parser = argparse.ArgumentParser()
    given = argparse.Namespace(share=SHARE, levels=["prefix + ape", "guided 30% by 4 layers"])
    assert [level.name for level in chosen_levels(parser, given)] == ["none", "guided 30% by 4 layers", "prefix + ape"]
    given.levels = None
    assert [level.name for level in chosen_levels(parser, given)] == [level.name for level in all_levels(SHARE)]
    given.levels = ["nothing"]
    with pytest.raises(SystemExit):
        chosen_levels(parser, given)
    assert "--levels: 'nothing'; it must be one of none, first_page 16, " in capsys.readouterr().err
