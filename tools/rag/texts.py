"""Documents of some hundred to some thousand tokens, and questions that they answer."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tools.rag.sources import all_sources, text_of


class Tokenizer(Protocol):
    """The part of a tokenizer of Transformers that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


@dataclass(frozen=True)
class Document:
    """Consecutive paragraphs of a source. ``tokens`` are those of ``text``, without special tokens."""

    name: str
    text: str = field(repr=False)
    tokens: list[int] = field(repr=False)
    source: str


@dataclass(frozen=True)
class Question:
    """A question. ``phrase`` is in the source at the answer, except for upper case and line ends."""

    source: str
    text: str
    phrase: str

    def answered_by(self, source: str, text: str) -> bool:
        return source == self.source and _folded(self.phrase) in _folded(text)


def documents(
    tokenizer: Tokenizer,
    count: int | None = None,
    *,
    min_tokens: int = 200,
    max_tokens: int = 4000,
    seed: int,
    sources: Collection[str] | None = None,
) -> list[Document]:
    """Returns ``count`` documents of random lengths, or all. Their sources are licences, Python and others.

    Long sources are cut into consecutive documents. Short documents are likelier than long ones. On one machine the
    same seed gives the same documents. ``sources`` names the sources to use; their order does not change.
    """
    found: list[Document] = []
    seen: set[str] = set()
    for name in all_sources():
        if sources is None or name in sources:
            for document in _cut(name, tokenizer, min_tokens, max_tokens, seed):
                if len(found) == count:
                    return found
                if document.text not in seen:
                    seen.add(document.text)
                    found.append(document)
    if count is not None and len(found) < count:
        raise ValueError(f"{count} documents wanted, but there are only {len(found)} of these lengths here")
    return found


def questions_for(given: Iterable[Document]) -> list[Question]:
    """Returns the questions that one of the given documents answers."""
    given = list(given)
    return [each for each in QUESTIONS if any(each.answered_by(one.source, one.text) for one in given)]


def prompt_of(question: Question | str, tokenizer: Tokenizer) -> list[int]:
    """Returns the tokens of the question as the user's message, and of the start of the assistant's message.

    A chat template would put a system message before the question, between it and the documents. The documents are
    plain text outside all messages, so each can be computed alone and be at any position.
    """
    text = question if isinstance(question, str) else question.text
    message = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer.encode(message, add_special_tokens=False)


def _folded(text: str) -> str:
    return " ".join(text.split()).lower()


def _cut(name: str, tokenizer: Tokenizer, low: int, high: int, seed: int) -> Iterator[Document]:
    # Each source has its own generator, so that its documents do not depend on the other sources.
    rng = random.Random(f"{seed} {name}")
    paragraphs = [(text, len(_encode(tokenizer, text))) for text in _paragraphs(text_of(name), tokenizer, high)]
    paragraphs.reverse()  # _take() takes from the end
    number = 0
    while paragraphs:
        text, tokens = _take(paragraphs, tokenizer, _random_length(rng, low, high), high)
        if low <= len(tokens) <= high:
            number += 1
            yield Document(f"{name} {number}", text, tokens, name)


def _random_length(rng: random.Random, low: int, high: int) -> float:
    """Draws log-uniformly, up to 0.9 x high: a length from 200 to 400 is as likely as one from 2000 to 4000."""
    return low * (0.9 * high / low) ** rng.random()


def _take(paragraphs: list[tuple[str, int]], tokenizer: Tokenizer, length: float, high: int) -> tuple[str, list[int]]:
    """Takes a paragraph, and further ones until there are ``length`` tokens or more would exceed ``high`` tokens."""
    taken, total = "", 0
    while paragraphs and (not taken or (total < length and total + paragraphs[-1][1] <= high)):
        paragraph, tokens = paragraphs.pop()
        taken += paragraph
        total += tokens
    text = taken.strip("\n") + "\n"
    return text, _encode(tokenizer, text)


def _paragraphs(text: str, tokenizer: Tokenizer, high: int) -> Iterator[str]:
    """Yields the paragraphs, and single lines of paragraphs that are too long for a document."""
    for paragraph in text.split("\n\n"):
        if len(paragraph) > high and len(_encode(tokenizer, paragraph)) > high // 2:
            yield from paragraph.splitlines(keepends=True)
            yield "\n\n"
        else:
            yield paragraph + "\n\n"


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


