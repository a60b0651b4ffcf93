"""Tables of python -m tools.memory."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

from tools.memory.texts import KINDS
from tools.rag.tables import Table


def summary(data: dict[str, Any], kind: str) -> Table:
    """Returns the means over seeds of one kind of text, in the order of the measurement."""
    cells = [cell for cell in data["cells"] if cell["kind"] == kind]
    rows = []
    for i, first in enumerate(cells[0]["rows"]):
        found = [cell["rows"][i] for cell in cells]
        assert all(row["method"] == first["method"] for row in found)
        kl = [row["kl"] for row in found]
        rows.append(
            [
                first["method"],
                f"{first['kilobytes']:.0f}",
                f"{first['read']:.0f}",
                f"{mean(kl):.3g}",
                f"{stdev(kl):.2g}" if len(kl) > 1 else "",
                f"{mean(row['nll'] for row in found):.3f}",
                f"{mean(row['top1'] for row in found):.1%}",
            ]
        )
    head = ["method", "KB", "KB read", "KL", "deviation over seeds", "NLL", "same top token"]
    return Table(head, rows)


def print_tables(data: dict[str, Any]) -> None:
    """Prints a table for each kind of text."""
    from tools.docs_pages import markdown

    for kind in KINDS:
        if any(cell["kind"] == kind for cell in data["cells"]):
            print(f"\n{kind}:\n\n{markdown(summary(data, kind))}")
