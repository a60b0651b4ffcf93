"""Questions over documents whose answers need one document, two, or a name from an earlier one.

Texts of this machine (tools/rag/sources.py) are the documents. Sentences with facts of our own are put between their
paragraphs, so that no model knows the answers and no public data set's wording is used.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tools.rag import texts

KINDS = ("one document", "two documents", "an earlier name")


@dataclass(frozen=True)
class Case:
    """A question over documents. All texts are tokens; the prompt contains the question, the answer follows it."""

    kind: str
    documents: list[list[int]] = field(repr=False)
    prompt: list[int] = field(repr=False)
    answer: list[int] = field(repr=False)
    text: str

    @property
    def tokens(self) -> int:
        return sum(map(len, self.documents))


@dataclass(frozen=True)
class _Facts:
    """Sentences in the order in which documents must have them, each in a document of its own, and the question."""

    sentences: list[str]
    question: str
    answer: str


_FIRST = "Mira Tomas Elena Viktor Hanne Oskar Livia Ramon Greta Pavel Sunniva Idris Noemi Kaspar Yara Anton".split()
_LAST = "Halvorsen Brandt Okafor Lindqvist Marchetti Dvorak Ferreira Novak Tanaka Whitlock Zeman Aldous".split()
_PLACE = "Tannhof Merrow Quillby Sandvik Orlest Pelham Drumore Varnish Castell Ivarra Lomond Brisko".split()
_THING = "ledger compass telescope manuscript barometer violin sextant tapestry herbarium chronometer".split()
_TEAM = "Orion Juniper Basalt Meridian Falcon Lantern Cobalt Harbour Sequoia Tundra".split()


_POOL = 200  # documents to choose from: to read all texts of the machine takes minutes


def _name(rng: random.Random) -> str:
    return f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"


def _one_document(rng: random.Random) -> _Facts:
    place, thing, who = rng.choice(_PLACE), rng.choice(_THING), _name(rng)
    return _Facts([f"The {thing} of {place} was made by {who}."], f"Who made the {thing} of {place}?", who)


def _two_documents(rng: random.Random) -> _Facts:
    team, who, place = rng.choice(_TEAM), _name(rng), rng.choice(_PLACE)
    sentences = [f"The leader of the {team} team is {who}.", f"{who} works in the town of {place}."]
    rng.shuffle(sentences)
    return _Facts(sentences, f"In which town does the leader of the {team} team work?", place)


def _earlier_name(rng: random.Random) -> _Facts:
    who, thing, place = _name(rng), rng.choice(_THING), rng.choice(_PLACE)
    sentences = [f"The last owner of the {thing} was {who}.", f"That owner later moved to the town of {place}."]
    return _Facts(sentences, f"To which town did {who} move?", place)


_MAKERS: dict[str, Callable[[random.Random], _Facts]] = dict(
    zip(KINDS, (_one_document, _two_documents, _earlier_name), strict=True)
)


def cases(
    tokenizer: texts.Tokenizer,
    count: int,
    *,
    seed: int,
    documents: tuple[int, int] = (2, 16),
    tokens: tuple[int, int] = (100, 1500),
    limit: int = 8000,
) -> Iterator[Case]:
    """Yields ``count`` cases of all kinds in turn.

    Args:
        documents: the fewest and the most documents of a case.
        tokens: the fewest and the most tokens of a document, before facts are put into it.
        limit: the most tokens of a case's documents together.
    """
    rng = random.Random(seed)
    pool = texts.documents(tokenizer, _POOL, min_tokens=tokens[0], max_tokens=tokens[1], seed=seed)
    for i in range(count):
        kind = KINDS[i % len(KINDS)]
        facts = _MAKERS[kind](rng)
        chosen = _choose(rng, pool, max(rng.randint(*documents), len(facts.sentences)), limit, len(facts.sentences))
        holders = sorted(rng.sample(range(len(chosen)), len(facts.sentences)))
        written = dict(zip(holders, facts.sentences, strict=True))
        made = [_with(rng, each.text, written.get(n)) for n, each in enumerate(chosen)]
        yield Case(
            kind,
            [tokenizer.encode(text, add_special_tokens=False) for text in made],
            texts.prompt_of(f"{facts.question} Answer with the name alone.", tokenizer),
            tokenizer.encode(facts.answer, add_special_tokens=False),
            f"{facts.question} {facts.answer}.",
        )


def _choose(rng: random.Random, pool: list[texts.Document], count: int, limit: int, least: int) -> list[texts.Document]:
    """Returns ``count`` documents, or fewer, but at least ``least``, if they would have more than ``limit`` tokens."""
    chosen: list[texts.Document] = []
    for each in rng.sample(pool, count):
        if len(chosen) < least or sum(len(one.tokens) for one in chosen) + len(each.tokens) <= limit:
            chosen.append(each)
    return chosen


def _with(rng: random.Random, text: str, sentence: str | None) -> str:
    """Returns the text with the sentence as a paragraph of its own between two others, or at its end."""
    if sentence is None:
        return text
    paragraphs = text.strip("\n").split("\n\n")
    paragraphs.insert(rng.randint(1, len(paragraphs)), sentence)
    return "\n\n".join(paragraphs) + "\n"
