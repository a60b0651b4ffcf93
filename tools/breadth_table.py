"""Tables of the rows of ``python -m tools.bench breadth``, for tools/docs_pages.py."""

from __future__ import annotations

from typing import Any

from tools.comparison import Row, span
from tools.rag.tables import Table


def share(row: Row) -> float:
    """Returns the bandwidth as a fraction of that of a plain sum over the same bytes."""
    return row["stream_us"] / row["us"]


def over_own(row: Row) -> float:
    """Returns the row's time over that of the variant of lazyrope's kernel that was timed with it."""
    (own,) = row["own"].values()
    return row["us"] / own


def is_fp8(row: Row) -> bool:
    return row["kv_dtype"].startswith("float8")


def is_plain(row: Row) -> bool:
    return row["rope"] == "neox" and not any(name in row for name in ("window", "softcap", "sinks"))


def of_kernel(rows: list[Row], kernel: str) -> list[Row]:
    return [row for row in rows if row["kernel"] == kernel]


def rates(rows: list[Row], figure: str) -> str:
    return span((row[figure] for row in rows), 2 if figure == "tbps" else 0)


def tables(rows: list[Row]) -> dict[str, Table]:
    """Returns the tables of the page by the names that its template uses."""
    plain = [row for row in rows if is_plain(row)]
    own = [row for row in plain if not is_fp8(row) and row["heads"] in ([8, 8], [32, 8], [64, 8])]
    fp8 = [row for row in plain if is_fp8(row)]
    return {
        "own": Table(
            ["head_dim", "decode 64 x 16k, TB/s", "share of a plain sum", "prefill 512 x 32k, TFLOP/s"],
            [own_line(head_dim, of_dim) for head_dim, of_dim in by_head_dim(own)],
        ),
        "fp8": Table(
            ["head_dim", "decode, speed-up over 16 bits", "share of a plain sum", "prefill 512 x 32k, TFLOP/s"],
            [fp8_line(head_dim, of_dim) for head_dim, of_dim in by_head_dim(fp8)],
        ),
        "groups": groups_table(rows),
        "ropes": ropes_table(rows),
    }


def by_head_dim(rows: list[Row]) -> list[tuple[int, list[Row]]]:
    return [(dim, [r for r in rows if r["head_dim"] == dim]) for dim in sorted({row["head_dim"] for row in rows})]


def own_line(head_dim: int, rows: list[Row]) -> list[str]:
    decode, prefill = of_kernel(rows, "decode"), of_kernel(rows, "prefill")
    return [str(head_dim), rates(decode, "tbps"), span(map(share, decode)), rates(prefill, "tflops")]


def fp8_line(head_dim: int, rows: list[Row]) -> list[str]:
    decode, prefill = of_kernel(rows, "decode"), of_kernel(rows, "prefill")
    speed_up = span(1 / over_own(row) for row in decode)
    return [str(head_dim), f"{speed_up}x", span(map(share, decode)), rates(prefill, "tflops")]


def groups_table(rows: list[Row]) -> Table:
    """Returns the rates by the number of query heads for each KV head, at head_dim 128 and 8 KV heads."""
    plain = [r for r in rows if is_plain(r) and not is_fp8(r) and r["head_dim"] == 128 and r["heads"][1] == 8]
    lines = []
    for heads in sorted({row["heads"][0] for row in plain}):
        of_group = [row for row in plain if row["heads"][0] == heads]
        decode, prefill = of_kernel(of_group, "decode"), of_kernel(of_group, "prefill")
        lines.append([str(heads // 8), rates(decode, "tbps"), rates(prefill, "tflops")])
    return Table(["query heads for each KV head", "decode, TB/s", "prefill, TFLOP/s"], lines)


def ropes_table(rows: list[Row]) -> Table:
    """Returns how much longer than NeoX the other RoPE variants take."""
    changes: dict[tuple[str, int], dict[str, str]] = {}
    for row in rows:
        if row["rope"] not in ("neox", "none"):
            of_variant = changes.setdefault((row["rope"], row["head_dim"]), {})
            of_variant[row["kernel"]] = f"{over_own(row) - 1:+.1%}"
    lines = [
        [rope, str(head_dim), of_variant.get("decode", ""), of_variant.get("prefill", "")]
        for (rope, head_dim), of_variant in changes.items()
    ]
    return Table(["RoPE", "head_dim", "decode", "prefill"], lines)


def facts(rows: list[Row]) -> dict[str, Any]:
    prefill = of_kernel(rows, "prefill")
    (softcap,) = (row for row in prefill if "softcap" in row)
    (window,) = (row for row in prefill if "window" in row)
    return {
        "softcap_tflops": f"{softcap['tflops']:.0f}",
        "window": window["window"],
        "window_us": f"{window['us']:.0f}",
    }
