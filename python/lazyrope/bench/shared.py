"""Steps in which several requests read the same documents, with and without a cascade.

``lazyrope bench shared`` measures such steps of the user's own shapes.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any

import lazyrope

from .rows import Bench, Row, attention_row
from .shapes import Shape

ANY_ORDER = "any order"  # every request has all documents, in an order of its own
DRAWS = 1000  # draws for each document of a request
DECODE_ROWS = 16  # a step with at most so many query rows for each request and KV head counts as decode
MOST_ZIPF = 10
DTYPES = ("bfloat16", "float16")
KV_DTYPES = (*DTYPES, "float8_e4m3fn", "float8_e5m2")
# The shapes that are measured unless options change them.
DEFAULTS: dict[str, Any] = {
    "requests": (8, 32, 128),
    "documents": 5,
    "stored": 100,
    "zipf": 1.1,
    "query_tokens": 1,
    "q_heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "dtype": "bfloat16",
    "kv_dtype": None,  # that of the queries
    "doc_tokens": 2048,
    "page_size": 16,
    "rope": "llama3",
}


@dataclass(frozen=True)
class SharedShape(Shape):
    """A step whose requests choose their documents of doc_tokens tokens.

    Attributes:
        stored: The documents from which the requests choose; 0: no two requests share a document.
        zipf: The exponent of their popularity, or ANY_ORDER.
        cascade: Whether the kernels read a document once for all requests that have it.
    """

    stored: int = 0
    zipf: float | str = 0.0
    cascade: bool = True

    @property
    def alone(self) -> SharedShape:
        """The same step without a cascade."""
        return replace(self, cascade=False)

    def spec(self, **options: Any) -> lazyrope.AttentionSpec:
        return super().spec(**{"cascade": self.cascade, **options})

    @property
    def document_ids(self) -> list[int]:
        if self.stored == 0:
            return super().document_ids
        chooser = random.Random(self.batch)
        each = self.context // self.doc_tokens
        return [i for _ in range(self.batch) for i in self._choice(chooser, each)]

    def _choice(self, chooser: random.Random, count: int) -> list[int]:
        """Returns different documents of one request. They are the most popular ones where the draws repeat."""
        if isinstance(self.zipf, str):
            return chooser.sample(range(self.stored), count)
        chosen: dict[int, None] = {}
        for document in islice(self._draws(chooser), DRAWS * count):
            chosen[document] = None
            if len(chosen) == count:
                return list(chosen)
        return list(dict.fromkeys([*chosen, *range(self.stored)]))[:count]

    def _draws(self, chooser: random.Random) -> Iterator[int]:
        popularity = [*accumulate(1 / (rank + 1) ** float(self.zipf) for rank in range(self.stored))]
        while True:
            yield chooser.choices(range(self.stored), cum_weights=popularity)[0]

    @property
    def kv_tokens(self) -> int:
        """Stored tokens that at least one query sees."""
        return len(set(self.document_ids)) * self.doc_tokens

    def about(self) -> dict[str, Any]:
        own = {"cascade": self.cascade, "stored": self.stored, "zipf": self.zipf, "distinct_tokens": self.kv_tokens}
        return super().about() | own


def shared_shapes(**given: Any) -> list[SharedShape]:
    """Returns a shape for each number of requests.

    Args:
        given: Values that replace those of DEFAULTS.

    Raises:
        ValueError: A request cannot have that many different documents, or the shape has no attention.
    """
    values = DEFAULTS | given
    documents, stored = values["documents"], values["stored"]
    if documents > stored:
        raise ValueError(
            f"a request has {documents} different documents, and {stored} are stored: "
            "give a smaller --documents or a greater --stored"
        )
    values["kv_dtype"] = values["kv_dtype"] or values["dtype"]
    heads = values["q_heads"], values["kv_heads"]
    rows = values["query_tokens"] * heads[0] // heads[1]
    names = ("query_tokens", "doc_tokens", "stored", "zipf", "head_dim", "dtype", "kv_dtype", "page_size", "rope")
    shapes = [
        SharedShape(
            kernel="decode" if rows <= DECODE_ROWS else "prefill",
            batch=requests,
            context=documents * values["doc_tokens"],
            heads=heads,
            peers=(),
            **{name: values[name] for name in names},
        )
        for requests in values["requests"]
    ]
    shapes[0].spec()  # refuses what no kernel computes
    return shapes


def shared_row(shape: SharedShape, bench: Bench) -> Row:
    """Measures the step with a cascade, interleaved with the same step without one ("alone").

    Returns:
        The row of `attention_row`. "own" and "own_plan_us" have the times of "alone".
    """
    return attention_row(shape, bench, {"alone": shape.alone})


def counts(text: str) -> tuple[int, ...]:
    return tuple(count(part) for part in text.split(","))


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def exponent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST_ZIPF:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {MOST_ZIPF}")
    return value


def option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def list_text(value: Any) -> str:
    """Returns a value as the command line has it, and nothing for None."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that only shared steps have. Those that are not given are None."""
    group = parser.add_argument_group("options of `lazyrope bench shared`")

    def add(name: str, text: str, **options: Any) -> None:
        default = list_text(DEFAULTS[name]) or "that of --dtype"
        group.add_argument(option_of(name), help=f"{text} ({default})", **options)

    add("requests", "requests of a step; a row for each number", type=counts, metavar="N,...")
    add("documents", "different documents of a request", type=count, metavar="N")
    add("stored", "documents from which the requests choose", type=count, metavar="N")
    add("zipf", "Zipf exponent of their popularity; 0: all are equally popular", type=exponent, metavar="X")
    add("query_tokens", "query tokens of a request", type=count, metavar="N")
    add("q_heads", "query heads, a multiple of the KV heads", type=count, metavar="N")
    add("kv_heads", "KV heads", type=count, metavar="N")
    add("head_dim", "dimensions of a head", type=count, metavar="N")
    add("dtype", "dtype of the queries", choices=DTYPES)
    add("kv_dtype", "dtype of the keys and values", choices=KV_DTYPES)
