"""Tables of the rows of ``python -m tools.bench decode`` and ``sweep``, for tools/docs_pages.py."""

from __future__ import annotations

from typing import Any

from tools.comparison import (
    Name,
    Row,
    documents_text,
    has_usual_documents,
    own_table,
    peers_table,
    required,
    span,
    targets_table,
    thousands,
)
from tools.rag.tables import Table


def name(row: Row) -> str:
    """Returns batch and context, and the settings that differ from those of most rows."""
    if row["kernel"] == "plan":
        return f"{row['batch']} requests, {row['segments']} segments"
    differences = {
        f"one of {thousands(row.get('first_context', 0))} among them": "first_context" in row,
        f"{row['heads'][0]}/{row['heads'][1]} heads": row["heads"] != [32, 8],
        documents_text(row): not has_usual_documents(row),
        f"{row['query_tokens']} query tokens": row["query_tokens"] != 1,
        f"pages of {row['page_size']}": row["page_size"] != 16,
        "keys and values in separate tensors": "pools_apart" in row,
        f"KV in {row['kv_dtype']}": row["kv_dtype"] != row["dtype"],
        "batch invariant": "batch_invariant" in row,
    }
    return ", ".join(
        [f"{row['batch']} x {thousands(row['context'])}", *(text for text, differs in differences.items() if differs)]
    )


def tables(rows: list[Row]) -> dict[str, Table]:
    """Returns the tables of the page by the names that its template uses."""
    attend = [row for row in rows if row["kernel"] != "plan"]
    planner = [row for row in rows if row["kernel"] == "plan"]
    return {
        "peers": peers_table(attend, name, ["over a plain sum"], lambda row: [f"{row['us'] / row['stream_us']:.3f}"]),
        "own": own_table(attend, name),
        "planner": targets_of(planner, name),
        "targets": targets_table(attend, name),
    }


def targets_of(rows: list[Row], name: Name) -> Table:
    """Returns one line per row and target, for rows that have no peers."""
    lines = [
        [name(row), f"{row['us']:.1f}", f"{limit['bound_us']:.1f}", "met" if limit["met"] else "not met"]
        for row in rows
        for limit in required(row)
    ]
    return Table(["step", "us", "target, us", "result"], lines)


def sweep_facts(rows: list[Row]) -> dict[str, Any]:
    """Returns how many rows of the sweep meet their targets, and the worst rows."""
    with_peers = [(row["us"] / min(row["peers"].values()), row) for row in rows if row["peers"]]
    large = [(row["stream_us"] / row["us"], row) for row in rows if any("stream" in x["limit"] for x in row["limits"])]
    met = sum(all(limit["met"] for limit in row["limits"] if "best_peer" in limit["limit"]) for _, row in with_peers)
    worst, worst_row = max(with_peers, key=lambda pair: pair[0])
    least, least_row = min(large, key=lambda pair: pair[0])
    contexts = [row["context"] for row in rows]
    return {
        "rows": len(rows),
        "head_dims": span((row["head_dim"] for row in rows), 0),
        "groups": span((row["heads"][0] // row["heads"][1] for row in rows), 0),
        "batches": span((row["batch"] for row in rows), 0),
        "contexts": f"{thousands(min(contexts))} to {thousands(max(contexts))}",
        "met": met,
        "compared": len(with_peers),
        "worst": f"{worst:.2f}",
        "worst_shape": shape(worst_row),
        "least": f"{least:.2f}",
        "least_shape": shape(least_row),
    }


def shape(row: Row) -> str:
    heads = f"{row['heads'][0]}/{row['heads'][1]} heads of {row['head_dim']}"
    return f"{row['batch']} x {thousands(row['context'])}, {heads}"
