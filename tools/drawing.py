"""Draws figures as SVG. matplotlib is imported only when something is drawn."""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tests" / "gpu" / "results"
PLOTS = ROOT / "python" / "docs" / "results"

STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "figure.dpi": 72,
    "svg.hashsalt": "lazyrope",  # the same figures give the same bytes
}


@dataclass(frozen=True)
class Drawing:
    name: str
    caption: str
    svg: str


def require_matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "matplotlib, which draws the plots, is missing: pip install matplotlib, or `make rag`"
        ) from error
    return matplotlib


def svg(name: str, draw: Callable[[Any], None], size: tuple[float, float]) -> str:
    """Returns the text of an SVG file. Its ids begin with `name`, so one HTML page can have several drawings."""
    matplotlib = require_matplotlib()
    from matplotlib.figure import Figure  # needs no display and, unlike pyplot, keeps no state

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', lambda m: f"{m[1]}{name}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(name)}"', 1)


def log_scale(axes: Any, values: Sequence[float]) -> None:
    """Sets a log scale with plain numbers as labels and room for the values above bars."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.set_ylim(min(values) / 2, max(values) * 2)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def legend(figure: Any, axes: Any) -> None:
    """Puts the legend below the curves."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))


def draw_recorded(
    about: str | None, recorded: str, draw: Sequence[Callable[[Any], Drawing]], given: list[str] | None
) -> None:
    """Runs the command of a module: writes a file for each drawing of the rows of a result file.

    Args:
        about: the module's docstring.
        recorded: the name of the default result file.
        draw: the functions that draw the rows.
        given: the arguments of the command.
    """
    summary, usage = (about or "").strip().split("\n\n")
    parser = argparse.ArgumentParser(prog=usage.split(" [")[0], description=summary)
    parser.add_argument("recorded", type=Path, nargs="?", default=RESULTS / recorded, help="the result file")
    parser.add_argument("directory", type=Path, nargs="?", default=PLOTS, help="where the drawings go")
    options = parser.parse_args(given)
    rows = json.loads(options.recorded.read_text())["rows"]
    for drawing in (one(rows) for one in draw):
        options.directory.mkdir(parents=True, exist_ok=True)
        (options.directory / f"{drawing.name}.svg").write_text(drawing.svg)
