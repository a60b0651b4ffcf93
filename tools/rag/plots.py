"""Drawings of the figures of ``python -m tools.rag``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools.drawing import Drawing, legend, log_scale, svg
from tools.rag.tables import BASELINE, MODES, digits, unit_of

# Colour-blind people can tell Okabe and Ito's colours apart. A mode has the same colour in every drawing.
COLOURS = {"lazy": "#0072B2", "block": "#E69F00", "recompute": "#009E73", BASELINE: "#808080"}
MARKERS = {"lazy": "o", "block": "s", "recompute": "^"}
Values = Sequence["float | None"]


def fidelity(figures: dict[str, Any]) -> Drawing:
    """Draws the divergence of each system from fp32, and the limit for lazy."""
    systems = figures["systems"]
    kinds = list(systems[BASELINE])
    names = [name for name in ("lazy", "recompute", BASELINE) if name in systems]
    series = {name: [1e3 * systems[name][kind]["mean_kl"] for kind in kinds] for name in names}
    limits = [figures["kl_limit"] * value for value in series[BASELINE]]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        _bars(axes, kinds, series, digits)
        label = f"limit: {figures['kl_limit']:g}x {BASELINE}"
        at = range(len(kinds))
        axes.hlines(limits, [x - 0.45 for x in at], [x + 0.45 for x in at], "black", "dashed", label=label)
        axes.set(
            ylabel="mean KL from fp32, 0.001 nats per token", ylim=(0, 1.15 * max(_measured(limits, *series.values())))
        )
        axes.set_title("Divergence of the model's predictions from those in fp32")
        legend(figure, axes)

    caption = (
        "Lower is better. bf16 eager is transformers' own attention in bf16, which shows the effect of rounding alone. "
        "Over all rows together, lazy must stay below the dashed line. One kind alone may exceed it by chance."
    )
    return Drawing("fidelity", caption, svg("fidelity", draw, (9, 4.4)))


def times(serving: dict[str, Any]) -> Drawing:
    """Draws the time to the first token and for each further token of one request alone."""
    panels = [
        ("first_token_ms", "time to first token, ms (log scale)", "Time to first token"),
        ("token_ms", "time per further token, ms", "Time per token"),
    ]

    def draw(figure: Any) -> None:
        for axes, (field, label, title) in zip(figure.subplots(1, 2), panels, strict=True):
            series = _by_state(serving, field)
            _bars(axes, ["cold", "warm"], series, digits)
            axes.set(ylabel=label, xlabel="documents stored before: none (cold), all (warm)")
            axes.set_title(title)
            if field == "first_token_ms":
                log_scale(axes, _measured(*series.values()))
            else:
                axes.set_ylim(0, 1.15 * max(_measured(*series.values())))
        legend(figure, axes)

    caption = (
        "One request at a time; lower is better. recompute stores nothing, so both groups show its one measurement."
    )
    return Drawing("times", caption, svg("times", draw, (9, 4.2)))


def _by_state(serving: dict[str, Any], field: str) -> dict[str, Values]:
    found = {(row["mode"], row["state"]): row[field] for row in serving["single"]}
    return {
        mode: [found.get((mode, state), found.get((mode, "cold"))) for state in ("cold", "warm")]
        for mode in MODES
        if (mode, "cold") in found
    }


def memory(serving: dict[str, Any]) -> Drawing:
    """Draws the KV that all requests share, and the KV that one request has alone."""
    fields = {"private_bytes": "private:\neach request again", "stored_bytes": "stored:\nonce for all requests"}
    unit, size = unit_of(row[field] for row in serving["single"] for field in fields)
    last = {row["mode"]: row for row in serving["single"]}
    series = {mode: [last[mode][field] / size for field in fields] for mode in MODES if mode in last}

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        _bars(axes, list(fields.values()), series, "{:.3g}".format)
        axes.set(ylabel=f"KV of one request, {unit}", ylim=(0, 1.15 * max(_measured(*series.values()))))
        axes.set_title("Memory that one request takes")
        legend(figure, axes)

    caption = "Private KV limits how many requests run at the same time; stored KV may be evicted when room is needed."
    return Drawing("memory", caption, svg("memory", draw, (7, 4.2)))


@dataclass(frozen=True)
class _Quantity:
    """A quantity that is drawn against the KV budget."""

    name: str
    title: str
    label: str
    caption: str
    fields: tuple[str, ...]
    scale: float = 1
    is_log: bool = False


_QUANTITIES = [
    _Quantity("rate", "Requests answered", "requests per second", "Higher is better.", ("requests_per_s",)),
    _Quantity(
        "waits",
        "Time to first token under load",
        "time to first token, ms (log scale)",
        "Lower is better. The time starts when a client sends its request, so it includes waiting for room.",
        ("first_token_p50_ms", "first_token_p90_ms"),
        is_log=True,
    ),
    _Quantity(
        "hits",
        "Documents found in the store",
        "hit rate, %",
        "The share of named documents that were stored, or being stored, on admission. recompute stores none.",
        ("hit_rate",),
        scale=100,
    ),
    _Quantity(
        "alive",
        "Admitted requests",
        "requests admitted at the same time",
        "The mean over the model's passes. It is at most the number of clients.",
        ("alive",),
    ),
]


def served(serving: dict[str, Any]) -> list[Drawing]:
    """Draws each quantity against the KV budget, with a panel for each Zipf exponent."""
    drawings = []
    for quantity in _QUANTITIES:
        exponents = sorted({row["exponent"] for row in serving["served"]})

        def draw(figure: Any, quantity: _Quantity = quantity, exponents: list[float] = exponents) -> None:
            panels = figure.subplots(1, len(exponents), sharey=True, squeeze=False)[0]
            for axes, exponent in zip(panels, exponents, strict=True):
                _lines(axes, serving, exponent, quantity)
            panels[0].set_ylabel(quantity.label)
            _share_limits(panels[0], serving, quantity)
            figure.suptitle(quantity.title)
            legend(figure, panels[0])

        caption = quantity.caption + " recompute shares nothing, so all panels show its one measurement."
        name = f"served-{quantity.name}"
        drawings.append(Drawing(name, caption, svg(name, draw, (9, 4.2))))
    return drawings


def _lines(axes: Any, serving: dict[str, Any], exponent: float, quantity: _Quantity) -> None:
    budgets = sorted({row["budget_bytes"] for row in serving["served"]})
    unit, size = unit_of(budgets)
    for mode in MODES:
        rows = _rows_of(serving, mode, exponent)
        x = [budgets.index(row["budget_bytes"]) for row in rows]
        for field, dashes in zip(quantity.fields, ("solid", "dashed"), strict=False):
            which = f" {field.split('_')[2]}" if len(quantity.fields) > 1 else ""
            y = [quantity.scale * row[field] for row in rows]
            style = {"color": COLOURS[mode], "linestyle": dashes, "marker": MARKERS[mode]}
            style |= {"markerfacecolor": "none", "markersize": 7}  # markers at one point stay visible
            if rows:
                axes.plot(x, y, label=mode + which, **style)
    axes.set_xticks(range(len(budgets)), [f"{budget / size:g}" for budget in budgets])
    axes.set_xlim(-0.3, len(budgets) - 0.7)
    axes.set_xlabel(f"KV budget, {unit}")
    axes.set_title(f"Zipf exponent {exponent:g}", fontsize=10)


def _rows_of(serving: dict[str, Any], mode: str, exponent: float) -> list[dict[str, Any]]:
    """Returns the rows of a mode at an exponent, by budget.

    Rows of "recompute" at one exponent serve for all others too.
    """
    rows = [row for row in serving["served"] if row["mode"] == mode]
    here = [row for row in rows if row["exponent"] == exponent]
    return sorted(here or (rows if mode == "recompute" else []), key=lambda row: row["budget_bytes"])


def _share_limits(axes: Any, serving: dict[str, Any], quantity: _Quantity) -> None:
    values = [quantity.scale * row[field] for row in serving["served"] for field in quantity.fields]
    if quantity.is_log:
        log_scale(axes, values)
    else:
        axes.set_ylim(-0.02 * max(values), 1.1 * max(values) or 1)


def _bars(axes: Any, groups: list[str], series: dict[str, Values], text: Any) -> None:
    """Draws a bar for each name in each group, with its value above it."""
    width = 0.84 / len(series)
    for i, (name, values) in enumerate(series.items()):
        at = [(x + (i - (len(series) - 1) / 2) * width, value) for x, value in enumerate(values) if value is not None]
        bars = axes.bar([x for x, _ in at], [y for _, y in at], 0.92 * width, color=COLOURS[name], label=name)
        axes.bar_label(bars, [text(y) for _, y in at], padding=2, fontsize=9)
    axes.set_xticks(range(len(groups)), [group.replace(", ", ",\n") for group in groups])
    axes.tick_params(axis="x", length=0)


def _measured(*series: Values) -> list[float]:
    return [value for values in series for value in values if value is not None]
