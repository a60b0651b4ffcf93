"""Draws what each level of recovery costs and how near it comes to an ordinary prefill."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SpecError

if TYPE_CHECKING:
    from .assessment import LevelResult

# The costs that are drawn: the label of the axis, and the number of a level.
COSTS: tuple[tuple[str, Callable[[LevelResult], float]], ...] = (
    ("tokens computed again, %", lambda row: 100 * row.recomputed_share),
    ("time to the first token, ms", lambda row: row.first_token_ms),
)
MARKERS = "osD^vP*X"  # levels may be at almost the same point


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the points (cost, KL) than which no other one is as cheap and nearer, or as near and cheaper, by cost."""
    found: list[tuple[float, float]] = []
    for cost, kl in sorted(set(points)):
        if not found or kl < found[-1][1]:
            found.append((cost, kl))
    return found


def new_figure() -> Any:
    """Returns an empty figure of matplotlib.

    Raises:
        SpecError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure  # needs no display and, unlike pyplot, keeps no state
    except ImportError:
        raise SpecError("matplotlib, which draws the plot, is missing: pip install matplotlib") from None
    return Figure(figsize=(9, 4), layout="constrained")


def format_of(file: str | os.PathLike[str]) -> str:
    """Returns the format of a plot by the suffix of its path.

    Raises:
        SpecError: matplotlib is missing, or it does not write this format.
    """
    known = new_figure().canvas.get_supported_filetypes()
    suffix = Path(file).suffix.removeprefix(".")
    if suffix not in known:
        raise SpecError(f"file = {str(file)!r}; its suffix must be one of {', '.join(f'.{name}' for name in known)}")
    return suffix


def figure_of(levels: Sequence[LevelResult], max_kl: float) -> Any:
    """Returns a figure with the mean KL of each level over each of its costs.

    Raises:
        SpecError: matplotlib is missing.
    """
    figure = new_figure()
    for axes, (label, cost) in zip(figure.subplots(1, 2, sharey=True), COSTS, strict=True):
        _draw(axes, [(row.level, cost(row), row.mean_kl) for row in levels], max_kl)
        axes.set_xlabel(label)
    figure.axes[0].set_ylabel("mean KL from an ordinary prefill, nats")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(levels) + 2)
    return figure


def _draw(axes: Any, levels: Sequence[tuple[str, float, float]], max_kl: float) -> None:
    points = [(cost, kl) for _, cost, kl in levels]
    # A step: between two levels of the frontier, the best that a cost buys is the cheaper one.
    axes.step(*zip(*frontier(points), strict=True), where="post", color="#9db8d6", label="frontier")
    for (level, cost, kl), marker in zip(levels, cycle(MARKERS), strict=False):
        axes.scatter(cost, kl, s=60, marker=marker, alpha=0.8, label=level, zorder=3, clip_on=False)
    if max_kl <= 1.2 * max(kl for _, kl in points):  # a far limit would press the levels together
        axes.axhline(max_kl, color="#c0504d", linestyle="dashed", label="allowed")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.15, y=0.1)
    axes.spines[["top", "right"]].set_visible(False)
