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
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return "\n".join(
        [
            tabulate(lines, head, tablefmt="simple", disable_numparse=True, colalign=alignment(len(head))),
            "",
            "B x Q over C: B requests with Q query tokens each over a context of C tokens. Other columns are in us;",
            "(1.20x) means 1.20 times lazyrope's time. The plain sum reads as many bytes as the kernel.",
            f"{result['gpu']}, driver {result['driver']}, {versions}.",
        ]
    )


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
