"""``lazyrope bench`` times lazyrope's kernels beside PyTorch's on this GPU.

Every time is the median of CUDA events around one call, with random inputs and a cold L2. The GPU waits until the host
has queued the call, so the host's time is not measured. The calls of a row are interleaved in a random order each
round.

RoPE is always lazy: the kernels rotate raw queries and read documents at their positions from shuffled pages. PyTorch's
attention reads contiguous keys that were rotated beforehand. ``torch_copy`` copies as many bytes, and ``torch_eager``
does what reposition does with PyTorch operations.

``lazyrope bench shared`` times steps in which requests read the same documents, with and without a cascade.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._program import check_output, require_packages
from .host import environment
from .peers import PEERS
from .report import shared_text, table_text
from .rows import KINDS, Bench, Row
from .shapes import ROPES, Shape
from .shared import DEFAULTS, SharedShape, add_options, count, list_text, option_of, shared_row, shared_shapes
from .tables import SHARED, TABLES
from .timer import Memory, Timer

PACKAGES = ("torch", "tabulate", "tqdm")
OPTIONS_OF_SHAPES = ("doc_tokens", "page_size", "rope")
# The project's own measurements and their options are not in the package.
NAMES = (*TABLES, SHARED)
MOVED_NAMES = ("sweep", "breadth")
MOVED_OPTIONS = ("--check", "--commit", "--peers", "--pools-apart")


def compile_ahead(shapes: Sequence[Shape], bench: Bench) -> None:
    """Compiles the kernels of all shapes on all cores, so that no row waits for its own."""
    from tqdm import tqdm

    unique = {shape.kernel_key: shape for shape in shapes}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in tqdm(pool.map(bench.compile, unique.values()), desc="compile", total=len(unique), unit="spec"):
            pass


def measured(shape: Shape, bench: Bench) -> Row:
    if isinstance(shape, SharedShape):
        return shape.about() | shared_row(shape, bench)
    return shape.about() | KINDS[shape.kernel](shape, bench)


class MovedOption(argparse.Action):
    """Names the program that has the option today."""

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> None:
        parser.error(f"{given[-1]} is an option of `python -m tools.bench`, in a checkout of lazyrope")


def table_name(text: str) -> str:
    if text in MOVED_NAMES:
        raise argparse.ArgumentTypeError(
            f"{text} is measured by `python -m tools.bench {text}`, in a checkout of lazyrope"
        )
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(NAMES)}")
    return text


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lazyrope bench", description="Times lazyrope's kernels beside PyTorch's on this GPU."
    )
    parser.add_argument(
        "name", nargs="?", type=table_name, default="all", help=f"{', '.join(NAMES)} (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as one JSON object")
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="calls per median, at most (%(default)s)")
    parser.add_argument(
        "--doc-tokens", type=count, metavar="N", help=f"tokens of a document (1024; {SHARED}: {DEFAULTS['doc_tokens']})"
    )
    parser.add_argument("--page-size", type=count, metavar="N", help="slots of a page (16)")
    parser.add_argument("--rope", choices=list(ROPES), help="RoPE variant (llama3)")
    add_options(parser)
    for name in MOVED_OPTIONS:
        parser.add_argument(name, action=MovedOption, nargs="?", help=argparse.SUPPRESS)
    return parser


def chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Sequence[Shape]:
    """Returns the shapes of the table with the values that the options give, or ends the program with an error."""
    given = {name: getattr(options, name) for name in DEFAULTS if getattr(options, name) is not None}
    if options.name == SHARED:
        try:
            return shared_shapes(**given)
        except ValueError as error:  # lazyrope.SpecError is one
            parser.error(str(error))
    for name in given:
        if name not in OPTIONS_OF_SHAPES:
            parser.error(f"{option_of(name)} is an option of `lazyrope bench {SHARED}`")
    return [replace(shape, **given) for shape in TABLES[options.name]]


def command_text(parser: argparse.ArgumentParser, options: argparse.Namespace, unlisted: Sequence[str]) -> str:
    """Returns the command that measures the same, without the `unlisted` options and those that have their default."""
    given = [
        option_of(name) + ("" if value is True else f" {_value_text(value)}")
        for name, value in vars(options).items()
        if name not in ("name", *unlisted) and value != parser.get_default(name)
    ]
    return " ".join([parser.prog, options.name, *given])


def _value_text(value: Any) -> str:
    is_texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return shlex.join(value) if is_texts else list_text(value)


def write(result: dict[str, Any], file: Path | None) -> None:
    if file:
        file.write_text(json.dumps(result, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser()
    options = parser.parse_args(arguments)
    shapes = chosen(parser, options)
    check_output(parser.prog, options.json)
    require_packages(parser.prog, PACKAGES)
    from tqdm import tqdm

    timer = Timer(options.rounds)
    bench = Bench(timer, Memory(), PEERS)
    result = environment(timer) | {"command": command_text(parser, options, ["json"]), "rows": []}
    compile_ahead([*shapes, *(shape.alone for shape in shapes if isinstance(shape, SharedShape))], bench)
    for shape in tqdm(shapes, desc="measure", unit="row"):
        result["rows"].append(measured(shape, bench))
        write(result, options.json)  # an interrupted run keeps its finished rows
        bench.memory.release()
    print((shared_text if options.name == SHARED else table_text)(result))
