"""The command ``python -m tools.bench``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lazyrope.bench import command_text, compile_ahead, write
from lazyrope.bench.rows import Row
from lazyrope.bench.shapes import ROPES
from lazyrope.bench.timer import Memory, Timer

from tools.bench.host import call_costs, compile_costs, environment
from tools.bench.limits import count_unmet, evaluate, evaluate_mean, limit_text, mean_text
from tools.bench.peers import PAGED, PEERS, importable
from tools.bench.rows import KINDS, Bench
from tools.bench.shapes import Shape
from tools.bench.tables import TABLE_LIMITS, TABLES
from tools.bench.text import row_text, shape_text

CHANGES = ("doc_tokens", "rope", "page_size", "pools_apart")  # options that change rows


def with_variants(shapes: Sequence[Shape]) -> list[Shape]:
    return [*shapes, *(shape.variant(values) for shape in shapes for values in shape.variants.values())]


def measured(shape: Shape, bench: Bench) -> Row:
    """Measures the row, evaluates its limits and prints both."""
    row = shape.about() | KINDS[shape.kernel](shape, bench)
    row["limits"] = evaluate(shape.limits, row, PAGED)
    print("\n".join([row_text(row), *(limit_text(limit, row["us"]) for limit in row["limits"])]), flush=True)
    return row


def peer_names(text: str) -> str:
    if unknown := sorted({*text.split(",")} - {*PEERS}):
        raise argparse.ArgumentTypeError(f"{unknown[0]} is not one of {', '.join(PEERS)}")
    return text


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench", description="Measures the project's rows and checks their limits."
    )
    parser.add_argument(
        "name", choices=[*TABLES], help="the rows; all: those of `lazyrope bench`, and costs of the host"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as one JSON object")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a required limit is not met")
    parser.add_argument("--commit", metavar="HASH", help="the commit that is measured (default: git's)")
    parser.add_argument("--doc-tokens", type=int, metavar="N", help="tokens of a document, instead of the row's")
    parser.add_argument("--rope", choices=list(ROPES), help="RoPE variant, instead of the row's")
    parser.add_argument("--page-size", type=int, metavar="N", help="slots of a page, instead of the row's")
    parser.add_argument(
        "--pools-apart",
        action="store_true",
        default=None,
        help="put all keys before all values, in paged peers too; otherwise a page's values follow its keys",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help='only rows whose line has one of these texts, such as "of 40 to 700"'
    )
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="calls per median, at most (%(default)s)")
    parser.add_argument(
        "--peers",
        type=peer_names,
        metavar="NAME,...",
        default=",".join(PEERS),
        help=f"measure only these of a row's peers: {', '.join(PEERS)} (default: those that are installed)",
    )
    return parser


def is_changed(options: argparse.Namespace) -> bool:
    return any(getattr(options, name) is not None for name in CHANGES)


def chosen(options: argparse.Namespace) -> list[Shape]:
    """Returns the table's shapes with the values that the options give. Changed shapes have no limits."""
    given = {name: getattr(options, name) for name in CHANGES if getattr(options, name) is not None}
    if given:
        given["limits"] = ()
    shapes = [replace(shape, **given) for shape in TABLES[options.name]]
    texts = options.only or [""]
    lines = [shape_text({"segments": "", **shape.about()}) for shape in shapes]
    return [shape for shape, line in zip(shapes, lines, strict=True) if any(text in line for text in texts)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser()
    options = parser.parse_args(arguments)
    shapes = chosen(options)
    if not shapes:
        parser.error(f"no row of {options.name} has one of the texts of --only")
    timer = Timer(options.rounds)
    peers = [name for name in options.peers.split(",") if any(name in shape.peers for shape in shapes)]
    bench = Bench(timer, Memory(), importable(peers))
    command = command_text(parser, options, ["json", "commit", "check"])
    result = environment(timer, options.commit) | {"command": command}
    if options.name == "all":
        result["host"] = compile_costs() | call_costs(bench)
    print(json.dumps(result), flush=True)
    compile_ahead(with_variants(shapes), bench)
    result["rows"] = []
    for shape in shapes:
        result["rows"].append(measured(shape, bench))
        write(result, options.json)  # an interrupted run keeps its finished rows
        bench.memory.release()
    means = () if is_changed(options) or options.only else TABLE_LIMITS.get(options.name, ())
    result["means"] = [evaluate_mean(limit, result["rows"], PAGED) for limit in means]
    write(result, options.json)
    print(*map(mean_text, result["means"]), sep="\n")
    if unmet := count_unmet([*(limit for row in result["rows"] for limit in row["limits"]), *result["means"]]):
        print(f"{unmet} required limits not met or not evaluated", file=sys.stderr)
        sys.exit(1 if options.check else 0)
