"""One table for rows of any kind of ``python -m tools.bench``: a line for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tools.bench.text import shape_text
from tools.comparison import PEERS, verdict
from tools.rag.tables import Table, digits

Row = dict[str, Any]
DEFAULTS = (", full", ", llama3", ", pages of 16", ", cascade False")


def name_of(row: Row) -> str:
    """Returns the row's text in the bench, without what most rows have."""
    text = " ".join(shape_text(row).split())
    for default in DEFAULTS:
        text = text.replace(default, "")
    return text


def rows_table(rows: Sequence[Row], own: dict[str, str]) -> Table:
    """Returns a table of the rows' times.

    Args:
        rows: Rows of a run in tests/gpu/results.
        own: The titles of times measured with the row, by their names.
    """
    has_targets = any(row["limits"] for row in rows)
    has_peers = any(row["peers"] for row in rows)
    optional = [("fastest other kernel, us", has_peers), ("target", has_targets)]
    head = ["step", "us", *own.values(), *(title for title, is_shown in optional if is_shown)]
    lines = []
    for row in rows:
        others = [digits(row["own"][each]) if each in row["own"] else "" for each in own]
        fastest = min(row["peers"].items(), key=lambda peer: peer[1], default=None)
        peer = f"{digits(fastest[1])}: {PEERS[fastest[0]]}" if fastest else ""
        last = [*([peer] if has_peers else []), *([verdict(row)] if has_targets else [])]
        lines.append([name_of(row), digits(row["us"]), *others, *last])
    return Table(head, lines)
