"""What decode's time is made of: a few terms whose largest error is the least there is, over what ``lazyrope bench
sweep --json`` kept.

python -m tools.decode_model [SWEEP.json] [--check PERCENT]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.decode_table import shape
from tools.drawing import RESULTS

Row = dict[str, Any]


@dataclass(frozen=True)
class Gpu:
    sms: int

    def ctas(self, row: Row) -> int:
        return self.sms * (2 if row["head_dim"] <= 128 else 1)


def bytes_read(row: Row) -> float:
    return row["tbps"] * row["us"] * 1e6


def group_size(row: Row) -> int:
    return row["heads"][0] // row["heads"][1]


def units(row: Row) -> int:
    """What a CTA has whole or a part of: a KV head of a request, or two, side by side."""
    is_paired = row["head_dim"] == 64 and group_size(row) <= 8
    return row["batch"] * math.ceil(row["heads"][1] / (2 if is_paired else 1))


def parts(row: Row, gpu: Gpu) -> int:
    """Of a unit: all CTAs share all units, a block of 64 keys at the least."""
    blocks = math.ceil(row["context"] / 64)
    return math.ceil(blocks / math.ceil(blocks / max(1, gpu.ctas(row) // units(row))))


def busy(row: Row, gpu: Gpu) -> int:
    return min(units(row) * parts(row, gpu), gpu.ctas(row))


# What a microsecond is paid for, the unit, and how many a row has of it.
TERMS: list[tuple[str, str, Callable[[Row, Gpu], float]]] = [
    ("launch, first loads and the end", "us", lambda row, gpu: 1),
    ("CTAs that have work", "us for 100", lambda row, gpu: busy(row, gpu) / 100),
    ("reading", "us for a GB", lambda row, gpu: bytes_read(row) / 1e9),
    ("looking for parts", "us for 100 of a head", lambda row, gpu: parts(row, gpu) / 100),
    (
        "leaving and merging a KV head's rows",
        "us for 1000 columns",
        lambda row, gpu: group_size(row) * row["head_dim"] / 1000,
    ),
]
ROUNDS = 300


@dataclass(frozen=True)
class Model:
    coefficients: list[float]
    errors: list[float]  # of each row: predicted time over measured, less one

    @property
    def largest(self) -> int:
        return max(range(len(self.errors)), key=lambda i: abs(self.errors[i]))


def fitted(rows: list[Row], gpu: Gpu) -> Model:
    """Relative errors count, so that short rows matter as much as long ones, and the largest is to be small: least
    squares, in which rows gain weight with their error (Lawson's algorithm)."""
    relative = np.array([[amount(row, gpu) / row["us"] for _, _, amount in TERMS] for row in rows])
    weights = np.full(len(rows), 1 / len(rows))
    models = []
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        coefficients, *_ = np.linalg.lstsq(relative * root[:, None], root, rcond=None)
        errors = relative @ coefficients - 1
        models.append(Model(coefficients.tolist(), errors.tolist()))
        weights = weights * (np.abs(errors) + 1e-12)
        weights /= weights.sum()
    return min(models, key=lambda model: abs(model.errors[model.largest]))


def text(model: Model, rows: list[Row]) -> str:
    lines = [
        f"{value:9.3f} {unit:27s} {term}" for (term, unit, _), value in zip(TERMS, model.coefficients, strict=True)
    ]
    by_error = sorted(range(len(rows)), key=lambda i: -abs(model.errors[i]))
    lines.append(f"{len(rows)} rows; largest error {abs(model.errors[model.largest]):.1%}; the worst:")
    lines += [f"{model.errors[i]:+8.1%}  {rows[i]['us']:8.1f} us  {shape(rows[i])}" for i in by_error[:5]]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.decode_model", description=__doc__.split("\n\n")[0])
    parser.add_argument("sweep", type=Path, nargs="?", default=RESULTS / "sweep.json", help="the kept figures")
    parser.add_argument("--check", type=float, metavar="PERCENT", help="exit with 1 if an error is larger")
    options = parser.parse_args(arguments)
    kept = json.loads(options.sweep.read_text())
    model = fitted(kept["rows"], Gpu(kept["sms"]))
    print(text(model, kept["rows"]))
    if options.check is not None and 100 * abs(model.errors[model.largest]) > options.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
