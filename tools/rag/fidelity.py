"""Checks a real model's answers through lazyrope against an fp32 eager reference.

The bf16 eager model shows how much of the error is rounding.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lazyrope.transformers import Engine

from tools.rag import reference
from tools.rag.texts import Document

ROWS = 512  # rows of logits at a time
KL_LIMIT = 1.25  # limit of the mean KL, as a multiple of that of the bf16 eager model
AGREEMENT_LIMIT = 0.005  # the agreement may be this much below that of the bf16 eager model
TRAINED_CONTEXT = 8192
SIGMAS = 3.0  # standard errors by which the mean of one kind of rows may exceed a limit
BASELINE = "bf16 eager"

# Kinds of rows.
ALL = "all"
DOCUMENTS = "documents"  # tokens that see only their own document
PROMPTS = "prompts"  # tokens that see all documents
MOVED = "prompts, documents moved"  # prompts after documents that were stored for another order
BEYOND = "prompts, beyond 8k"  # contexts longer than the model was trained for, where perplexity says nothing


@dataclass(frozen=True)
class Case:
    """Documents in an order, and text that follows them."""

    documents: list[list[int]]
    prompt: list[int]

    @property
    def context(self) -> int:
        return sum(map(len, self.documents)) + len(self.prompt)


@dataclass
class Tally:
    """The values of one system and one kind of rows, one value per row."""

    kl: list[torch.Tensor] = field(default_factory=list)  # divergence from the reference, nats
    agrees: list[torch.Tensor] = field(default_factory=list)  # whether the most probable token is the reference's
    nll: list[torch.Tensor] = field(default_factory=list)  # the next token's, nats; NaN where it is unknown

    def all_of(self, name: str) -> torch.Tensor:
        return torch.cat([torch.empty(0, dtype=torch.float64), *getattr(self, name)])

    def add(self, other: Tally) -> None:
        self.kl += other.kl
        self.agrees += other.agrees
        self.nll += other.nll

    def summary(self) -> dict[str, float]:
        kl, known = self.all_of("kl"), self.all_of("nll")
        known = known[~known.isnan()]
        result = {"tokens": len(kl), "mean_kl": float(kl.mean()), "agreement": float(self.all_of("agrees").mean())}
        if len(known) > 0:
            result |= {"perplexity": math.exp(known.mean()), "perplexity_tokens": len(known)}
        return result


@dataclass
class Fidelity:
    """Tallies by system ("lazy", "bf16 eager", ...) and kind of rows."""

    tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)
    margin_errors: list[float] = field(default_factory=list)  # errors of bf16 eager, one per row

    def add(self, system: str, kind: str, tally: Tally) -> None:
        for name in (ALL, kind):
            self.tallies.setdefault(system, {}).setdefault(name, Tally()).add(tally)

    def noise(self) -> float:
        """Returns the 99th percentile of how far bf16 moves the distance between the reference's two best logits.

        Only rows within the trained context count.
        """
        errors = sorted(self.margin_errors)
        return errors[int(0.99 * len(errors))] if errors else 0.0

    def complaints(self, system: str = "lazy") -> list[str]:
        """Returns a sentence for each limit that `system` does not meet.

        All rows together must meet the limits. One kind of rows may exceed them by what chance explains.
        """
        found = []
        for kind, base in self.tallies[BASELINE].items():
            ours = self.tallies[system][kind]
            excess = ours.all_of("kl") - KL_LIMIT * base.all_of("kl")
            if _is_above(excess, 0.0, kind):
                found.append(
                    f"{kind}: mean KL of {system} {ours.all_of('kl').mean():.3e}, of {BASELINE} "
                    f"{base.all_of('kl').mean():.3e}: more than {KL_LIMIT}x"
                )
            if _is_above(base.all_of("agrees") - ours.all_of("agrees"), AGREEMENT_LIMIT, kind):
                found.append(
                    f"{kind}: {system} agrees in {ours.all_of('agrees').mean():.2%}, {BASELINE} in "
                    f"{base.all_of('agrees').mean():.2%}"
                )
        return found

    def summary(self) -> dict[str, Any]:
        return {name: {kind: t.summary() for kind, t in parts.items()} for name, parts in self.tallies.items()}


def _is_above(values: torch.Tensor, limit: float, kind: str) -> bool:
    allowance = 0.0 if kind == ALL else SIGMAS * float(values.std()) / math.sqrt(len(values))
    return not float(values.mean()) <= limit + allowance


def compare(exact: torch.Tensor, given: torch.Tensor, following: torch.Tensor) -> Tally:
    """Compares logits with those of the reference.

    Args:
        exact, given: logits [rows, vocabulary] of the reference and of the system.
        following: [rows], the next token of the text; -1 where it is unknown.
    """
    log_p, log_q = exact.float().log_softmax(-1), given.float().log_softmax(-1)
    nll = -log_q.gather(-1, following.clamp_min(0)[:, None])[:, 0]
    values = (
        (log_p.exp() * (log_p - log_q)).sum(-1),
        exact.argmax(-1) == given.argmax(-1),
        nll.masked_fill(following < 0, torch.nan),
    )
    return Tally(*([value.double().cpu()] for value in values))


def margins(exact: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Returns [rows]: the error of `given` in the distance between the two best logits of `exact`."""
    two = exact.float().topk(2, dim=-1)
    theirs = given.float().gather(-1, two.indices)
    return ((theirs[:, 0] - theirs[:, 1]) - (two.values[:, 0] - two.values[:, 1])).abs()


