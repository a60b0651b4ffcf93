"""The figures of ``python -m tools.rag`` as tables: for a terminal, for the page and for the documentation.

This module imports neither torch nor matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

MODES = ("lazy", "block", "recompute")
BASELINE = "bf16 eager"
REFERENCE = "fp32 eager"  # the divergence of the other systems is from this one
SYSTEMS = ("lazy", "recompute", BASELINE, REFERENCE)  # in the order of the columns
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))


@dataclass(frozen=True)
class Table:
    head: list[str]
    rows: list[list[str]]

    def columns(self) -> list[tuple[str, ...]]:
        return list(zip(self.head, *self.rows, strict=True))

    def is_number(self) -> list[bool]:
        """Tells for each column whether its cells are numbers, which are flushed right."""
        return [all(not cell or cell[0].isdigit() for cell in column[1:]) for column in self.columns()]

    def text(self) -> str:
        """Returns the table for a terminal."""
        sides = ["right" if number else "left" for number in self.is_number()]
        return tabulate(self.rows, self.head, tablefmt="simple", colalign=sides, disable_numparse=True)


def fidelity(systems: dict[str, Any]) -> Table:
    """Returns one line for each kind of tokens. A divergence is also given as a multiple of the baseline's."""
    compared = [name for name in SYSTEMS if name in systems and name != REFERENCE]
    head = ["rows", "tokens"]
    head += _named("mean KL, nats", compared) + _named("same best token", compared)
    head += _named("perplexity", [*compared, REFERENCE])
    rows = []
    for kind, base in systems[BASELINE].items():
        tallies = [systems[name].get(kind, {}) for name in compared]
        exact = systems.get(REFERENCE, {}).get(kind, {})
        row = [kind, str(base["tokens"])]
        row += [_divergence(tally, base) for tally in tallies]
        row += [f"{tally['agreement']:.2%}" if tally else "" for tally in tallies]
        row += [f"{tally['perplexity']:.2f}" if "perplexity" in tally else "" for tally in (*tallies, exact)]
        rows.append(row)
    return Table(head, rows)


def _named(what: str, systems: Sequence[str]) -> list[str]:
    return [f"{what}: {systems[0]}", *systems[1:]]


def _divergence(tally: dict[str, Any], base: dict[str, Any]) -> str:
    if not tally:
        return ""
    ratio = "" if tally is base or not base["mean_kl"] else f" ({tally['mean_kl'] / base['mean_kl']:.2f}x)"
    return f"{tally['mean_kl']:.2e}{ratio}"


def single(serving: dict[str, Any]) -> Table:
    """Returns the table of one request at a time."""
    given = serving["single"]
    unit, size = unit_of(row[name] for row in given for name in ("copied_bytes", "private_bytes", "stored_bytes"))
    head = ["one request", "mode", "TTFT, ms", "a token, ms", f"copied, {unit}", f"private, {unit}", f"stored, {unit}"]
    rows = [
        [
            row["state"],
            row["mode"],
            digits(row["first_token_ms"]),
            digits(row["token_ms"]),
            *(f"{row[name] / size:.2f}" for name in ("copied_bytes", "private_bytes", "stored_bytes")),
        ]
        for row in given
    ]
    return Table(head, rows)


def served(serving: dict[str, Any]) -> Table:
    """Returns the table of many clients under a budget."""
    given = serving["served"]
    unit, size = unit_of(row["budget_bytes"] for row in given)
    copied, copied_size = unit_of(row["copied_bytes"] for row in given)
    times = ["TTFT p50, ms", "TTFT p90, ms"]
    head = [
        "exponent",
        f"budget, {unit}",
        "mode",
        "at most",
        "alive",
        "requests/s",
        *times,
        "hit rate",
        f"copied, {copied}",
    ]
    rows = [
        [
            f"{row['exponent']:g}",
            f"{row['budget_bytes'] / size:g}",
            row["mode"],
            f"{row['max_requests']}",
            f"{row['alive']:.1f}",
            digits(row["requests_per_s"]),
            digits(row["first_token_p50_ms"]),
            digits(row["first_token_p90_ms"]),
            f"{row['hit_rate']:.0%}",
            f"{row['copied_bytes'] / copied_size:.1f}",
        ]
        for row in given
    ]
    return Table(head, rows)


