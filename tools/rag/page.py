"""Shows the figures of ``python -m tools.rag`` as text for the terminal and as one HTML page with plots.

python -m tools.rag.page results.json page.html
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tools.rag import plots, tables
from tools.rag.tables import Table

TEMPLATE = "page.html.j2"


def fidelity_text(systems: dict[str, Any]) -> str:
    """Returns the table of a result of ``fidelity.Fidelity.summary``."""
    return tables.fidelity(systems).text()


def serving_text(serving: dict[str, Any]) -> str:
    """Returns the tables of a result of ``serving.measure``."""
    return f"{tables.single(serving).text()}\n\n{tables.served(serving).text()}"


def cascade_text(cascade: dict[str, Any]) -> str:
    """Returns the table of a result of ``serving.measure_cascade``."""
    return tables.cascade(cascade).text()


def write(result: dict[str, Any], path: Path) -> None:
    """Writes a page that needs no other file.

    Args:
        result: the object that ``python -m tools.rag --json`` writes. It may have any of the parts "fidelity",
            "serving" and "cascade".
        path: the file to write.

    Raises:
        ImportError: matplotlib is not installed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html(result), encoding="utf-8")


def html(result: dict[str, Any]) -> str:
    loader = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,
    )
    loader.globals["cells"] = cells
    return (
        loader.get_template(TEMPLATE)
        .render(
            result={"is_gpu": False, "complaints": []} | result,
            about=tables.about(result),
            fidelity=_fidelity_values(result["fidelity"]) if "fidelity" in result else None,
            serving=_serving_values(result["serving"]) if "serving" in result else None,
            cascade=_cascade_values(result["cascade"]) if "cascade" in result else None,
        )
        .lstrip()
    )


def cells(table: Table, row: list[str]) -> list[tuple[str, bool]]:
    """Returns the cells of a row, each with whether its column has numbers."""
    return list(zip(row, table.is_number(), strict=True))


def _fidelity_values(fidelity: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that the template needs for the figures of fidelity."""
    return fidelity | {
        "plot": plots.fidelity(fidelity),
        "table": tables.fidelity(fidelity["systems"]),
        "about": tables.about_fidelity(fidelity),
        "differences": _differences(fidelity["divergences"]),
    }


def _differences(divergences: list[dict[str, Any]]) -> Table:
    head = ["question", "first different token", "distance in fp32", "tokens (lazy, recompute)"]
    rows = [
        [d["question"], str(d["index"]), f"{d['margin']:.3f}", ", ".join(_token(t) for t in d["tokens"])]
        for d in divergences
    ]
    return Table(head, rows)


def _token(token: int) -> str:
    return "end" if token < 0 else str(token)


def _serving_values(serving: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that the template needs for the figures of serving."""
    return serving | {
        "single_plots": [plots.times(serving), plots.memory(serving)],
        "single_table": tables.single(serving),
        "about_single": tables.about_single(serving),
        "served_plots": plots.served(serving),
        "served_table": tables.served(serving),
        "about_served": tables.about_served(serving),
    }


def _cascade_values(cascade: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that the template needs for the figures with a cascade."""
    return {"table": tables.cascade(cascade), "about": tables.about_cascade(cascade)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.rag.page", description="Makes the page from recorded figures."
    )
    parser.add_argument("results", type=Path, metavar="FILE.json", help="a file of python -m tools.rag --json")
    parser.add_argument("page", type=Path, metavar="FILE.html", help="the page to write")
    options = parser.parse_args(arguments)
    write(json.loads(options.results.read_text()), options.page)
    print(f"page: {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