class Comparison:
    """Runs cases through the engine and both eager models, which must have the same weights."""

    def __init__(self, engine: Engine, exact: Any, eager: Any, modes: Sequence[str] = ("lazy", "recompute")) -> None:
        """
        Args:
            engine: the engine of the model in bf16.
            exact: the model in fp32.
            eager: the model in bf16.
            modes: the modes of the engine to compare.
        """
        self.engine, self.exact, self.eager, self.modes = engine, exact, eager, modes
        self.result = Fidelity()

    def add(self, case: Case) -> None:
        exact = _split(reference.hidden_states(self.exact, case.prompt, case.documents), case)
        eager = _split(reference.hidden_states(self.eager, case.prompt, case.documents), case)
        rows: dict[str, tuple[Any, list[torch.Tensor | None]]] = {BASELINE: (self.eager, [*eager])}
        moved = False
        for mode in self.modes:
            scores = self.engine.score(case.prompt, case.documents, mode=mode)
            moved |= mode == "lazy" and None in scores.documents
            rows[mode] = (self.engine.model, [*scores.documents, scores.prompt])
        beyond = case.context > TRAINED_CONTEXT
        prompts = BEYOND if beyond else MOVED if moved else PROMPTS
        for i, text in enumerate([*case.documents, case.prompt]):
            parts = {name: (model, given[i]) for name, (model, given) in rows.items()}
            # A document that was already stored has no states here. Its rows were counted when it was computed.
            if all(part is not None for _, part in parts.values()):
                self._add_rows(DOCUMENTS if i < len(case.documents) else prompts, exact[i], parts, text, not beyond)

    def _add_rows(
        self, kind: str, exact: torch.Tensor, parts: dict[str, tuple[Any, Any]], text: list[int], is_known: bool
    ) -> None:
        following = torch.tensor([*text[1:], -1] if is_known else [-1] * len(text), device=exact.device)
        for at in range(0, len(exact), ROWS):
            rows = slice(at, at + ROWS)
            with torch.no_grad():
                reference = self.exact.lm_head(exact[rows])
                given = {name: model.lm_head(part[rows]) for name, (model, part) in parts.items()}
            if is_known:
                self.result.margin_errors += margins(reference, given[BASELINE]).tolist()
            for name, logits in (given | {"fp32 eager": reference}).items():
                self.result.add(name, kind, compare(reference, logits, following[rows]))


def _split(hidden: torch.Tensor, case: Case) -> list[torch.Tensor]:
    return list(hidden.split([*map(len, case.documents), len(case.prompt)]))


def cases(
    texts: Sequence[Document],
    counts: Sequence[int],
    seed: int,
    *,
    prompt_tokens: int = 256,
    move: bool = True,
    limit: int = 1 << 30,
) -> Iterator[Case]:
    """Yields a case of each number of documents, and with `move` another one of the same documents in reverse order.

    Documents are dropped until the context has at most `limit` tokens. The prompt is text of other documents.
    """
    rng = random.Random(seed)
    for count in counts:
        shuffled = rng.sample(list(texts), len(texts))
        chosen, others = shuffled[:count], shuffled[count:]
        prompt = [token for document in others for token in document.tokens][:prompt_tokens]
        while sum(len(document.tokens) for document in chosen) + len(prompt) > limit:
            chosen.pop()
        yield Case([document.tokens for document in chosen], prompt)
        if move and len(chosen) > 1:
            yield Case([document.tokens for document in reversed(chosen)], prompt)


@dataclass(frozen=True)
class Divergence:
    """The first difference of two greedy texts."""

    question: str
    index: int
    tokens: tuple[int, int]
    margin: float  # the reference's best logit there minus its lower logit of these two tokens


def compare_texts(
    comparison: Comparison,
    requests: Sequence[tuple[str, list[int], list[list[int]]]],
    *,
    modes: tuple[str, str] = ("lazy", "recompute"),
    max_new_tokens: int = 64,
    progress: Callable[[str, str], object] = lambda question, answer: None,
) -> list[Divergence]:
    """Generates greedy texts of both modes for each (question, prompt, documents), and returns where they differ."""
    engine = comparison.engine
    both = [[engine.generate(p, d, mode=mode, max_new_tokens=max_new_tokens) for _, p, d in requests] for mode in modes]
    engine.run()
    found = []
    for (question, prompt, documents), a, b in zip(requests, *both, strict=True):
        first, second = a.result(), b.result()
        progress(question, engine.tokenizer.decode(first, skip_special_tokens=True))
        if first == second:
            continue
        at = _first_difference(first, second)
        hidden = reference.hidden_states(comparison.exact, [*prompt, *first[:at]], documents)[-1:]
        with torch.no_grad():
            logits = comparison.exact.lm_head(hidden)[0].float()
        end = engine.model.config.eos_token_id
        pair = ([*first, end][at], [*second, end][at])
        found.append(Divergence(question, at, pair, float(logits.max() - logits[list(pair)].min())))
    return found


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
