"""Tables that compare the rows of ``python -m tools.bench`` with their peers, other settings and targets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from tools.rag.tables import Table

Row = dict[str, Any]
Name = Callable[[Row], str]

# Kernels of other projects, in the order of the columns.
PEERS = {
    "cudnn": "cuDNN, contiguous",
    "flash_attention_2": "FlashAttention-2, contiguous",
    "flash_attention_3_contiguous": "FlashAttention-3 of vLLM, contiguous",
    "flash_attention_4_contiguous": "FlashAttention-4, contiguous",
    "flashinfer_contiguous": "FlashInfer fa3, contiguous",
    "cudnn_paged": "cuDNN, paged",
    "flashinfer_fa2": "FlashInfer fa2, paged",
    "flashinfer_fa3": "FlashInfer fa3, paged",
    "flashinfer_xqa": "FlashInfer XQA, paged",
    "flashinfer_cascade": "FlashInfer cascade, paged",
    "flash_attention_3": "FlashAttention-3 of vLLM, paged",
    "vllm_flash_attention_3": "FlashAttention-3 of vLLM, paged",
    "flash_attention_4": "FlashAttention-4, paged",
    "lazy_on_flashinfer": "lazy RoPE from FlashInfer's parts",
}
# lazyrope's kernel with one setting changed.
OWN = {
    "plain": "one document without rotation",
    "page_128": "pages of 128 tokens",
    "pools_apart": "keys and values in separate tensors",
    "one_token": "one query token",
    "batch_variant": "splits that depend on the batch",
    "decoding": "decode alone",
    "chunk": "the chunk alone",
    "from_pool": "keys that are not packed",
    "dtype": "products of 16 bits",
    "pool_16": "a pool of 16 bits",
    "sm80": "family sm80",
}
FIGURES = {
    "best_peer": "the fastest peer",
    "best_paged_peer": "the fastest paged peer",
    "stream_us": "a plain sum",
    "floor_us": "an empty launch",
}
NAMES = FIGURES | PEERS | OWN


def thousands(tokens: int) -> str:
    return f"{tokens >> 10}k" if tokens % 1024 == 0 else str(tokens)


def documents_text(row: Row) -> str:
    """Returns the lengths of the row's documents: "documents of about 400"."""
    if "doc_between" in row:
        return "documents of {} to {}".format(*row["doc_between"])
    return f"documents of {'about ' if row.get('ragged') else ''}{thousands(row['doc_tokens'])}"


def has_usual_documents(row: Row) -> bool:
    return row["doc_tokens"] == 1024 and not row.get("ragged") and "doc_between" not in row


def span(values: Iterable[float], digits: int = 2) -> str:
    """Returns "LOW to HIGH", or one number if both have the same digits."""
    values = list(values)
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def peers_table(rows: list[Row], name: Name, head: list[str], figures: Callable[[Row], list[str]]) -> Table:
    """Returns one line per row and one column per peer: the peer's time over lazyrope's.

    Args:
        name: the text of the first column.
        head: the titles of the columns that `figures` returns.
    """
    peers = [peer for peer in PEERS if any(peer in row["peers"] for row in rows)]
    lines = [
        [name(row), f"{row['us']:.1f}", *figures(row), *(_ratio(row, peer) for peer in peers), verdict(row)]
        for row in rows
    ]
    return Table(["shape", "us", *head, *(PEERS[peer] for peer in peers), "target"], lines)


def _ratio(row: Row, peer: str) -> str:
    return f"{row['peers'][peer] / row['us']:.2f}x" if peer in row["peers"] else ""


def own_table(rows: list[Row], name: Name) -> Table:
    """Returns one line for each other setting of lazyrope's kernel that was timed interleaved with a row."""
    lines = [
        [name(row), f"{row['us']:.1f}", OWN[setting], f"{us:.1f}", f"{row['us'] / us - 1:+.1%}"]
        for row in rows
        for setting, us in row["own"].items()
    ]
    return Table(["shape", "us", "compared with", "its us", "difference"], lines)


def required(row: Row) -> list[dict[str, Any]]:
    return [limit for limit in row["limits"] if limit["kind"] == "required"]


def verdict(row: Row) -> str:
    """Tells whether the row meets all its targets: "met", "not met by 1.3%", "not evaluated", or "" without targets."""
    limits = required(row)
    excess = [row["us"] / limit["bound_us"] - 1 for limit in limits if limit["met"] is False]
    if excess:
        return f"not met by {max(excess):.1%}"
    if any(limit["met"] is None for limit in limits):
        return "not evaluated"
    return "met" if limits else ""


def target_text(limit: str) -> str:
    """Replaces the names in a limit by words: "1.05 x stream_us" becomes "1.05 x a plain sum"."""
    text = re.sub(r"\w+", lambda match: NAMES.get(match[0], match[0]), limit)
    both = " + ".join(OWN[setting] for setting in ("decoding", "chunk"))
    return text.replace(both, f"({both})")


def targets_table(rows: list[Row], name: Name) -> Table:
    """Returns one line per target: the rows that meet it, and the rows that do not with their excess."""
    by_target: dict[str, tuple[list[str], list[str]]] = {}
    for row in rows:
        for limit in required(row):
            met, other = by_target.setdefault(target_text(limit["limit"]), ([], []))
            if limit["met"]:
                met.append(name(row))
            else:
                bound = limit["bound_us"]
                reason = "not evaluated" if bound is None else f"by {row['us'] / bound - 1:.1%}"
                other.append(f"{name(row)} ({reason})")
    lines = []
    for target, (met, other) in by_target.items():
        count = len(met) + len(other)
        lines.append([target, f"{len(met)} of {count}", "; ".join(met) if count <= 4 else "", "; ".join(other)])
    return Table(["time at most", "met", "met by", "not met by"], lines)
