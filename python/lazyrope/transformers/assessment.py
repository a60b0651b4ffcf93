"""Measures how near the answers of each level of recovery come to those of an ordinary prefill, on given samples."""

from __future__ import annotations

import dataclasses
import math
import os
import secrets
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import torch

from ..errors import SpecError
from ..recovery import Recovery
from .arguments import as_int, check, check_documents, is_finite
from .frontier import figure_of, format_of
from .memories import can_measure

if TYPE_CHECKING:
    from .engine import Engine
    from .generation import Generation

Tensor = Any
FULL = "full"
# The parameters with which a level stores documents and computes nothing again.
NOTHING_AGAIN = {"first_page": {"overlay_tokens": 0}, "guided": {"overlay_tokens": 0, "share": 0}}


@dataclass(frozen=True)
class Sample:
    """A question over documents.

    Attributes:
        prompt: The request's own text, as of :meth:`Engine.generate`.
        documents: The documents that it sees, as of :meth:`Engine.generate`.
        answer: The right answer, as token ids or text, for the perplexity. None: there is none.
    """

    prompt: str | Sequence[int]
    documents: Sequence[str | Sequence[int]]
    answer: str | Sequence[int] | None = None


@dataclass(frozen=True)
class LevelResult:
    """One level's distance from an ordinary prefill, and its cost, over all samples.

    The reference of a sample is the greedy answer of the ordinary prefill. Each level is given the tokens of that
    answer, and its logits before each of them are compared. If the answer ended by a stop token, the logits before that
    token are compared, too.

    Attributes:
        level: The level of recovery, or "full" for the reference itself.
        first_token_agreement: The share of samples whose most probable first token is the reference's.
        answer_agreement: The share of samples whose most probable token is the reference's along the whole answer. Up
            to rounding, these are the samples with the same greedy answer.
        mean_kl: The mean of KL(reference || level) over all compared logits, in nats.
        p99_kl: The 99th percentile of the same, in nats.
        perplexity: The perplexity of the given answers, or None if no sample has one.
        first_token_ms: The median time from the arrival of a request to its first token, in milliseconds. All documents
            are stored, and what a level computes again is not.
        recomputed_share: The tokens that are computed again, as a share of all tokens before the prompts. The pass of
            the question at level "guided" does not count.
    """

    level: str
    first_token_agreement: float
    answer_agreement: float
    mean_kl: float
    p99_kl: float
    perplexity: float | None
    first_token_ms: float
    recomputed_share: float


