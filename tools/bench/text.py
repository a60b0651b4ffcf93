"""The lines that ``python -m tools.bench`` prints about a row."""

from __future__ import annotations

from lazyrope.bench.rows import Row

# Options of the spec that a row may have.
SCORES = (
    *("window", "chunk", "softcap", "sinks", "temperature", "key_form", "batch_invariant"),
    *("cascade", "packed_prefill", "page_mass", "key_bias", "states", "compute"),
)


def row_text(row: Row) -> str:
    """Returns the row's shape, its time and quartiles, its rate, and the times measured with it."""
    return f"{shape_text(row)}: {row['us']:.1f} us{spread_text(row)}{rate_text(row)}{others_text(row)}"


def spread_text(row: Row) -> str:
    if "quartiles_us" not in row:
        return ""
    first, third = row["quartiles_us"]
    return f" ({first:.1f} to {third:.1f})"


def shape_text(row: Row) -> str:
    if row["kernel"] == "plan":
        return f"plan       {row['batch']:3d} requests of {row['segments']} segments in all"
    heads = f"{row['heads'][0]}/{row['heads'][1]}x{row['head_dim']}"
    context = f"{row['first_context']} and {row['context']}" if "first_context" in row else str(row["context"])
    kv_dtype = f", {row['kv_dtype']}" if row["kv_dtype"] != row["dtype"] else ""
    scores = "".join(f", {name} {row[name]}" for name in SCORES if name in row)
    documents = f"documents of {lengths_text(row)}"
    first = f", {row['first_tokens']} of the first" if "first_tokens" in row else ""
    documents += f" in cells of {row['cell']}" if "cell" in row else ""
    documents += f", {row['distinct_tokens']} distinct tokens" if "distinct_tokens" in row else ""
    documents += f", in place of {row['peers_at']['context']}" if "peers_at" in row else ""
    family = f", family {row['family']}" if "family" in row else ""
    return (
        f"{row['kernel']:10s} {row['batch']:3d} x {row['query_tokens']} over {context}{first} "
        f"({heads}{kv_dtype}, {row['mask']}, {row['rope']}{scores}{family}, {documents}, "
        f"pages of {row['page_size']}{', pools apart' if 'pools_apart' in row else ''})"
    )


def lengths_text(row: Row) -> str:
    if "doc_between" in row:
        return "{} to {}".format(*row["doc_between"])
    return f"about {row['doc_tokens']}" if "ragged" in row else str(row["doc_tokens"])


def rate_text(row: Row) -> str:
    if "tbps" in row:
        return f", {row['tbps']:.2f} TB/s"
    return f", {row['tflops']:.0f} TFLOP/s" if "tflops" in row else ""


def others_text(row: Row) -> str:
    """Returns the other times of the row. A ratio in brackets is the row's time over the other time."""
    references = {name: row[name] for name in ("stream_us", "floor_us") if name in row}
    best = min(row["peers"].values(), default=None)
    times = [f"{name.removesuffix('_us')} {us:.1f} ({row['us'] / us:.3f}x)" for name, us in references.items()]
    times += [f"{name.removesuffix('_us')} {row[name]:.1f}" for name in ("plan_us", "step_us") if name in row]
    times += [f"{name} {us:.1f} ({row['us'] / us:.3f}x)" for name, us in row["own"].items()]
    times += [f"plan of {name} {us:.1f}" for name, us in row.get("own_plan_us", {}).items()]
    times += [f"{name} {us:.1f}" for name, us in row["peers"].items()]
    times += [f"best peer {best:.1f} ({row['us'] / best:.3f}x)"] if best else []
    return "".join(f", {time}" for time in times)
