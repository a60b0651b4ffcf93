"""Texts for memories: templated examples over a table of facts, and source code of Python's standard library."""

from __future__ import annotations

import importlib
import inspect
import random
from dataclasses import dataclass
from typing import Any

KINDS = ("ICL", "code")
FIRST = "Ada Bo Cy Dee Eli Fay Gus Hal Ivy Jon Kim Lea Max Nia Ola Pam".split()
LAST = "Brandt Novak Stone Rivera Okoye Lund Haas Patel".split()
CITIES = "Lisbon Oslo Cairo Quito Tokyo Paris Delhi Lima Rome Bern".split()
COLOURS = "red blue green black white yellow brown grey".split()
PEOPLE = 60
FORMS = (
    "Q: In which city does {name} live?\nA: {city}\n\n",
    "Q: What colour does {name} like best?\nA: {colour}\n\n",
    "Q: How old is {name}?\nA: {age}\n\n",
)
MODULES = (
    "argparse tarfile subprocess typing pathlib inspect zipfile logging _pydecimal difflib mailbox turtle pickle"
).split()


@dataclass(frozen=True)
class Text:
    """Consecutive tokens of one text.

    Attributes:
        prefix: The document.
        traces: The tokens whose queries memories are fitted to.
        test: The tokens that results are measured on.
    """

    prefix: list[int]
    traces: list[int]
    test: list[int]


def text_of(kind: str, tokenizer: Any, seed: int, prefix: int, traces: int, test: int) -> Text:
    """Returns a text of one of KINDS. Of the standard library each seed has another module.

    Raises:
        ValueError: The text has too few tokens.
    """
    needed = prefix + traces + test
    tokens = _examples(tokenizer, seed, needed) if kind == "ICL" else _code(tokenizer, seed)
    if len(tokens) < needed:
        raise ValueError(f"{kind} of seed {seed} has {len(tokens)} tokens; {needed} are needed")
    return Text(tokens[:prefix], tokens[prefix : prefix + traces], tokens[prefix + traces : needed])


def _examples(tokenizer: Any, seed: int, needed: int) -> list[int]:
    rng = random.Random(seed)
    names = rng.sample([f"{first} {last}" for first in FIRST for last in LAST], PEOPLE)
    facts = {
        name: {"city": rng.choice(CITIES), "colour": rng.choice(COLOURS), "age": rng.randrange(20, 70)}
        for name in names
    }
    tokens: list[int] = []
    while len(tokens) < needed:
        name = rng.choice(names)
        tokens += tokenizer.encode(rng.choice(FORMS).format(name=name, **facts[name]), add_special_tokens=False)
    return tokens


def _code(tokenizer: Any, seed: int) -> list[int]:
    module = importlib.import_module(MODULES[seed % len(MODULES)])
    return list(tokenizer.encode(inspect.getsource(module), add_special_tokens=False))
