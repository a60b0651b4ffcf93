"""Compares every level of recovery with an ordinary prefill, in answers to questions over documents."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import torch

from tools.quality.facts import Case
from tools.quality.levels import Level, Request
from tools.quality.reference import Reference


@dataclass
class Outcome:
    """One case at one level, beside an ordinary prefill."""

    kind: str
    first_kl: float  # KL of the answer's first token
    answer_kl: float  # mean over the tokens of the given answer
    same_first: bool  # the most likely first token is the same
    answer_loss: float  # cross entropy of the given answer, mean over its tokens
    share: float  # the documents' tokens that were computed again, over all


@dataclass
class Results:
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    full_loss: list[float] = field(default_factory=list)

    def add(self, level: str, outcome: Outcome) -> None:
        self.outcomes.setdefault(level, []).append(outcome)

    def summary(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Returns a row for each level, of one kind of questions or of all."""
        chosen = {
            level: [each for each in outcomes if kind in (None, each.kind)] for level, outcomes in self.outcomes.items()
        }
        gap = mean(each.answer_kl for each in chosen["none"])
        return [_row(level, outcomes, gap) for level, outcomes in chosen.items()]


def _row(level: str, outcomes: list[Outcome], gap: float) -> dict[str, Any]:
    kls = sorted(each.answer_kl for each in outcomes)
    return {
        "level": level,
        "cases": len(outcomes),
        "share": mean(each.share for each in outcomes),
        "kl_mean": mean(kls),
        "kl_p99": kls[math.ceil(0.99 * len(kls)) - 1],
        "gap_closed": 1 - mean(kls) / gap,
        "first_kl_mean": mean(each.first_kl for each in outcomes),
        "first_token_agreement": mean(each.same_first for each in outcomes),
        "answer_perplexity": math.exp(mean(each.answer_loss for each in outcomes)),
    }


def compare(
    reference: Reference, levels: Sequence[Level], prefix: Sequence[int], cases: Iterable[Case], seed: int
) -> Results:
    """Answers every case by an ordinary prefill and at every level. The given answer is fed token by token."""
    results = Results()
    for number, case in enumerate(cases):
        prompt = [*case.prompt, *case.answer[:-1]]
        context = [*prefix, *(token for document in case.documents for token in document)]
        logits, values = reference.full([*context, *prompt])
        expected = _log_probabilities(logits, case)
        results.full_loss.append(_loss(expected, case))
        requests = {}
        for behind in sorted({level.behind_prefix for level in levels}):
            stored = reference.store(prefix, case.documents, behind_prefix=behind)
            # The pages are chosen for the question, before any token of the answer is known.
            mass = reference.read(stored, case.prompt, wants_mass=True).layer_mass
            first = reference.read(stored, prompt)
            first.layer_mass = mass
            requests[behind] = Request(stored, prompt, first, values, random.Random(f"{seed} {number}"))
        for level in levels:
            answer, share = level.answer(reference, requests[level.behind_prefix])
            results.add(level.name, _outcome(case, expected, _log_probabilities(answer.logits, case), share))
    return results


def _log_probabilities(logits: torch.Tensor, case: Case) -> torch.Tensor:
    """Returns log probabilities [answer tokens, vocabulary], each before its token of the answer."""
    return logits[-len(case.answer) :].log_softmax(-1)


def _loss(log_probabilities: torch.Tensor, case: Case) -> float:
    answer = torch.tensor(case.answer, device=log_probabilities.device)
    return float(-log_probabilities.gather(1, answer[:, None]).mean())


def _outcome(case: Case, expected: torch.Tensor, found: torch.Tensor, share: float) -> Outcome:
    probability = expected.exp()
    kl = torch.where(probability > 0, probability * (expected - found), 0.0).sum(-1)  # a logit may be minus infinity
    same = bool(expected[0].argmax() == found[0].argmax())
    return Outcome(case.kind, float(kl[0]), float(kl.mean()), same, _loss(found, case), share)
