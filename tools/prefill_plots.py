"""Draws the rate of prefill over length and the cost of short documents, from a ``python -m tools.bench prefill`` file.

python -m tools.prefill_plots [PREFILL.json [DIRECTORY]]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.comparison import thousands
from tools.drawing import Drawing, draw_recorded, legend, svg

Row = dict[str, Any]
HEAD_DIMS = (64, 128, 256)  # one panel, or one line, each
MASKS = ("full", "causal")
# One line of a plot: label, colour (Okabe and Ito's), marker, and the function that finds its time in a row.
LINES: list[tuple[str, str, str, Callable[[Row], float | None]]] = [
    ("lazyrope, documents in shuffled pages", "#0072B2", "o", lambda row: row["us"]),
    ("cuDNN, contiguous", "#E69F00", "s", lambda row: row["peers"].get("cudnn")),
    ("FlashAttention-2, contiguous", "#009E73", "^", lambda row: row["peers"].get("flash_attention_2")),
    ("FlashInfer fa3, contiguous", "#CC79A7", "v", lambda row: row["peers"].get("flashinfer_contiguous")),
    ("FlashAttention-4, contiguous", "#D55E00", "D", lambda row: row["peers"].get("flash_attention_4_contiguous")),
]
RATIOS = (1, 1.25, 1.5, 2, 3, 4)
COLOURS = {64: ("#E69F00", "s"), 128: ("#0072B2", "o"), 256: ("#009E73", "^")}


def over_length(rows: list[Row]) -> Drawing:
    """Draws one row of panels for each mask, with as many KV heads as query heads."""
    rows = [row for row in rows if row.get("group") == "squares" and row["heads"][0] == row["heads"][1]]

    def draw(figure: Any) -> None:
        panels = figure.subplots(len(MASKS), len(HEAD_DIMS), sharex=True, sharey=True, squeeze=False)
        for mask, line in zip(MASKS, panels, strict=True):
            for head_dim, axes in zip(HEAD_DIMS, line, strict=True):
                _panel(axes, [row for row in rows if row["mask"] == mask and row["head_dim"] == head_dim])
                axes.set_title(f"head_dim {head_dim}, {mask}", fontsize=10)
            line[0].set_ylabel("TFLOP/s")
            line[0].set_ylim(bottom=0)
        legend(figure, panels[0][0])

    caption = "Rate of prefill over length: 16384 tokens in all, bfloat16, 1024-token documents."
    return Drawing("prefill-over-length", caption, svg("prefill-over-length", draw, (9, 6)))


def _panel(axes: Any, rows: list[Row]) -> None:
    rows = sorted(rows, key=lambda row: row["context"])
    for label, colour, marker, time in LINES:
        points = [(row["context"], row["tflops"] * row["us"] / us) for row in rows if (us := time(row))]
        if points:
            style = {"color": colour, "marker": marker, "markerfacecolor": "none"}
            axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
    _length_axis(axes, sorted({row["context"] for row in rows}))
    axes.set_xlabel("tokens of a request")


def over_documents(rows: list[Row]) -> Drawing:
    """Draws one panel for each size of chunk: the time over that of one document without rotation."""
    rows = [row for row in rows if "plain" in row["own"] and row["mask"] == "full"]
    sizes = sorted({(row["query_tokens"], row["context"]) for row in rows})

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
        for size, axes in zip(sizes, panels, strict=True):
            own = [row for row in rows if (row["query_tokens"], row["context"]) == size]
            for head_dim in HEAD_DIMS:
                of_dim = [row for row in own if row["head_dim"] == head_dim]
                points = sorted((row["doc_tokens"], row["us"] / row["own"]["plain"]) for row in of_dim)
                colour, marker = COLOURS[head_dim]
                style = {"color": colour, "marker": marker, "label": f"head_dim {head_dim}"}
                axes.plot([x for x, _ in points], [y for _, y in points], **style)
            _length_axis(axes, sorted({row["doc_tokens"] for row in own}))
            axes.set_title(f"{size[0]} queries over {thousands(size[1])}", fontsize=10)
            axes.set_xlabel("tokens of a document")
        panels[0].set_ylabel("time over one document, not rotated")
        panels[0].set_yscale("log", base=2)
        panels[0].set_yticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS])
        panels[0].set_ylim(bottom=0.95)
        legend(figure, panels[0])

    caption = "The cost of documents at their own positions in prefill: 32 query and 8 KV heads, bfloat16."
    return Drawing("prefill-over-documents", caption, svg("prefill-over-documents", draw, (9, 3.6)))


def _length_axis(axes: Any, lengths: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [thousands(length) for length in lengths])


def main(arguments: list[str] | None = None) -> None:
    draw_recorded(__doc__, "prefill.json", (over_length, over_documents), arguments)


if __name__ == "__main__":
    main()
