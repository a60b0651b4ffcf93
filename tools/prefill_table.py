"""Tables of the rows of ``python -m tools.bench prefill``, for tools/docs_pages.py."""

from __future__ import annotations

from typing import Any

from tools.comparison import (
    Name,
    Row,
    documents_text,
    has_usual_documents,
    own_table,
    peers_table,
    span,
    targets_table,
    thousands,
)
from tools.rag.tables import Table


def name(row: Row) -> str:
    """Returns query tokens and context of each request, and the settings that differ from those of most rows."""
    heads = f"{row['heads'][0]}/{row['heads'][1]} heads"
    differences = {
        "causal": row["mask"] == "causal",
        heads: row["heads"] != [32, 8],
        f"head_dim {row['head_dim']}": row["head_dim"] != 128,
        documents_text(row): not has_usual_documents(row),
        f"KV in {row['kv_dtype']}": row["kv_dtype"] != row["dtype"],
        "no rotation": row["rope"] == "none",
        f"family {row.get('family')}": "family" in row,
        "batch invariant": "batch_invariant" in row,
        "packed keys": "packed_prefill" in row,
        "8-bit products": row.get("compute") == "float8",
    }
    return ", ".join([_size(row), *(text for text, differs in differences.items() if differs)])


def _size(row: Row) -> str:
    if "first_tokens" in row:
        return (
            f"{row['first_tokens']} x {thousands(row['first_context'])} and {row['batch'] - 1} of "
            f"{row['query_tokens']} x {thousands(row['context'])}"
        )
    batch = f"{row['batch']} of " if row["batch"] > 1 else ""
    return f"{batch}{row['query_tokens']} x {thousands(row['context'])}"


def _square_name(row: Row) -> str:
    return f"{_size(row)}, {row['mask']}"


def is_square(row: Row) -> bool:
    """Tells whether the row is a whole request, which has as many queries as keys."""
    return row.get("group") == "squares"


def tables(rows: list[Row]) -> dict[str, Any]:
    """Returns the tables of the page by the names that its template uses."""
    chunks = [row for row in rows if not is_square(row) and row["peers"]]
    beside_all = [row for row in chunks if "cudnn_paged" in row["peers"]]
    beside_few = [row for row in chunks if "cudnn_paged" not in row["peers"]]
    compared = [row for row in rows if set(row["own"]) - {"plain"}]
    return {
        "chunks": _peers(beside_all, name),
        "more_chunks": _peers(beside_few, name),
        "squares": {heads: _peers(of_heads, _square_name) for heads, of_heads in _squares_by_heads(rows).items()},
        "documents": documents_table(rows),
        "own": own_table([row | {"own": _without_plain(row)} for row in compared], name),
        "targets": targets_table(rows, name),
    }


def _without_plain(row: Row) -> dict[str, float]:
    return {setting: us for setting, us in row["own"].items() if setting != "plain"}


def _peers(rows: list[Row], name: Name) -> Table:
    return peers_table(rows, name, ["TFLOP/s"], lambda row: [f"{row['tflops']:.0f}"])


def _squares_by_heads(rows: list[Row]) -> dict[str, list[Row]]:
    result: dict[str, list[Row]] = {}
    for row in filter(is_square, rows):
        heads = f"{row['heads'][0]} query and {row['heads'][1]} KV heads, head_dim {row['head_dim']}"
        result.setdefault(heads, []).append(row)
    return result


def documents_table(rows: list[Row]) -> Table:
    """Returns the time of each shape, by the length of its documents, over one document without rotation."""
    ratios: dict[tuple[int, str], dict[int, float]] = {}
    for row in rows:
        if "plain" in row["own"]:
            key = row["head_dim"], _size(row)
            ratios.setdefault(key, {})[row["doc_tokens"]] = row["us"] / row["own"]["plain"]
    lengths = sorted({length for of_shape in ratios.values() for length in of_shape}, reverse=True)
    lines = [
        [str(head_dim), size, *(f"{of_shape[n]:.2f}x" if n in of_shape else "" for n in lengths)]
        for (head_dim, size), of_shape in sorted(ratios.items())
    ]
    return Table(["head_dim", "shape", *(f"documents of {thousands(n)}" for n in lengths)], lines)


def plans_text(rows: list[Row]) -> str:
    """Returns the times of plans that pack keys, beside those of the same steps without it."""
    packed = [row for row in rows if "from_pool" in row.get("own_plan_us", {})]
    times = [f"{row['plan_us']:.0f} us against {row['own_plan_us']['from_pool']:.0f} ({name(row)})" for row in packed]
    return "; ".join(times) + "."


def peers_text(rows: list[Row]) -> str:
    """Compares the fastest peer with lazyrope in whole requests, which have as many queries as keys."""
    by_dim: dict[int, list[float]] = {}
    for row in filter(is_square, rows):
        by_dim.setdefault(row["head_dim"], []).append(min(row["peers"].values()) / row["us"])
    spans = [f"{span(ratios)} at head_dim {dim}" for dim, ratios in sorted(by_dim.items())]
    return f"The fastest peer's time over lazyrope's is {', '.join(spans)}."


def mean_text(mean: dict[str, Any]) -> str:
    """Says whether one of the means over a group of rows meets its target."""
    about, least = mean["limit"].rsplit(": ", 1)
    about = about.replace("best_peer over ours", "the fastest peer's time over lazyrope's").replace(
        "in all rows of squares", "over all whole requests"
    )
    if mean["mean"] is None:
        return (
            f"The {about}: at least {least} is the target; it was not evaluated, because some rows were not measured."
        )
    return f"The {about}: {mean['mean']:.3f}; the target of at least {least} is {'met' if mean['met'] else 'not met'}."
