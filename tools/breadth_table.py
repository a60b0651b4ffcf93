"""What ``lazyrope bench breadth`` measured, in few lines: for tools/readme_tables.py."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def share(row: Row) -> float:
    """Of the bandwidth of a plain sum over the same bytes."""
    return row["stream_us"] / row["us"]


def span(values: list[float], digits: int = 0) -> str:
    low, high = (f"{x:.{digits}f}" for x in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def over_own(row: Row) -> float:
    """Time over that of our own kernel that was measured in turns with it."""
    (own,) = row["own"].values()
    return row["us"] / own


def is_fp8(row: Row) -> bool:
    return row["kv_dtype"].startswith("float8")


def is_plain(row: Row) -> bool:
    return row["rope"] == "neox" and not any(name in row for name in ("window", "softcap", "sinks"))


def of_kernel(rows: list[Row], kernel: str) -> list[Row]:
    return [row for row in rows if row["kernel"] == kernel]


def head_dim_line(rows: list[Row], head_dim: int) -> list[str]:
    mine = [row for row in rows if row["head_dim"] == head_dim and is_plain(row)]
    fp8 = [row for row in mine if is_fp8(row)]
    own = [row for row in mine if not is_fp8(row) and row["heads"] in ([8, 8], [32, 8], [64, 8])]
    decode, prefill = of_kernel(own, "decode"), of_kernel(own, "prefill")
    line = [
        str(head_dim),
        f"{span([row['tbps'] for row in decode], 2)} TB/s",
        span([share(row) for row in decode], 2),
        f"{span([row['tflops'] for row in prefill])} TFLOP/s",
    ]
    if not fp8:
        return [*line, "none", "", ""]
    decode, prefill = of_kernel(fp8, "decode"), of_kernel(fp8, "prefill")
    return [
        *line,
        f"{span([1 / over_own(row) for row in decode], 2)}x",
        span([share(row) for row in decode], 2),
        f"{span([row['tflops'] for row in prefill])} TFLOP/s",
    ]


def variants_text(rows: list[Row], kernel: str, rate: str, unit: str, digits: int) -> str:
    """Of groups and RoPE variants, at head_dim 128."""
    mine = of_kernel(rows, kernel)
    groups = [r for r in mine if is_plain(r) and not is_fp8(r) and r["head_dim"] == 128 and r["heads"][1] == 8]
    few = [row[rate] for row in groups if row["heads"][0] <= 16 * 8]
    many = [row[rate] for row in groups if row["heads"][0] > 16 * 8]
    ropes = [100 * (over_own(r) - 1) for r in mine if r["rope"] not in ("neox", "none")]
    return (
        f"{kernel.capitalize()}: groups of 1 to 16 query heads {span(few, digits)} {unit}, of 71 {span(many, digits)}; "
        f"GPT-J, linear, Llama 3 and partial RoPE take {span(ropes, 1)}% longer than NeoX, measured in turns."
    )


def scores_text(rows: list[Row]) -> str:
    prefill = of_kernel(rows, "prefill")
    (softcap,) = (row for row in prefill if "softcap" in row)
    (window,) = (row for row in prefill if "window" in row)
    return (
        f"Prefill with softcap: {softcap['tflops']:.0f} TFLOP/s; with a window of {window['window']} tokens: "
        f"{window['us']:.0f} us."
    )


HEAD = [
    "head_dim",
    "decode 64 x 16k",
    "of a plain sum",
    "prefill 512 x 32k",
    "decode, 8-bit KV over 16-bit",
    "of a plain sum",
    "prefill, 8-bit KV",
]


def lines(rows: list[Row]) -> list[list[str]]:
    return [head_dim_line(rows, head_dim) for head_dim in sorted({row["head_dim"] for row in rows})]


def text(rows: list[Row]) -> str:
    return " ".join(
        [
            variants_text(rows, "decode", "tbps", "TB/s", 2),
            variants_text(rows, "prefill", "tflops", "TFLOP/s", 0),
            scores_text(rows),
        ]
    )
