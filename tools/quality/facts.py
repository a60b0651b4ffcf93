"""Questions over documents whose answers need one document, two, or a name from an earlier one.

Texts of this machine (tools/rag/sources.py) are the documents. Sentences with facts of our own are put between their
paragraphs, so that no model knows the answers and no public data set's wording is used. Where an answer needs two
sentences, other documents have rival sentences of the same form about other people, so that neither sentence is enough.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

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
    """The sentences that an answer needs, and the question.

    Documents have the sentences in this order, each in a document of its own. Rivals are sentences in other documents.
    """

    sentences: list[str]
    question: str
    answer: str
    rivals: list[str] = field(default_factory=list)


_FIRST = "Mira Tomas Elena Viktor Hanne Oskar Livia Ramon Greta Pavel Sunniva Idris Noemi Kaspar Yara Anton".split()
_LAST = "Halvorsen Brandt Okafor Lindqvist Marchetti Dvorak Ferreira Novak Tanaka Whitlock Zeman Aldous".split()
_PLACE = "Tannhof Merrow Quillby Sandvik Orlest Pelham Drumore Varnish Castell Ivarra Lomond Brisko".split()
_THING = "ledger compass telescope manuscript barometer violin sextant tapestry herbarium chronometer".split()
_TEAM = "Orion Juniper Basalt Meridian Falcon Lantern Cobalt Harbour Sequoia Tundra".split()


_RIVALS = 2  # the other teams or things, with people and towns of their own
_POOL = 200  # documents to choose from: to read all texts of the machine takes minutes


def _names(rng: random.Random, count: int) -> list[str]:
    """Returns names that share no first name and no last name."""
    both = zip(rng.sample(_FIRST, count), rng.sample(_LAST, count), strict=True)
    return [f"{first} {last}" for first, last in both]


def _one_document(rng: random.Random) -> _Facts:
    place, thing, [who] = rng.choice(_PLACE), rng.choice(_THING), _names(rng, 1)
    return _Facts([f"The {thing} of {place} was made by {who}."], f"Who made the {thing} of {place}?", who)


def _two_documents(rng: random.Random) -> _Facts:
    count = 1 + _RIVALS
    teams, places = rng.sample(_TEAM, count), rng.sample(_PLACE, count)
    pairs = [
        [f"The leader of the {team} team is {who}.", f"{who} works in the town of {place}."]
        for team, who, place in zip(teams, _names(rng, count), places, strict=True)
    ]
    rng.shuffle(pairs[0])
    question = f"In which town does the leader of the {teams[0]} team work?"
    return _Facts(pairs[0], question, places[0], [*chain(*pairs[1:])])


def _earlier_name(rng: random.Random) -> _Facts:
    count = 1 + _RIVALS
    names, places = _names(rng, count), rng.sample(_PLACE, count)
    pairs = [
        [f"The last owner of the {thing} was {who}.", f"The owner of the {thing} later moved to the town of {place}."]
        for thing, who, place in zip(rng.sample(_THING, count), names, places, strict=True)
    ]
    return _Facts(pairs[0], f"To which town did {names[0]} move?", places[0], [*chain(*pairs[1:])])


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
        documents: the fewest and the most documents of a case. Where two sentences are needed, there are at least 3.
        tokens: the fewest and the most tokens of a document, before facts are put into it.
        limit: the most tokens of a case's documents together.
    """
    rng = random.Random(seed)
    pool = texts.documents(tokenizer, _POOL, min_tokens=tokens[0], max_tokens=tokens[1], seed=seed)
    for i in range(count):
        kind = KINDS[i % len(KINDS)]
        facts = _MAKERS[kind](rng)
        least = len(facts.sentences) + bool(facts.rivals)
        chosen = _choose(rng, pool, max(rng.randint(*documents), least), limit, least)
        made = [
            _with(rng, each.text, added) for each, added in zip(chosen, _spread(rng, facts, len(chosen)), strict=True)
        ]
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


def _spread(rng: random.Random, facts: _Facts, count: int) -> list[list[str]]:
    """Returns the sentences that each of ``count`` documents gets."""
    added: list[list[str]] = [[] for _ in range(count)]
    holders = sorted(rng.sample(range(count), len(facts.sentences)))
    for n, sentence in zip(holders, facts.sentences, strict=True):
        added[n].append(sentence)
    others = [n for n in range(count) if n not in holders]
    for sentence in facts.rivals:
        added[rng.choice(others)].append(sentence)
    return added


def _with(rng: random.Random, text: str, sentences: list[str]) -> str:
    """Returns the text with each sentence as a paragraph of its own between two others, or at its end."""
    if not sentences:
        return text
    paragraphs = text.strip("\n").split("\n\n")
    for sentence in sentences:
        paragraphs.insert(rng.randint(1, len(paragraphs)), sentence)
    return "\n\n".join(paragraphs) + "\n"