def cascade(given: dict[str, Any]) -> Table:
    """Returns the table of many clients without and with a cascade."""
    head = ["clients", "exponent", "cascade", "alive", "requests/s", "TTFT p50, ms", "TTFT p90, ms"]
    rows = [
        [
            f"{row['clients']}",
            f"{row['exponent']:g}",
            "yes" if row["cascade"] else "no",
            f"{row['alive']:.1f}",
            digits(row["requests_per_s"]),
            digits(row["first_token_p50_ms"]),
            digits(row["first_token_p90_ms"]),
        ]
        for row in given["rows"]
    ]
    return Table(head, rows)


def unit_of(values: Iterable[float]) -> tuple[str, int]:
    """Returns the name and the size of the largest unit in which the largest value is at least one."""
    most = max(values, default=0)
    return next(((name, size) for name, size in UNITS if most >= size), UNITS[-1])


def digits(value: float) -> str:
    """Returns the value with three digits, or with all digits before the point if there are more."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def about(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the known facts about the run, such as its device and date, as names and values."""
    entries = [
        ("device", result.get("device")),
        ("driver", result.get("driver")),
        ("date", result.get("date")),
        ("commit", result.get("commit")),
        ("versions", ", ".join(f"{name} {version}" for name, version in result.get("versions", {}).items())),
        ("command", result.get("command")),
    ]
    return [(name, str(value)) for name, value in entries if value]


def about_fidelity(fidelity: dict[str, Any]) -> str:
    """Returns a sentence about the cases, the model and the answers."""
    counts = [case["documents"] for case in fidelity["cases"]]
    contexts = [case["context"] for case in fidelity["cases"]]
    divergences = fidelity["divergences"]
    text = (
        f"{fidelity['model']}, bf16, attention by lazyrope ({fidelity['backend']}); {len(counts)} cases of "
        f"{_range(counts)} documents, {_range(contexts)} tokens of context; divergence from the same model in fp32; "
        f"{fidelity['requests'] - len(divergences)} of {fidelity['requests']} greedy answers are equal in lazy and "
        "recompute mode"
    )
    if divergences:
        text += (
            f", the others differ from a near tie on: a margin of at most {max(d['margin'] for d in divergences):.2f} "
            f"in fp32, while bf16 moves margins by {fidelity['noise']:.2f} (99th percentile)"
        )
    return text


def about_single(serving: dict[str, Any]) -> str:
    shape = serving["shape"]
    return (
        f"{serving['model']}; one request at a time: {shape['documents']} documents of {shape['document_tokens']} "
        f"tokens, a question of {shape['question_tokens']}, an answer of {shape['answer_tokens']}. Cold: no document "
        "is stored; warm: all are; recompute stores none. Times are medians"
    )


def about_served(serving: dict[str, Any]) -> str:
    load = serving["loads"][0]
    return (
        f"The store is empty at first. Each of {load['clients']} clients sends its next request when the last one "
        f"is answered, {load['requests']} requests in all. A request names {load['per_request']} of "
        f"{load['documents']} documents of {load['document_tokens']} tokens, chosen by Zipf's law with this exponent "
        f"(0: all alike). Full shares nothing, so it is measured at {load['exponent']:g} only. At most: requests "
        "admitted at the same time, for block the best of several such numbers; alive: their average"
    )


def about_cascade(given: dict[str, Any]) -> str:
    load = given["loads"][0]
    unit, size = unit_of([given["budget_bytes"]])
    return (
        f"{given['model']}; the lazy mode under a budget of {given['budget_bytes'] / size:g} {unit}, without and with "
        "attach(cascade=True). The store is empty at first. Each client sends its next request when the last one is "
        f"answered. A request names {load['per_request']} of {load['documents']} documents of "
        f"{load['document_tokens']} tokens, chosen by Zipf's law with this exponent (0: all alike). The figures are "
        "those of the median repetition"
    )


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
