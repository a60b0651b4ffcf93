"""Draws what vLLM serves over the size of its KV cache, from a ``python -m tools.vllm_bench`` file.

python -m tools.vllm_plots [VLLM.json [DIRECTORY]]
"""

from __future__ import annotations

from typing import Any

from tools.drawing import Drawing, draw_recorded, legend, svg
from tools.vllm_bench.cells import Cell, cells
from tools.vllm_bench.report import medians

Row = dict[str, Any]
# Label, colour (Okabe and Ito's) and marker of each arm.
LINES = {
    "documents": ("lazyrope, shared documents", "#0072B2", "o"),
    "first_page": ("lazyrope, first_page", "#56B4E9", "P"),
    "copies": ("copies (Block-Attention)", "#E69F00", "s"),
    "kernel": ("stock scheduler, lazyrope's kernels", "#CC79A7", "v"),
    "stock": ("stock vLLM", "#009E73", "^"),
}
FIGURES = {"requests_per_s": "requests/s", "ttft_p50_ms": "TTFT p50, ms"}


def over_budget(rows: list[Row]) -> Drawing:
    """Draws a column of panels for each popularity: requests a second, and below them the time to the first token."""
    found = medians(rows)
    closed = [cell for cell in cells() if (cell.load, cell.clients, cell.answer) == ("closed", 32, 16)]
    closed = [cell for cell in closed if cell.name in found]
    exponents = sorted({cell.zipf for cell in closed})

    def draw(figure: Any) -> None:
        panels = figure.subplots(len(FIGURES), len(exponents), sharex=True, sharey="row", squeeze=False)
        for line, (name, title) in zip(panels, FIGURES.items(), strict=True):
            for axes, zipf in zip(line, exponents, strict=True):
                _panel(axes, [(cell, found[cell.name]) for cell in closed if cell.zipf == zipf], name)
                axes.set_title(f"Zipf {zipf:g}", fontsize=10)
            line[0].set_ylabel(title)
            line[0].set_yscale("log")
        for axes in panels[-1]:
            axes.set_xlabel("KV cache, GiB")
        legend(figure, max((axes for axes in panels[0]), key=lambda axes: len(axes.get_lines())))

    caption = "vLLM over documents: 32 clients, answers of 16 tokens, five of 100 documents of 2048 tokens a request."
    return Drawing("vllm-over-budget", caption, svg("vllm-over-budget", draw, (9, 6)))


def _panel(axes: Any, rows: list[tuple[Cell, Row]], figure: str) -> None:
    budgets = sorted({cell.budget_gib for cell, _ in rows})
    for arm, (label, colour, marker) in LINES.items():
        points = sorted((cell.budget_gib, row[figure]) for cell, row in rows if cell.arm == arm and row[figure])
        if points:
            style = {"color": colour, "marker": marker, "markerfacecolor": "none"}
            axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])


def main(arguments: list[str] | None = None) -> None:
    draw_recorded(__doc__, "vllm.json", (over_budget,), arguments)


if __name__ == "__main__":
    main()