@dataclass(frozen=True)
class Assessment:
    """The result of :meth:`Engine.assess`.

    Attributes:
        levels: A result for each level, in the order of the cost, and one for the ordinary prefill.
        max_kl: The greatest mean KL that was allowed, in nats.
        recommended: The first level within max_kl, or None if only an ordinary prefill is within it.
    """

    levels: tuple[LevelResult, ...]
    max_kl: float

    @property
    def recommended(self) -> str | None:
        return next((row.level for row in self.levels if row.level != FULL and row.mean_kl <= self.max_kl), None)

    def table(self) -> str:
        """Returns the results as a table for a terminal, with a line for each level and one for the recommendation."""
        head = ("level", "first token", "answer", "mean KL", "99% KL", "perplexity", "TTFT, ms", "recomputed")
        rows = [head, *(_cells(row) for row in self.levels)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        advice = self.recommended or "none of the levels: serve this model with mode full"
        return "\n".join([*lines, f"recommended for a mean KL of at most {self.max_kl:g}: {advice}"])

    def plot(self, file: str | os.PathLike[str] | IO[bytes]) -> None:
        """Draws the mean KL of each level over its recomputed share and over its time to the first token.

        The line is the frontier: no other level is cheaper and as near to the ordinary prefill. A plot needs
        matplotlib, which lazyrope does not install: ``pip install matplotlib``.

        Args:
            file: The path of the plot, or a file to write it to. The suffix of the path says the format, such as
                ``.svg`` or ``.png``. A file gets SVG.

        Raises:
            SpecError: matplotlib is missing, or it does not know the suffix.
            OSError: The file cannot be written.
        """
        kind = format_of(file) if isinstance(file, str | os.PathLike) else "svg"
        figure_of(self.levels, self.max_kl).savefig(file, format=kind)


def _cells(row: LevelResult) -> tuple[str, ...]:
    return (
        row.level,
        f"{row.first_token_agreement:.1%}",
        f"{row.answer_agreement:.1%}",
        f"{row.mean_kl:.4f}",
        f"{row.p99_kl:.4f}",
        "" if row.perplexity is None else f"{row.perplexity:.2f}",
        f"{row.first_token_ms:.1f}",
        f"{row.recomputed_share:.1%}",
    )


@dataclass
class _Tally:
    """The measurements of one level."""

    kl: list[Tensor] = field(default_factory=list)  # float32 [tokens] for each sample
    agrees: list[Tensor] = field(default_factory=list)  # bool [tokens] for each sample
    nll: float = 0.0  # nats
    answer_tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    recomputed: int = 0
    context: int = 0

    def result(self, level: str) -> LevelResult:
        kl = torch.cat(self.kl)
        return LevelResult(
            level,
            statistics.mean(bool(agrees[0]) for agrees in self.agrees),
            statistics.mean(bool(agrees.all()) for agrees in self.agrees),
            float(kl.mean()),
            float(kl.quantile(0.99)),
            math.exp(self.nll / self.answer_tokens) if self.answer_tokens else None,
            1e3 * statistics.median(self.seconds),
            self.recomputed / max(1, self.context),
        )


@dataclass(frozen=True)
class _Way:
    """One way of reading the documents of a sample.

    Attributes:
        name: The level, or "full".
        options: The mode and the recovery, as arguments of :meth:`Engine.generate`.
        recovery: The recovery of a composition of the same documents.
        shows_prefix: True if the prefix is the first document, for the level has none of its own.
    """

    name: str
    options: dict[str, Any]
    recovery: Recovery
    shows_prefix: bool


class Assessor:
    """Runs samples at each level. It stores documents under salts of its own, so that it finds no other ones."""

    def __init__(self, engine: Engine, max_new_tokens: int) -> None:
        self._engine = engine
        self._max_new_tokens = max_new_tokens
        self._salt = ""
        self._ways = _ways(engine.recovery, can_measure(engine.store))
        self._tallies = {way.name: _Tally() for way in self._ways}

    def run(self, samples: Sequence[Sample], max_kl: float) -> Assessment:
        """Measures all samples."""
        encoded = [self._encoded(sample) for sample in samples]
        if not encoded:
            raise SpecError("samples are empty; an assessment needs at least one")
        for sample in encoded:
            self._add(*sample)
        return Assessment(tuple(self._tallies[way.name].result(way.name) for way in self._ways), max_kl)

    def _encoded(self, sample: Sample) -> tuple[list[int], list[list[int]], list[int]]:
        encode = self._engine._encode
        check_documents(sample.documents)
        documents = [tokens for text in sample.documents if (tokens := encode("documents", text))]
        check("documents", sample.documents, bool(documents), "at least one document of at least one token")
        return (
            encode("prompt", sample.prompt),
            documents,
            encode("answer", () if sample.answer is None else sample.answer),
        )

    def _add(self, prompt: list[int], documents: list[list[int]], answer: list[int]) -> None:
        for _ in range(2):  # the first round compiles kernels and captures graphs, and the second one is measured
            self._salt = f"assessment {secrets.token_hex(16)}"  # neither documents nor overlays are stored yet
            timed = {way.name: self._timed(way, prompt, self._texts(way, documents)) for way in reversed(self._ways)}
        reference = timed[FULL].tokens
        if timed[FULL].finish_reason == "length":
            reference = reference[:-1]  # the logits after the last token belong to no token of the answer
        exact: Tensor = None
        for way in reversed(self._ways):  # the reference comes first
            texts = self._texts(way, documents)
            tally = self._tallies[way.name]
            tally.seconds.append(_first_token_time(timed[way.name]))
            scores = self._score(way, prompt, reference, texts)
            logits = _log_probabilities(scores)
            exact = logits if exact is None else exact
            _compare(tally, exact, logits)
            if answer:
                tally.nll += _nll(_log_probabilities(self._score(way, prompt, answer[:-1], texts)), answer)
                tally.answer_tokens += len(answer)
            context = len(way.recovery.shown_prefix) + sum(map(len, texts))
            tally.context += context
            tally.recomputed += context if way.name == FULL else sum(map(len, scores.recomputed))

    def _texts(self, way: _Way, documents: list[list[int]]) -> list[list[int]]:
        return [list(self._engine.recovery.prefix), *documents] if way.shows_prefix else documents

    def _timed(self, way: _Way, prompt: list[int], texts: list[list[int]]) -> Generation:
        """Answers the prompt: by an ordinary prefill as a whole, and by a level with one token over stored documents.

        The documents of a level are stored first, and nothing is computed again meanwhile.
        """
        if way.name == FULL:
            return self._answered(prompt, texts, self._max_new_tokens, way.options)
        self._answered(prompt, texts, 1, way.options | NOTHING_AGAIN.get(way.name, {}))
        return self._answered(prompt, texts, 1, way.options)

    def _answered(
        self, prompt: list[int], texts: list[list[int]], max_new_tokens: int, options: dict[str, Any]
    ) -> Generation:
        generation = self._engine.generate(prompt, texts, max_new_tokens=max_new_tokens, salt=self._salt, **options)
        generation.result()
        return generation

    def _score(self, way: _Way, prompt: list[int], answer: list[int], texts: list[list[int]]) -> Generation:
        """Returns a request with the logits before and after each token of an answer, which no level may look at.

        :meth:`Engine.score` would also keep the hidden states of all new documents.
        """
        options: dict[str, Any] = {"max_new_tokens": 0, "temperature": 0.0, "stop": frozenset(), "salt": self._salt}
        options |= {"num_logits": len(answer) + 1, "question_length": len(prompt)}
        generation = self._engine._queue([*prompt, *answer], texts, way.options["mode"], way.recovery, **options)
        generation.result()
        return generation


def _first_token_time(generation: Generation) -> float:
    """Returns the seconds from the arrival of a request to its first token."""
    assert generation.first_token is not None
    return generation.first_token - generation.arrival


def _ways(recovery: Recovery, measures: bool) -> list[_Way]:
    """Returns the levels in the order of their cost, and the ordinary prefill. All show the same text.

    Args:
        recovery: The engine's level and parameters.
        measures: True if the engine has level "guided".
    """
    levels = ["none", *(["prefix"] if recovery.prefix else []), "ape", "first_page", *(["guided"] if measures else [])]
    ways = [
        _Way(
            level,
            {"mode": "lazy", "recovery": level},
            recovery.changed(level),
            level == "none" and bool(recovery.prefix),
        )
        for level in levels
    ]
    none = Recovery()
    return [*ways, _Way(FULL, {"mode": FULL, "recovery": "none"}, none, bool(recovery.prefix))]


def _log_probabilities(generation: Generation) -> Tensor:
    """Returns the log-probabilities of the kept logits, float32 [tokens, vocabulary size]."""
    return torch.cat(generation._own.logits).log_softmax(-1)


def _compare(tally: _Tally, exact: Tensor, given: Tensor) -> None:
    """Adds KL(exact || given) and where both have the same most probable token.

    Args:
        tally: The measurements of the level.
        exact: Log-probabilities of the reference, [tokens, vocabulary size].
        given: Log-probabilities of the level, of the same shape.
    """
    probability = exact.exp()
    divergence = torch.where(probability > 0, probability * (exact - given), 0.0)  # a logit may be minus infinity
    tally.kl.append(divergence.sum(-1).cpu())
    tally.agrees.append((exact.argmax(-1) == given.argmax(-1)).cpu())


def _nll(given: Tensor, answer: list[int]) -> float:
    following = torch.tensor(answer, device=given.device)
    return float(-given.gather(-1, following[:, None]).double().sum())


def as_samples(samples: object) -> list[Sample]:
    """Returns samples that are given as such, or as dicts with the same names, such as lines of JSON."""
    names = {each.name for each in dataclasses.fields(Sample)}
    found = []
    for i, sample in enumerate(
        samples if isinstance(samples, Sequence) and not isinstance(samples, str) else [samples]
    ):
        if isinstance(sample, dict) and set(sample) <= names and {"prompt", "documents"} <= set(sample):
            sample = Sample(**sample)
        check(
            f"samples[{i}]", sample, isinstance(sample, Sample), "a Sample, or a dict with prompt, documents and answer"
        )
        found.append(sample)
    return found


def check_options(max_kl: object, max_new_tokens: object) -> int:
    """Returns max_new_tokens as an int."""
    check("max_kl", max_kl, is_finite(max_kl) and max_kl >= 0, "a number of nats, at least 0")  # type: ignore[operator]
    count = as_int(max_new_tokens) or 0
    check("max_new_tokens", max_new_tokens, count >= 1, "an integer, at least 1")
    return count
