"""The table that ``lazyrope bench`` prints."""

from __future__ import annotations

from typing import Any

from .rows import Row

WORDS = {
    "cudnn": "cuDNN",
    "flash_attention_2": "FlashAttention-2",
    "torch_copy": "copy",
    "torch_eager": "eager PyTorch",
}


def table_text(result: dict[str, Any]) -> str:
    """Returns one line for each row and one column for each peer, in microseconds."""
    from tabulate import tabulate

    rows = result["rows"]
    peers = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    head = ["kernel", "shape", "lazyrope us", "rate", "plain sum", *(WORDS.get(name, name) for name in peers)]
    lines = [
        [row["kernel"], shape_text(row), f"{row['us']:.1f}", rate_text(row), time_text(row, row["stream_us"])]
        + [time_text(row, row["peers"].get(name)) for name in peers]
        for row in rows
    ]
    return "\n".join(
        [
            tabulate(lines, head, tablefmt="simple", disable_numparse=True, colalign=alignment(len(head))),
            "",
            "B x Q over C: B requests with Q query tokens each over a context of C tokens. Other columns are in us;",
            "(1.20x) means 1.20 times lazyrope's time. The plain sum reads as many bytes as the kernel.",
            machine_text(result),
        ]
    )


def shared_text(result: dict[str, Any]) -> str:
    """Returns one line for each step whose requests share documents, in microseconds."""
    from tabulate import tabulate

    head = ["requests", "distinct", "cascade us", "without us", "ratio", "plan us", "plan without us", "plain sum us"]
    lines = [shared_cells(row) for row in result["rows"]]
    return "\n".join(
        [
            tabulate(lines, head, tablefmt="simple", disable_numparse=True, colalign=["left", *["right"] * 7]),
            "",
            *shared_about(result["rows"][0]),
            machine_text(result),
        ]
    )


def shared_cells(row: Row) -> list[str]:
    alone = row["own"]["alone"]
    saved = row["distinct_tokens"] / (row["batch"] * row["context"])
    times = [row["us"], alone, row["us"] / alone, row["plan_us"], row["own_plan_us"]["alone"], row["stream_us"]]
    cells = [f"{time:.{3 if i == 2 else 1}f}" for i, time in enumerate(times)]
    return [f"{row['batch']} x {row['query_tokens']}", f"{100 * saved:.1f}%", *cells]


def shared_about(row: Row) -> list[str]:
    """Returns lines that say what was measured and what the columns mean."""
    q_heads, kv_heads = row["heads"]
    each = row["context"] // row["doc_tokens"]
    return [
        f"B x Q: B requests with Q query tokens each. Each request has {each} of {row['stored']} documents of "
        f"{row['doc_tokens']} tokens,",
        f"chosen by a Zipf distribution with the exponent {row['zipf']}. {q_heads} query heads, {kv_heads} KV heads, "
        f"head_dim {row['head_dim']}, {row['kv_dtype']} keys.",
        "distinct: the share of the requests' tokens that remains if each document counts once.",
        "ratio: the layer's time with a cascade over its time without one. The planner runs once a step, not once a",
        "layer, and its time is not in the others. The plain sum reads each distinct token once.",
    ]


def machine_text(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"{result['gpu']}, driver {result['driver']}, {versions}."


def alignment(columns: int) -> list[str]:
    return ["left", "left", *["right"] * (columns - 2)]


def shape_text(row: Row) -> str:
    if row["context"] == 0:
        return f"{row['batch']} x {row['query_tokens']} tokens"
    return f"{row['batch']} x {row['query_tokens']} over {row['context']}"


def rate_text(row: Row) -> str:
    return f"{row['tbps']:.2f} TB/s" if "tbps" in row else f"{row['tflops']:.0f} TFLOP/s"


def time_text(row: Row, us: float | None) -> str:
    return "" if us is None else f"{us:.1f} ({us / row['us']:.2f}x)"
