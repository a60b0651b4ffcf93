"""``lazyrope bench``: the kernels' times beside what the same GPU does otherwise.

Every time is the median of CUDA events around one call, inputs random, with L2 flushed before each call by
writing and then reading buffers larger than it, so that no dirty lines are written back in the timed window. The GPU
waits until the host has queued the call, whose own time is not measured. A row's kernel and its peers are timed in
turns, one call each a round.

Rows are always lazy: documents of ``doc_tokens`` tokens at positions of their own, in shuffled pages, with raw
queries. A page's keys lie beside its values, as in FlashInfer's ``[pages, 2, page_size, heads, head_dim]``. Peers read
keys that are rotated already, contiguous or in pages of the row's size; but ``lazy_on_flashinfer`` does the same as the
row, built from FlashInfer's parts, and reposition's ``torch_eager`` does what reposition does, one PyTorch operation
after the other. ``own`` is this project's kernel at other settings.

``quartiles_us`` are those of the ``rounds`` calls of which ``us`` is the median.

``stream_us`` is the time of a plain sum over as many bytes as the row reads, ``plan_us`` that of the planner, which
runs once for all layers, and ``step_us`` that of the planner and the attention behind it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from .host import call_costs, compile_costs, environment
from .limits import count_unmet, evaluate, evaluate_mean, limit_text, mean_text
from .peers import PAGED, importable
from .rows import KINDS, Bench, Row
from .shapes import ALL_PEERS, ROPES, Shape
from .tables import TABLE_LIMITS, TABLES
from .timer import Memory, Timer

CHANGES = ("doc_tokens", "rope", "page_size", "pools_apart")  # options that change rows


def compile_ahead(shapes: list[Shape], bench: Bench) -> None:
    """All kernels on all cores, so that no row waits for its own."""
    variants = [shape.variant(values) for shape in shapes for values in shape.variants.values()]
    unique: list[Shape] = []
    for shape in [*shapes, *variants]:
        if all((shape.spec(), shape.family) != (other.spec(), other.family) for other in unique):
            unique.append(shape)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, _ in enumerate(pool.map(bench.compile, unique), 1):
            print(f"\rcompiled {done} of {len(unique)} attentions", end="", file=sys.stderr)
    print(file=sys.stderr)


def measured(shape: Shape, bench: Bench) -> Row:
    row = shape.about() | KINDS[shape.kernel](shape, bench)
    row["limits"] = evaluate(shape.limits, row, PAGED)
    print("\n".join([row_text(row), *(limit_text(limit, row["us"]) for limit in row["limits"])]), flush=True)
    return row


def row_text(row: Row) -> str:
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
    scores = "".join(
        f", {name} {row[name]}" for name in ("window", "softcap", "sinks", "batch_invariant") if name in row
    )
    about = "about " if "ragged" in row else ""
    first = f", {row['first_tokens']} of the first" if "first_tokens" in row else ""
    family = f", family {row['family']}" if "family" in row else ""
    return (
        f"{row['kernel']:10s} {row['batch']:3d} x {row['query_tokens']} over {context}{first} "
        f"({heads}{kv_dtype}, {row['mask']}, {row['rope']}{scores}{family}, documents of {about}{row['doc_tokens']}, "
        f"pages of {row['page_size']}{', pools apart' if 'pools_apart' in row else ''})"
    )


def rate_text(row: Row) -> str:
    if "tbps" in row:
        return f", {row['tbps']:.2f} TB/s"
    return f", {row['tflops']:.0f} TFLOP/s" if "tflops" in row else ""


def others_text(row: Row) -> str:
    """What else was measured, and the row's time over it."""
    references = {name: row[name] for name in ("stream_us", "floor_us") if name in row}
    best = min(row["peers"].values(), default=None)
    times = [f"{name.removesuffix('_us')} {us:.1f} ({row['us'] / us:.3f}x)" for name, us in references.items()]
    times += [f"{name.removesuffix('_us')} {row[name]:.1f}" for name in ("plan_us", "step_us") if name in row]
    times += [f"{name} {us:.1f} ({row['us'] / us:.3f}x)" for name, us in row["own"].items()]
    times += [f"{name} {us:.1f}" for name, us in row["peers"].items()]
    times += [f"best peer {best:.1f} ({row['us'] / best:.3f}x)"] if best else []
    return "".join(f", {time}" for time in times)