QUESTIONS: list[Question] = [
    Question(
        "heapq",
        "In heapq, at which index of a heap is its smallest element?",
        "a[0] is always its smallest element",
    ),
    Question(
        "heapq",
        "How does the heapq module's heapify() transform a list, and in what time?",
        "in-place, in linear time",
    ),
    Question(
        "bisect",
        "In the bisect module, what are the defaults of the optional arguments lo and hi?",
        "lo (default 0) and hi (default len(a))",
    ),
    Question(
        "bisect",
        "Where does insort_right insert x if x is already in the list?",
        "to the right of the rightmost x",
    ),
    Question(
        "json",
        "Of which language's syntax is JSON a subset?",
        "is a subset of JavaScript syntax",
    ),
    Question(
        "json",
        "What does json.load call object_hook with?",
        "result of any object literal decode",
    ),
    Question(
        "json",
        "In json.loads, which of object_hook and object_pairs_hook takes priority if both are defined?",
        "the ``object_pairs_hook`` takes priority",
    ),
    Question(
        "statistics",
        "What does the function median_grouped of the statistics module compute?",
        "Median, or 50th percentile, of grouped data",
    ),
    Question(
        "statistics",
        "What is statistics.multimode?",
        "List of modes (most common values of data)",
    ),
    Question(
        "argparse",
        "Which class is the main entry point for command-line parsing with argparse?",
        "ArgumentParser -- The main entry point for command-line parsing",
    ),
    Question(
        "datetime",
        "Which number does date.weekday() give Monday, and which Sunday?",
        "Monday == 0 ... Sunday == 6",
    ),
    Question(
        "datetime",
        "Which day has the proleptic Gregorian ordinal 1?",
        "January 1 of year 1 is day 1",
    ),
    Question(
        "pathlib",
        "Which operations does a PurePath offer?",
        "don't imply any actual filesystem I/O",
    ),
    Question(
        "itertools",
        "What does itertools.chain do?",
        "elements from the first iterable until it is exhausted",
    ),
    Question(
        "functools",
        "What does functools.lru_cache do if maxsize is None?",
        "LRU features are disabled and the cache can grow without bound",
    ),
    Question(
        "textwrap",
        "What does textwrap.dedent do?",
        "Remove any common leading whitespace from every line",
    ),
    Question(
        "fractions",
        "What does Fraction.limit_denominator return?",
        "Closest Fraction to self with denominator at most max_denominator",
    ),
    Question(
        "random",
        "What is the period of the random module's generator?",
        "2**19937-1",
    ),
    Question(
        "random",
        "Is random.shuffle done in place, and what does it return?",
        "in place, and return None",
    ),
    Question(
        "shelve",
        "What kind of object is a shelf?",
        "persistent, dictionary-like object",
    ),
    Question(
        "shelve",
        "What does shelve.open with writeback=True keep?",
        "keeps a cache of all entries you access",
    ),
    Question(
        "struct",
        "What does the format character < mean in the struct module?",
        "little-endian, std. size & alignment",
    ),
    Question(
        "struct",
        "What does the format character ! mean in the struct module?",
        "!: same as >",
    ),
    Question(
        "zlib",
        "Which range of compression levels does zlib.compress take?",
        "0-9 or -1",
    ),
    Question(
        "csv",
        "Which PEP describes the interface that the csv module implements?",
        "PEP 305",
    ),
    Question(
        "csv",
        "When does a csv writer with QUOTE_MINIMAL quote a field?",
        "means only when required",
    ),
    Question(
        "sched",
        "In the sched module, do lower numbers mean higher or lower priority?",
        "lower priority numbers mean higher priority",
    ),
    Question(
        "sched",
        "Which tuple specifies an event in the sched module?",
        "(time, priority, action, argument, kwargs)",
    ),
    Question(
        "queue",
        "What is the size of a queue.Queue if maxsize is 0?",
        "If maxsize is <= 0, the queue size is infinite",
    ),
    Question(
        "queue",
        "When does Queue.join unblock?",
        "When the count of unfinished tasks drops to zero",
    ),
    Question(
        "difflib",
        "Which similarity ratio, as a rule of thumb, means that two sequences are close matches?",
        "over 0.6 means the sequences are close matches",
    ),
    Question(
        "shutil",
        "Which command of the shell does shutil.copy resemble?",
        "cp src dst",
    ),
    Question(
        "tempfile",
        "Which function of the tempfile module should not be used, and why?",
        "subject to race conditions",
    ),
    Question(
        "secrets",
        "What is the module secrets for?",
        "cryptographically strong pseudo-random numbers",
    ),
    Question(
        "contextlib",
        "What does contextlib.nullcontext do?",
        "Context manager that does no additional processing",
    ),
    Question(
        "graphlib",
        "What does TopologicalSorter.prepare raise if there is a cycle?",
        '"CycleError" will be raised',
    ),
    Question(
        "dataclasses",
        "What does the parameter frozen of dataclass do?",
        "fields may not be assigned to after instance creation",
    ),
    Question(
        "fnmatch",
        "How does fnmatchcase differ from fnmatch?",
        "doesn't case-normalize",
    ),
    Question(
        "glob",
        "Which file names does glob not match with * by default?",
        "starting with a dot are special cases",
    ),
    Question(
        "decimal",
        "Which rounding mode does Decimal.sqrt use?",
        "correctly rounded using the ROUND_HALF_EVEN rounding mode",
    ),
    Question(
        "calendar",
        "Which day of the week is first in the calendars of Python's calendar module?",
        "have Monday as the first day of the week",
    ),
    Question(
        "cmd",
        "What does typing an empty line do in an interpreter made with the cmd module?",
        "Typing an empty line repeats the last command",
    ),
    Question(
        "tarfile",
        "What does TarFile.getmembers return?",
        "members of the archive as a list",
    ),
    Question(
        "configparser",
        "In the configparser module, of what do configuration files consist?",
        "consists of sections, lead by a",
    ),
    Question(
        "getpass",
        "What does getpass.getpass do with echo?",
        "with echo turned off",
    ),
    Question(
        "GPL-3",
        "From which date is version 3 of the GNU General Public License?",
        "Version 3, 29 June 2007",
    ),
    Question(
        "GPL-3",
        "How many years must a written offer for source code be valid under the GPL version 3?",
        "valid for at least three years",
    ),
    Question(
        "GPL-3",
        "What does the GPL version 3 mean by the source code of a work?",
        "preferred form of the work for making modifications to it",
    ),
    Question(
        "GPL-2",
        "Which license covers a library's distribution better than the GPL version 2, by its last paragraph?",
        "Lesser General Public License instead of this License",
    ),
    Question(
        "GPL-2",
        "From which date is version 2 of the GNU General Public License?",
        "Version 2, June 1991",
    ),
    Question(
        "LGPL-2.1",
        "From which date is version 2.1 of the GNU Lesser General Public License?",
        "Version 2.1, February 1999",
    ),
    Question(
        "Apache-2.0",
        "From which date is version 2.0 of the Apache License?",
        "Version 2.0, January 2004",
    ),
    Question(
        "Apache-2.0",
        "What does the Apache License mean by Licensor?",
        "the copyright owner or entity authorized by the copyright owner that is granting the License",
    ),
    Question(
        "Apache-2.0",
        "Does the Apache License give permission to use the Licensor's trademarks?",
        "does not grant permission to use the trade names, trademarks",
    ),
    Question(
        "Artistic",
        "What does the Artistic License mean by the Package?",
        "collection of files distributed by the Copyright Holder",
    ),
    Question(
        "BSD",
        "To whom does the copyright notice of the BSD license belong?",
        "The Regents of the University of California",
    ),
    Question(
        "CC0-1.0",
        "What does the CC0 deed call the person who associates it with a work?",
        'the "Affirmer"',
    ),
    Question(
        "GFDL-1.3",
        "What is the purpose of the GNU Free Documentation License?",
        'functional and useful document "free" in the sense of freedom',
    ),
    Question(
        "MPL-2.0",
        "What does the Mozilla Public License 2.0 mean by Executable Form?",
        "any form of the work other than Source Code Form",
    ),
]
