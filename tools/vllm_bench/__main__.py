"""Measures vLLM over documents, and writes a table and JSON: the arms are in tools/vllm_bench/cells.py.

python -m tools.vllm_bench --json FILE [--join FILES] [--arms ARM ...] [--seeds 1 2 3] [--minutes 9]

Each measured cell is written at once. A run skips the cells that FILE, or a joined file, has for the same seed, so that
several runs complete one file. Each arm is a process of its own. vLLM must be on the path. With --tiny, a tiny model
runs the whole program on the CPU, and its times say nothing. VLLM_USE_V2_MODEL_RUNNER=1 chooses vLLM's V2 model runner;
its cells belong into a file of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.vllm_bench import report
from tools.vllm_bench.arms import Setup, engines
from tools.vllm_bench.cells import ARMS, GIB, LOADS, Cell, cells
from tools.vllm_bench.measure import Times

Row = dict[str, Any]
TINY = Setup(
    tiny=True, documents=8, document_tokens=64, context=96, answer=16, pool_gib=0.01, max_requests=16, max_tokens=256,
    eager=True,
)  # fmt: skip
TINY_TIMES = Times(warm_s=0.3, measure_s=1.0, trial_s=0.3, repeats=2)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.vllm_bench", description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="read, completed and written")
    parser.add_argument("--join", type=Path, nargs="*", default=[], metavar="FILE", help="files of earlier runs")
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS], metavar="ARM")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=[*LOADS], metavar="LOAD")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only the cells whose names have one of these texts")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="a seed runs all cells before the next")
    parser.add_argument("--minutes", type=float, default=1e9, help="no cell begins after so many minutes")
    parser.add_argument("--warm", type=float, default=Times.warm_s, metavar="S", help="seconds of load before a cell")
    parser.add_argument("--measure", type=float, default=Times.measure_s, metavar="S", help="seconds of a cell's load")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU, which checks the program")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs and no torch.compile")
    parser.add_argument("--list", action="store_true", help="print the cells that are not measured, and end")
    parser.add_argument("--table", action="store_true", help="print the tables of what is measured, and end")
    parser.add_argument("--commit", default="", help="the commit, where there is no repository")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


class Results:
    """The rows of a file, which is written after each cell."""

    def __init__(self, file: Path, joined: Sequence[Path]) -> None:
        self._file = file
        self.rows: list[Row] = []
        for each in (file, *joined):
            self._read(each)

    def _read(self, file: Path) -> None:
        if file.exists():
            known = {_key(row) for row in self.rows}
            rows = json.loads(file.read_text())["rows"]
            self.rows += [row for row in rows if _key(row) not in known]

    def row(self, cell: Cell, seed: int) -> Row | None:
        return next((row for row in self.rows if _key(row) == (cell.name, seed)), None)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.write()

    def write(self) -> None:
        latest = self.rows[-1] if self.rows else {}
        about = {
            name: latest.get(name) for name in ("gpu", "driver", "date", "commit", "vllm", "model_runner", "command")
        }
        about["commit"] = ", ".join(dict.fromkeys(row["commit"] for row in self.rows if row.get("commit"))) or None
        result = about | {"rows": self.rows, "limits": report.limits(self.rows)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(result, indent=1) + "\n")
        part.replace(self._file)


def _key(row: Row) -> tuple[str, int]:
    return row["cell"], row["seed"]


def missing(options: argparse.Namespace, results: Results) -> list[tuple[int, Cell]]:
    """Returns the seeds and cells that are to be measured, seed after seed."""
    return [
        (seed, cell)
        for seed in options.seeds
        for cell in cells()
        if cell.arm in options.arms and cell.load in options.loads
        if any(text in cell.name for text in options.only or [""])
        if results.row(cell, seed) is None
    ]


def environment(commit: str) -> Row:
    """Returns what a row says about the machine."""
    import torch
    from lazyrope.vllm import releases

    from tools.rag.environment import environment as of_machine

    machine = of_machine(commit)
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "driver": machine.get("driver"),
        "date": machine["date"],
        "commit": machine["commit"],
        "vllm": releases.installed_version(),
        "model_runner": "V2" if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1" else "V1",
        "command": "python -m tools.vllm_bench",
    }


def run_engine(options: argparse.Namespace, results: Results, deadline: float) -> None:
    """Measures the missing cells of the arms that one engine serves, in an engine of this process."""
    from tools.vllm_bench.arms import Arm
    from tools.vllm_bench.measure import measure, warm_up

    setup, times = Setup(eager=options.eager), Times(options.warm, options.measure)
    if options.tiny:
        setup, times = TINY, TINY_TIMES
    todo = missing(options, results)
    arm = Arm(options.arms[0], setup)
    warm_up(arm, times)
    about = environment(options.commit)
    for seed, cell in todo:
        if time.time() > deadline:
            print(f"{cell.name}: the time is over")
            return
        scaled = _tiny(cell) if options.tiny else cell
        closed = results.row(cell.closed_loop(), seed) if cell.load == "poisson" else None
        if cell.load == "poisson" and not (closed and closed["requests_per_s"]):
            print(f"{cell.name}: skipped, because its closed loop is not measured, or served nothing")
            continue
        arm.name = cell.arm
        arm.clear([], setup.pool_gib if scaled.load == "decode" else scaled.budget_gib)
        figures = measure(arm, scaled, times, seed, closed)
        results.add({"cell": cell.name, "arm": cell.arm, "seed": seed, **figures, **about})
        shown = ", ".join(f"{key} {value:.4g}" for key, value in figures.items() if isinstance(value, int | float))
        print(f"{cell.name}, seed {seed}: {shown}", flush=True)


def _tiny(cell: Cell) -> Cell:
    """Returns a smaller cell for the tiny model, in whose least budget not all documents fit."""
    least, most = 2 * TINY.blocks(TINY.pool_gib) // 30, TINY.blocks(TINY.pool_gib)
    blocks = least + (most - least) * min(60, cell.budget_gib - 8) / 60
    return replace(
        cell, clients=min(cell.clients, 8), answer=min(cell.answer, 16), budget_gib=blocks * TINY.block_bytes / GIB
    )


def run_all(options: argparse.Namespace, arguments: Sequence[str], deadline: float) -> int:
    """Runs a process for each engine that has missing cells."""
    status = 0
    for names in engines(options.arms):
        results = Results(options.json, options.join)
        results.write()
        some = argparse.Namespace(**vars(options) | {"arms": names})
        left = (deadline - time.time()) / 60
        if not missing(some, results) or left < 0:
            continue
        given = [*arguments, "--arms", *names, "--minutes", str(left), "--child"]
        status |= subprocess.run([sys.executable, "-m", "tools.vllm_bench", *given], check=False).returncode != 0
    return int(status)


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parsed(given)
    deadline = time.time() + 60 * options.minutes
    results = Results(options.json, options.join)
    if options.list:
        print("\n".join(f"{cell.name}, seed {seed}" for seed, cell in missing(options, results)))
        return 0
    if options.table:
        print(report.text(results.rows))
        return 0
    if options.child:
        run_engine(options, results, deadline)
        return 0
    status = run_all(options, given, deadline)
    print(report.text(Results(options.json, []).rows))
    return status


if __name__ == "__main__":
    sys.exit(main())
