"""The limits of the benchmark, and the tables of its rows."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tools.vllm_bench.cells import ARMS, GIB, Cell, cells

Row = dict[str, Any]
FIGURES = {
    "requests_per_s": "requests/s",
    "ttft_p50_ms": "TTFT p50, ms",
    "ttft_p90_ms": "p90",
    "ttft_p99_ms": "p99",
    "hit_rate": "hits",
    "live": "live",
}
TOKEN_BYTES = 131072  # keys and values of Llama-3.1-8B in all layers
PRIVATE_TOKENS = 5 * 2048  # the documents of a request


def medians(rows: Sequence[Row]) -> dict[str, Row]:
    """Returns the rows by the names of their cells. Each figure is the median over the cell's seeds."""
    runs: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        runs[row["cell"]].append(row)
    return {name: _median(of_cell) for name, of_cell in runs.items()}


def _median(rows: list[Row]) -> Row:
    def median(name: str) -> Any:
        values = [row[name] for row in rows if row.get(name) is not None]
        is_number = bool(values) and all(isinstance(value, int | float) for value in values)
        return statistics.median(values) if is_number else next(iter(values), None)

    return {name: median(name) for name in rows[0]}


def limits(rows: Sequence[Row]) -> list[Row]:
    """Returns each limit, the measured ratio, and whether it is met. Ratio and verdict are None if not measured."""
    found = medians(rows)
    return [*_first_token_limits(found), *_decode_limits(found), *_closed_loop_limits(found)]


def _limit(what: str, ratio: float | None, *, least: float | None = None, most: float | None = None) -> Row:
    met = None
    if ratio is not None:
        met = (least is None or ratio >= least) and (most is None or ratio <= most)
    return {"kind": "required", "limit": what, "least": least, "most": most, "ratio": ratio, "met": met}


def _ratio(found: dict[str, Row], over: Cell, under: Cell, name: str, under_name: str | None = None) -> float | None:
    above, below = found.get(over.name), found.get(under.name)
    if above is None or below is None or not above[name] or not below[under_name or name]:
        return None
    return float(above[name] / below[under_name or name])


def _first_token_limits(found: dict[str, Row]) -> Iterator[Row]:
    ratio = _ratio(
        found, Cell("documents", "first_token"), Cell("stock", "first_token"), "new_order_ms", "same_order_ms"
    )
    yield _limit("TTFT of stored documents in a new order, over stock's of the same prefix", ratio, most=1.2)


def _decode_limits(found: dict[str, Row]) -> Iterator[Row]:
    for cell in cells():
        if cell.load == "decode" and cell.arm == "kernel":
            ratio = _ratio(found, cell, replace(cell, arm="stock"), "tokens_per_s")
            yield _limit(f"tokens a second of {cell.name}, over stock's", ratio, least=0.98)


def exceeds_budget(cell: Cell) -> bool:
    """Returns True if private copies of all clients' documents exceed the budget."""
    return cell.clients * PRIVATE_TOKENS * TOKEN_BYTES > cell.budget_gib * GIB


def _closed_loop_limits(found: dict[str, Row]) -> Iterator[Row]:
    for cell in cells():
        if cell.arm != "documents" or cell.load != "closed":
            continue
        copies, stock = replace(cell, arm="copies"), replace(cell, arm="stock")
        least = 1.4 if cell.zipf > 0 and exceeds_budget(cell) else 1.0
        yield _limit(
            f"requests a second of {cell.name}, over copies", _ratio(found, cell, copies, "requests_per_s"), least=least
        )
        if cell.zipf == 1.1 and stock in cells():
            ratio = _ratio(found, cell, stock, "requests_per_s")
            yield _limit(f"requests a second of {cell.name}, over stock", ratio, least=3.0)
        if cell == Cell("documents", "closed", zipf=2.1, budget_gib=8):  # the setting of the paper
            ratio = _ratio(found, copies, cell, "ttft_p50_ms")
            yield _limit(f"TTFT p50 of {copies.name}, over documents", ratio, least=1.37)


def text(rows: Sequence[Row], *, is_complete: bool = True) -> str:
    """Returns the tables and the limits as Markdown.

    Args:
        rows: The measured rows.
        is_complete: False: without the limits and the arms that are not measured.
    """
    found = medians(rows)
    outcomes = [outcome for outcome in limits(rows) if is_complete or outcome["met"] is not None]
    parts = [_first_tokens(found), _loads(found), _decodes(found), _limits(outcomes)]
    measured = {row["arm"] for row in rows}
    arms = "\n".join(f"- {name}: {what}" for name, what in ARMS.items() if is_complete or name in measured)
    return "\n\n".join([arms, *filter(None, parts)]) + "\n"


def _rows(found: dict[str, Row], loads: Sequence[str], line: Callable[[Cell, Row], list[str]]) -> list[list[str]]:
    return [line(cell, found[cell.name]) for cell in cells() if cell.load in loads and cell.name in found]


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def _loads(found: dict[str, Row]) -> str:
    def line(cell: Cell, row: Row) -> list[str]:
        load = f"{cell.load}, {cell.clients} clients, {cell.answer} tokens"
        place = [load, f"{cell.zipf:g}", f"{cell.budget_gib:g}", cell.arm]
        return place + [_number(row.get(name)) for name in FIGURES]

    lines = _rows(found, ("closed", "poisson"), line)
    lines.sort(key=lambda each: (each[0], float(each[1]), float(each[2])))
    return _table(["load", "Zipf", "KV, GiB", "arm", *FIGURES.values()], lines)


def _first_tokens(found: dict[str, Row]) -> str:
    names = ("cold_ms", "same_order_ms", "new_order_ms")
    lines = _rows(found, ("first_token",), lambda cell, row: [cell.arm, *(_number(row[name]) for name in names)])
    return _table(["one request alone", "cold, ms", "same order, ms", "new order, ms"], lines)


def _decodes(found: dict[str, Row]) -> str:
    def line(cell: Cell, row: Row) -> list[str]:
        host = ", ".join(f"{name} {ms:.2f}" for name, ms in row["host_ms"].items())
        return [str(cell.clients), cell.arm, _number(row["tokens_per_s"], 4), _number(row["step_ms"]), host]

    return _table(
        ["requests of 4k context", "arm", "tokens/s", "step, ms", "of it on the host, ms"],
        _rows(found, ("decode",), line),
    )


def _limits(outcomes: Sequence[Row]) -> str:
    def bound(outcome: Row) -> str:
        return f"at least {outcome['least']:g}" if outcome["most"] is None else f"at most {outcome['most']:g}"

    verdicts = {True: "met", False: "NOT MET", None: "not measured"}
    lines = [[o["limit"], bound(o), _number(o["ratio"]), verdicts[o["met"]]] for o in outcomes]
    return _table(["limit", "bound", "measured", ""], lines)


def _table(header: list[str], lines: list[list[str]]) -> str:
    """Returns a table in Markdown, or nothing if it has no lines."""
    if not lines:
        return ""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *lines))
