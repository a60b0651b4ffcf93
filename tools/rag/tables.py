"""The figures of ``python -m tools.rag`` as tables: for a terminal, for the page and for the README. Imports neither
torch nor matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

MODES = ("lazy", "block", "full")
BASELINE = "bf16 eager"
REFERENCE = "fp32 eager"  # from which the others' divergence is
SYSTEMS = ("lazy", "full", BASELINE, REFERENCE)  # in the order in which they are shown
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))


@dataclass(frozen=True)
class Table:
    head: list[str]
    rows: list[list[str]]

    def columns(self) -> list[tuple[str, ...]]:
        return list(zip(self.head, *self.rows, strict=True))

    def is_number(self) -> list[bool]:
        """Of each column; those are flushed right."""
        return [all(not cell or cell[0].isdigit() for cell in column[1:]) for column in self.columns()]

    def text(self) -> str:
        """For a terminal."""
        widths = [max(map(len, column)) for column in self.columns()]
        numbers = self.is_number()
        lines = []
        for row in (self.head, ["-" * width for width in widths], *self.rows):
            cells = zip(row, widths, numbers, strict=True)
            lines.append("  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in cells).rstrip())
        return "\n".join(lines)

    def html(self) -> str:
        marks = [' class="number"' if number else "" for number in self.is_number()]
        head = "".join(f"<th{mark}>{escape(cell)}</th>" for cell, mark in zip(self.head, marks, strict=True))
        body = "".join(
            "<tr>" + "".join(f"<td{m}>{escape(c)}</td>" for c, m in zip(row, marks, strict=True)) + "</tr>\n"
            for row in self.rows
        )
        return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def fidelity(systems: dict[str, Any]) -> Table:
    """A row for each kind of rows; divergence also as multiples of the baseline's."""
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


def single(worth: dict[str, Any]) -> Table:
    """One request alone."""
    given = worth["single"]
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


def served(worth: dict[str, Any]) -> Table:
    """The closed loop."""
    given = worth["served"]
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


def unit_of(values: Iterable[float]) -> tuple[str, int]:
    """The largest unit of which the largest value is at least one."""
    most = max(values, default=0)
    return next(((name, size) for name, size in UNITS if most >= size), UNITS[-1])


def digits(value: float) -> str:
    """Three of them, but all before the point."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def about(result: dict[str, Any]) -> list[tuple[str, str]]:
    """What was run where; what is not known is left out."""
    entries = [
        ("device", result.get("device")),
        ("driver", result.get("driver")),
        ("date", result.get("date")),
        ("commit", result.get("commit")),
        ("versions", ", ".join(f"{name} {version}" for name, version in result.get("versions", {}).items())),
        ("command", result.get("command")),
    ]
    return [(name, str(value)) for name, value in entries if value]


def about_line(result: dict[str, Any]) -> str:
    """The same in a line of Markdown."""
    words = {"driver": "driver {}", "commit": "commit {}", "command": "`{}`"}
    parts = [words.get(name, "{}").format(value) for name, value in about(result) if name != "versions"]
    versions = [
        f"{name} {result['versions'][name]}" for name in ("torch", "transformers") if name in result["versions"]
    ]
    return f"{', '.join(parts)}; {', '.join(versions)}."


def about_right(right: dict[str, Any]) -> str:
    """What the figures of fidelity are of."""
    counts = [case["documents"] for case in right["cases"]]
    contexts = [case["context"] for case in right["cases"]]
    apart = right["divergences"]
    text = (
        f"{right['model']}, bf16, attention by lazyrope ({right['backend']}); {len(counts)} cases of "
        f"{_range(counts)} documents, {_range(contexts)} tokens of context; divergence from the same model in fp32; "
        f"of {right['requests']} greedy answers {right['requests'] - len(apart)} are equal in lazy and full mode"
    )
    if apart:
        text += (
            f", the others part at near ties: a margin of at most {max(d['margin'] for d in apart):.2f} in fp32, while "
            f"bf16 moves margins by {right['noise']:.2f} (99th percentile)"
        )
    return text


def about_single(worth: dict[str, Any]) -> str:
    shape = worth["shape"]
    return (
        f"{worth['model']}; one request at a time: {shape['documents']} documents of {shape['document_tokens']} "
        f"tokens, a question of {shape['question_tokens']}, an answer of {shape['answer_tokens']}; cold: no document "
        "is stored; warm: all are; full stores none; medians"
    )


def about_served(worth: dict[str, Any]) -> str:
    load = worth["loads"][0]
    return (
        f"An empty store and {load['clients']} clients, each with its next request as soon as the last one is "
        f"answered; {load['requests']} requests in all, each of {load['per_request']} out of {load['documents']} "
        f"documents of {load['document_tokens']} tokens, chosen by Zipf's law with this exponent (0: all alike); full "
        f"shares nothing, so it is measured at {load['exponent']:g} only; at most: requests admitted at the same time, "
        "for block the best of several such numbers; alive: their average"
    )


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
