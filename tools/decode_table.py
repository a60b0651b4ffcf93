"""What ``lazyrope bench decode`` and ``lazyrope bench sweep`` measured, for tools/readme_tables.py."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]

HEAD = ["decode", "us", "over a plain sum", "beside it, us (over ours)", "required"]
PEERS = {
    "cudnn": "cuDNN, contiguous",
    "flash_attention_2": "FlashAttention-2, contiguous",
    "cudnn_paged": "cuDNN",
    "flashinfer_fa2": "FlashInfer fa2",
    "flashinfer_xqa": "FlashInfer XQA",
    "flash_attention_4": "FlashAttention-4",
    "flashinfer_fa3": "FlashInfer fa3",
    "flashinfer_contiguous": "FlashInfer fa3, contiguous",
    "flash_attention_4_contiguous": "FlashAttention-4, contiguous",
    "lazy_on_flashinfer": "lazy attention from FlashInfer's parts",
}
OWN = {
    "plain": "no rotation, one document",
    "page_128": "pages of 128",
    "pools_apart": "all keys before all values",
    "one_token": "one query token",
    "batch_variant": "parts that depend on the batch",
    "decoding": "what decodes",
    "chunk": "the chunk",
}


def thousands(tokens: int) -> str:
    return f"{tokens >> 10}k" if tokens % 1024 == 0 else str(tokens)


def name(row: Row) -> str:
    """Batch and context, and what is not as in the other rows."""
    if row["kernel"] == "plan":
        return f"planner: {row['batch']} requests, {row['segments']} segments"
    mean = "about " if row.get("ragged") else ""
    non_default = {
        f"one of {thousands(row.get('first_context', 0))} among them": "first_context" in row,
        f"documents of {mean}{row['doc_tokens']}": row["doc_tokens"] != 1024,
        f"{row['query_tokens']} query tokens": row["query_tokens"] != 1,
        f"pages of {row['page_size']}": row["page_size"] != 16,
        "all keys before all values": "pools_apart" in row,
        f"KV in {row['kv_dtype']}": row["kv_dtype"] != row["dtype"],
        "batch invariant": "batch_invariant" in row,
    }
    return ", ".join(
        [f"{row['batch']} x {thousands(row['context'])}", *(text for text, is_so in non_default.items() if is_so)]
    )


def line(row: Row) -> list[str]:
    base = row.get("stream_us")
    over = f"{row['us'] / base:.3f}" if base else ""
    return [name(row), f"{row['us']:.1f}", over, comparison_text(row), all_required(row)]


def comparison_text(row: Row) -> str:
    """What was measured interleaved with a row, the fastest first."""
    names = PEERS | OWN
    times = sorted((row["own"] | row["peers"]).items(), key=lambda item: item[1])
    return ", ".join(f"{names.get(key, key)} {us:.1f} ({us / row['us']:.2f}x)" for key, us in times)


def all_required(row: Row) -> str:
    return "; ".join(required(limit, row["us"]) for limit in row["limits"] if limit["kind"] == "required")


def required(limit: dict[str, Any], us: float) -> str:
    bound = limit["bound_us"]
    unmet = "not evaluated" if bound is None else f"not met by {us / bound - 1:.1%}"
    return f"{limit['limit'].replace('_', ' ')}: {'met' if limit['met'] else unmet}"


def sweep_text(rows: list[Row]) -> str:
    """In how many rows of the sweep the limits are met, and the worst."""
    paired = [(row["us"] / min(row["peers"].values()), row) for row in rows if row["peers"]]
    large = [(row["stream_us"] / row["us"], row) for row in rows if any("stream" in x["limit"] for x in row["limits"])]
    met = sum(all(limit["met"] for limit in row["limits"] if "best_peer" in limit["limit"]) for _, row in paired)
    worst, at = max(paired, key=lambda pair: pair[0])
    least, least_at = min(large, key=lambda pair: pair[0])
    return (
        f"{len(rows)} rows: head_dim {_span(rows, lambda row: row['head_dim'])}, "
        f"{_span(rows, lambda row: row['heads'][0] // row['heads'][1])} query heads for each KV head, batch "
        f"{_span(rows, lambda row: row['batch'])}, context {_span(rows, lambda row: row['context'], thousands)}, up to "
        f"16 GiB of keys and values. Within 3% or 1 us of the faster of cuDNN and FlashAttention-2, which read "
        f"contiguous keys, in {met} of {len(paired)}; at most {worst:.2f} times its time ({shape(at)}). Above 1 GB at "
        f"least {least:.2f} of the bandwidth of a plain sum ({shape(least_at)})."
    )


def shape(row: Row) -> str:
    heads = f"{row['heads'][0]}/{row['heads'][1]} heads of {row['head_dim']}"
    return f"{row['batch']} x {thousands(row['context'])}, {heads}"


def _span(rows: list[Row], value: Any, text: Any = str) -> str:
    values = [value(row) for row in rows]
    return f"{text(min(values))} to {text(max(values))}"
