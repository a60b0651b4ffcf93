"""Compares the kernels of builds on one GPU: runs the bench of each alternately, several times, row by row.

A change of structure (a moved layout, another constant) must leave the times as they are. A build is the root of a
source tree and the directory of its package:

    python -m tests.gpu.compare decode --before ../old:../old/build/package --after .:build/gpu/package

A run of the bench is the median of its rounds. This program takes the median over the runs of each build and fails if
a row of an `after` takes longer than `before` by more than the limit. --after may be repeated, to compare several
builds with the same `before`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

# The fields of a row that say what is measured; the others are results.
SHAPE = (
    "kernel mask batch query_tokens context doc_tokens heads head_dim dtype kv_dtype page_size rope compute "
    "batch_invariant pools_apart name"
).split()


def run(build: str, table: str, rounds: int, module: str) -> list[dict[str, Any]]:
    """Returns the rows that a build's bench measures, with the fewest peers that it allows: one, if installed."""
    root, _, package = build.partition(":")
    environment = os.environ | {"PYTHONPATH": f"{Path(package).resolve()}:{Path(root).resolve()}"}
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", module, table, "--json", file.name, "--rounds", str(rounds)]
        done = subprocess.run(
            [*command, "--peers", "lazy_on_flashinfer"], cwd=root, env=environment, capture_output=True
        )
        if done.returncode != 0:
            sys.exit(f"{build}: {' '.join(command)} failed:\n{done.stderr.decode()[-2000:]}")
        return json.loads(Path(file.name).read_text())["rows"]


def shape(row: dict[str, Any]) -> str:
    return " ".join(f"{name}={row[name]}" for name in SHAPE if row.get(name) not in (None, False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["decode", "prefill", "sweep"])
    parser.add_argument("--before", required=True, metavar="ROOT:PACKAGE")
    parser.add_argument("--after", required=True, action="append", metavar="ROOT:PACKAGE")
    parser.add_argument("--before-module", default="tools.bench", help="the bench of `before` (tools.bench)")
    parser.add_argument("--repeats", type=int, default=4, help="runs of each build (4)")
    parser.add_argument("--rounds", type=int, default=15, help="calls per median (15)")
    parser.add_argument("--limit", type=float, default=0.01, help="greatest slowdown of a row (0.01)")
    options = parser.parse_args()
    builds = [(options.before, options.before_module)] + [(after, "tools.bench") for after in options.after]
    times: dict[str, list[list[float]]] = {}
    for repeat in range(options.repeats):
        order = list(enumerate(builds))
        for side, (build, module) in order if repeat % 2 == 0 else reversed(order):
            for index, row in enumerate(run(build, options.table, options.rounds, module)):
                name = f"{index + 1}. {shape(row)}"
                times.setdefault(name, [[] for _ in builds])[side].append(row["us"])
    sys.exit(report(times, options.after, options.limit))


def report(times: dict[str, list[list[float]]], afters: list[str], limit: float) -> int:
    """Prints each row's ratio of times for each `after`. Returns the number of `afters` that have a slower row."""
    failed = 0
    for side, after in enumerate(afters, 1):
        print(after)
        slower = 0
        for name, sides in times.items():
            if not sides[0] or not sides[side]:
                sys.exit(f"only one build has the row {name}")
            ratio = median(sides[side]) / median(sides[0])
            slower += ratio > 1 + limit
            print(f"{ratio:6.3f}  {median(sides[0]):9.2f} -> {median(sides[side]):9.2f} us  {name}")
        print(f"{slower} of {len(times)} rows are slower by more than {limit:.0%}")
        failed += slower > 0
    return failed


if __name__ == "__main__":
    main()