def command_text(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """The command that measures the same, without what is particular to one machine."""
    given = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, value in vars(options).items()
        if name not in ("name", "json", "commit", "check") and value != parser.get_default(name)
    ]
    return " ".join(["lazyrope bench", options.name, *given])


def peer_names(text: str) -> str:
    if unknown := sorted({*text.split(",")} - {*ALL_PEERS}):
        raise argparse.ArgumentTypeError(f"{unknown[0]} is not one of {', '.join(ALL_PEERS)}")
    return text


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lazyrope bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("name", choices=[*TABLES], help="which rows to measure; all: those of the README's first table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as one JSON object")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a row does not meet a required limit")
    parser.add_argument("--commit", help="the commit measured (the present directory's)")
    parser.add_argument("--doc-tokens", type=int, help="tokens of a document, instead of the rows' own (mostly 1024)")
    parser.add_argument("--rope", choices=list(ROPES), help="instead of the rows' own (mostly llama3)")
    parser.add_argument("--page-size", type=int, help="slots of a page, instead of the rows' own (mostly 16)")
    parser.add_argument(
        "--pools-apart",
        action="store_true",
        default=None,
        help="all keys before all values, for all that reads pages; else a page's keys lie beside its values",
    )
    parser.add_argument("--rounds", type=int, default=30, help="calls of which a time is the median, at most (30)")
    parser.add_argument(
        "--peers",
        type=peer_names,
        metavar="NAME,...",
        default=",".join(ALL_PEERS),
        help=f"only these of {', '.join(ALL_PEERS)}, where a row has them (all whose packages are installed)",
    )
    return parser


def is_changed(options: argparse.Namespace) -> bool:
    return any(getattr(options, name) is not None for name in CHANGES)


def chosen(options: argparse.Namespace) -> list[Shape]:
    """The table's rows, with what the options say instead. Nothing is required of such rows."""
    given = {name: getattr(options, name) for name in CHANGES if getattr(options, name) is not None}
    if given:
        given["limits"] = ()
    return [replace(shape, **given) for shape in TABLES[options.name]]


def write(result: dict[str, Any], file: Path | None) -> None:
    if file:
        file.write_text(json.dumps(result, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argument_parser()
    options = parser.parse_args(arguments)
    shapes = chosen(options)
    timer = Timer(options.rounds)
    peers = [name for name in options.peers.split(",") if any(name in shape.peers for shape in shapes)]
    bench = Bench(timer, Memory(), importable(peers))
    result = environment(timer, options.commit) | {"command": command_text(parser, options)}
    if options.name == "all":
        result["host"] = compile_costs() | call_costs(bench)
    print(json.dumps(result), flush=True)
    compile_ahead(shapes, bench)
    result["rows"] = []
    for shape in shapes:
        result["rows"].append(measured(shape, bench))
        write(result, options.json)  # after each row, for a run that is broken off
        bench.memory.release()
    means = () if is_changed(options) else TABLE_LIMITS.get(options.name, ())
    result["means"] = [evaluate_mean(limit, result["rows"], PAGED) for limit in means]
    write(result, options.json)
    print(*map(mean_text, result["means"]), sep="\n")
    if unmet := count_unmet([*(limit for row in result["rows"] for limit in row["limits"]), *result["means"]]):
        print(f"{unmet} required limits not met or not evaluated", file=sys.stderr)
        sys.exit(1 if options.check else 0)
