"""Draws the bandwidth of decode over context and over batch, from a result file of ``python -m tools.bench sweep``.

python -m tools.decode_plots [SWEEP.json [DIRECTORY]]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.drawing import Drawing, draw_recorded, legend, svg

HEADS, HEAD_DIM = [32, 8], 128  # the sweep has this shape at every size
BATCHES, CONTEXTS = (1, 8, 64), (4096, 16384)  # one panel each

Row = dict[str, Any]
# One line of a plot: label, colour (Okabe and Ito's), marker, and the function that finds its time in a row.
LINES: list[tuple[str, str, str, Callable[[Row], float | None]]] = [
    ("plain sum", "#808080", "", lambda row: row["stream_us"]),
    ("lazyrope, shuffled pages", "#0072B2", "o", lambda row: row["us"]),
    ("cuDNN, contiguous", "#E69F00", "s", lambda row: row["peers"].get("cudnn")),
    ("FlashAttention-2, contiguous", "#009E73", "^", lambda row: row["peers"].get("flash_attention_2")),
]


def over_context(rows: list[Row]) -> Drawing:
    return _drawing("decode-over-context", rows, panel=("batch", BATCHES), over="context")


def over_batch(rows: list[Row]) -> Drawing:
    return _drawing("decode-over-batch", rows, panel=("context", CONTEXTS), over="batch")


def size(name: str, value: int) -> str:
    return f"{value >> 10}k" if name == "context" else str(value)


def _drawing(name: str, rows: list[Row], panel: tuple[str, tuple[int, ...]], over: str) -> Drawing:
    rows = [row for row in rows if row["heads"] == HEADS and row["head_dim"] == HEAD_DIM]
    field, values = panel

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
        for axes, value in zip(panels, values, strict=True):
            _panel(axes, [row for row in rows if row[field] == value], over)
            axes.set_title(f"{field} {size(field, value)}", fontsize=10)
        panels[0].set_ylabel("keys and values read, TB/s")
        panels[0].set_ylim(bottom=0)
        legend(figure, panels[0])

    caption = f"Bandwidth of decode over {over}: 32 query and 8 KV heads, head_dim 128, bfloat16, 1024-token documents."
    return Drawing(name, caption, svg(name, draw, (9, 3.6)))


def _panel(axes: Any, rows: list[Row], over: str) -> None:
    rows = sorted(rows, key=lambda row: row[over])
    for label, colour, marker, time in LINES:
        points = [(row[over], row["tbps"] * row["us"] / us) for row in rows if (us := time(row))]
        style = {"color": colour, "marker": marker, "markerfacecolor": "none"}
        axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
    axes.set_xscale("log", base=2)
    ticks = sorted({row[over] for row in rows})
    axes.set_xticks(ticks, [size(over, tick) for tick in ticks])
    axes.set_xlabel(over)


def main(arguments: list[str] | None = None) -> None:
    draw_recorded(__doc__, "sweep.json", (over_context, over_batch), arguments)


if __name__ == "__main__":
    main()
