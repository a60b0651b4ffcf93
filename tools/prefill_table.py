"""What ``lazyrope bench prefill`` measured, for tools/readme_tables.py."""

from __future__ import annotations

from typing import Any

from tools.decode_table import all_required, comparison_text, thousands

Row = dict[str, Any]

HEAD = ["prefill", "us", "TFLOP/s", "beside it, us (over ours)", "required"]


def name(row: Row) -> str:
    """Query tokens and context of each request, and what is not as in the other rows."""
    batch = f"{row['batch']} of " if row["batch"] > 1 else ""
    size = f"{batch}{row['query_tokens']} x {thousands(row['context'])}"
    if "first_tokens" in row:
        size = (
            f"{row['first_tokens']} x {thousands(row['first_context'])} and {row['batch'] - 1} of "
            f"{row['query_tokens']} x {thousands(row['context'])}"
        )
    heads = f"{row['heads'][0]}/{row['heads'][1]} heads"
    non_default = {
        "causal": row["mask"] == "causal",
        heads: row["heads"] != [32, 8],
        f"head_dim {row['head_dim']}": row["head_dim"] != 128,
        f"documents of {thousands(row['doc_tokens'])}": row["doc_tokens"] != 1024,
        "no rotation": row["rope"] == "none",
        f"family {row.get('family')}": "family" in row,
        "batch invariant": "batch_invariant" in row,
    }
    return ", ".join([size, *(text for text, is_so in non_default.items() if is_so)])


def line(row: Row) -> list[str]:
    return [name(row), f"{row['us']:.1f}", f"{row['tflops']:.0f}", comparison_text(row), all_required(row)]


def mean_text(mean: dict[str, Any]) -> str:
    """One of the means that ``lazyrope bench`` judges."""
    limit = mean["limit"].replace("_", " ")
    if mean["mean"] is None:
        return f"{limit} required; not evaluated, for not all was measured."
    return f"{limit} required, {mean['mean']:.3f} measured: {'met' if mean['met'] else 'not met'}."


def _span(ratios: list[float]) -> str:
    low, high = (f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
    return low if low == high else f"{low} to {high}"


def peers_text(rows: list[Row]) -> str:
    """How the fastest peer does where queries are as many as keys."""
    by_dim: dict[int, list[float]] = {}
    for row in rows:
        if row.get("group") == "squares":
            by_dim.setdefault(row["head_dim"], []).append(min(row["peers"].values()) / row["us"])
    spans = [f"{_span(ratios)} at head_dim {dim}" for dim, ratios in sorted(by_dim.items())]
    return f"The fastest peer takes so many times as long as the squares: {', '.join(spans)}."


def documents_text(rows: list[Row]) -> str:
    """What documents cost over one that nothing rotates."""
    by_length: dict[tuple[int, bool], list[float]] = {}
    for row in rows:
        if "plain" in row["own"] and row["doc_tokens"] <= 1024:
            key = (row["doc_tokens"], row["head_dim"] == 256)
            by_length.setdefault(key, []).append(row["us"] / row["own"]["plain"])
    lengths = sorted({length for length, _ in by_length}, reverse=True)
    spans = [
        f"of {length} tokens {_span(by_length[length, False])} ({_span(by_length[length, True])} at head_dim 256)"
        for length in lengths
    ]
    return f"Documents take so many times as long as one that nothing rotates: {', '.join(spans)}."
