"""Reads and writes results.csv, which says what caught each mutant.

A row names a function instead of a line, so that it stays valid when other lines change.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.mutation.mutants import Mutant
from tests.mutation.run import Verdict
from tests.mutation.text import functions

FILE = Path(__file__).with_name("results.csv")
COLUMNS = ("file", "function", "call", "mutation", "caught by", "trial")
Key = tuple[str, str, str, str]


def keys(mutants: Iterable[Mutant]) -> dict[Key, Mutant]:
    """Returns the mutants by their keys. A number tells repeated calls in a function apart."""
    result: dict[Key, Mutant] = {}
    times: Counter[Key] = Counter()
    for mutant in mutants:
        key = (mutant.site.path, _function(mutant), mutant.site.name, mutant.kind)
        times[key] += 1
        call = mutant.site.name + (f" #{times[key]}" if times[key] > 1 else "")
        result[(*key[:2], call, key[3])] = mutant
    return result


def _function(mutant: Mutant) -> str:
    at = mutant.site.call.span.begin
    return next((f.name for f in functions(mutant.site.text) if f.span.begin <= at < f.span.end), "the kernel")


def read() -> dict[Key, Verdict]:
    with FILE.open(newline="") as file:
        rows = list(csv.reader(file))
    return {(row[0], row[1], row[2], row[3]): Verdict(*row[4:]) for row in rows[1:]}


def write(verdicts: dict[Key, Verdict]) -> None:
    with FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((*key, verdict.caught_by, verdict.trial) for key, verdict in verdicts.items())
