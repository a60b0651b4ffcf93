"""Fits a model of decode's time, a sum of a few terms, to the rows that ``python -m tools.bench sweep --json`` wrote.

Prints the coefficient of each term, and the rows with the largest errors.

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

# These are the planner's costs (templates/planner/policy.h). tests/support/decode_shares.json holds both to each other.
BLOCK_COST = 8
SEGMENT_COST = 2
MIN_SHARE_COST = BLOCK_COST + SEGMENT_COST + 2
WORK_TILE_BYTES = 160 << 10
MOST_ONE_BLOCK_SPLITS = 32  # A unit of more blocks has splits of at least two.
MOST_TILES = 64  # query tiles of a step whose units are cut into equal splits


@dataclass(frozen=True)
class Gpu:
    sms: int

    def ctas(self, row: Row) -> int:
        return self.sms * (2 if row["head_dim"] <= 128 else 1)


def bytes_read(row: Row) -> float:
    return row["tbps"] * row["us"] * 1e6


def group_size(row: Row) -> int:
    return row["heads"][0] // row["heads"][1]


def blocks(row: Row) -> int:
    return math.ceil(row["context"] / 64)


def heads_at_once(row: Row) -> int:
    """Returns the KV heads of a work tile: two if head_dim is 64 and the heads are even, else one."""
    return 2 if row["head_dim"] == 64 and row["heads"][1] % 2 == 0 else 1


def units(row: Row) -> int:
    """Returns the units of the step. A CTA computes whole units or a KV split of one."""
    return row["batch"] * row["heads"][1] // heads_at_once(row)


@dataclass(frozen=True)
class StreamKSchedule:
    """The shares that templates/planner/stream_k.cuh makes of a row's units, which have equal costs."""

    blocks: int  # KV blocks per unit
    cost: int  # cost of a unit's blocks and segments
    work_tile_cost: int
    units: int
    tiles: int  # query tiles: units of one head group
    ctas: int

    def max_shares(self, cost: int) -> int:
        return max(1, min(self.ctas, self.units * cost // MIN_SHARE_COST))

    def shares(self) -> int:
        """Returns the number of shares that are not empty."""
        baseline = self.max_shares(self.cost + self.work_tile_cost)

        def are_short(most: int) -> bool:
            return self.units * (self.cost + self.work_tile_cost) <= most * baseline

        short = 20 * self.work_tile_cost
        if not are_short(short):
            return self.nonempty_shares(baseline)
        splits = self.equal_splits(baseline)
        if splits == 1 or (splits > 1 and are_short(short * 2 // 5)):
            return splits * self.units
        return self.nonempty_shares(self.whole_units(baseline) if self.units > baseline else baseline)

    def nonempty_shares(self, shares: int) -> int:
        """Returns how many of ``shares`` equal shares are not empty.

        A boundary near an end of a unit moves to that end, where it may coincide with another boundary.
        """
        unit = self.cost + self.work_tile_cost

        def beginning(share: int) -> tuple[int, float]:
            index, into = divmod(share * unit * self.units / shares, unit)
            if into < self.work_tile_cost + MIN_SHARE_COST:
                return int(index), 0
            return (int(index), into) if into < unit - MIN_SHARE_COST else (int(index) + 1, 0)

        return len({beginning(share) for share in range(shares)} - {(self.units, 0)})

    def whole_units(self, baseline: int) -> int:
        each = math.ceil(self.units / baseline)
        matched = self.units // each
        return matched if matched * each == self.units and is_near(matched, baseline) else baseline

    def equal_splits(self, baseline: int) -> int:
        """Returns the equal KV splits of a unit (templates/planner/equal_splits.cuh), or 0 if units are not cut so."""
        if self.units > self.ctas or self.tiles > MOST_TILES:
            return 0
        total = self.units * (self.cost + self.work_tile_cost)
        limit = total + max(total // 16, BLOCK_COST * baseline)
        most = limit // (BLOCK_COST * baseline)
        least = 2 if self.blocks > MOST_ONE_BLOCK_SPLITS else 1
        tried = [most - i * (1 + most // 64) for i in range(32)]
        lengths = [n for n in tried if n >= least and self.units * math.ceil(self.blocks / n) <= self.ctas]
        if not lengths or lengths[-1] * baseline * self.cost > limit * self.blocks:
            return 0
        return math.ceil(self.blocks / lengths[-1])


def is_near(count: int, most: int) -> bool:
    return count > 0 and 16 * count >= 15 * most


def shares(row: Row, gpu: Gpu) -> int:
    """Returns the number of CTAs that have work."""
    return StreamKSchedule(
        blocks=blocks(row),
        cost=BLOCK_COST * blocks(row) + SEGMENT_COST * math.ceil(row["context"] / row["doc_tokens"]),
        work_tile_cost=BLOCK_COST * WORK_TILE_BYTES // (256 * row["head_dim"] * heads_at_once(row)),
        units=units(row),
        tiles=row["batch"],
        ctas=gpu.ctas(row),
    ).shares()


def splits(row: Row, gpu: Gpu) -> float:
    """Returns the KV splits per unit."""
    return max(1, shares(row, gpu) / units(row))


# Each term has a name, the unit of its coefficient, and the amount that a row has of it.
TERMS: list[tuple[str, str, Callable[[Row, Gpu], float]]] = [
    ("launch, first loads and the end", "us", lambda row, gpu: 1),
    ("CTAs that have work", "us for 100", lambda row, gpu: shares(row, gpu) / 100),
    ("reading", "us for a GB", lambda row, gpu: bytes_read(row) / 1e9),
    ("finding KV splits to combine", "us for 100 of a head", lambda row, gpu: splits(row, gpu) / 100),
    (
        "storing and combining a KV head's rows",
        "us for 1000 columns",
        lambda row, gpu: group_size(row) * row["head_dim"] / 1000,
    ),
]
ROUNDS = 300


@dataclass(frozen=True)
class Model:
    coefficients: list[float]
    errors: list[float]  # for each row: predicted time over measured time, minus one

    @property
    def largest(self) -> int:
        return max(range(len(self.errors)), key=lambda i: abs(self.errors[i]))


def fitted(rows: list[Row], gpu: Gpu) -> Model:
    """Returns the model whose largest relative error is least.

    Relative errors give short and long rows the same weight. Lawson's algorithm repeats least squares and gives rows
    with larger errors more weight each time.
    """
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
    parser.add_argument(
        "sweep",
        type=Path,
        nargs="?",
        default=RESULTS / "sweep.json",
        help="figures that python -m tools.bench sweep --json wrote (%(default)s)",
    )
    parser.add_argument(
        "--check", type=float, metavar="PERCENT", help="exit with 1 if an error is larger, with 0 otherwise"
    )
    options = parser.parse_args(arguments)
    sweep = json.loads(options.sweep.read_text())
    model = fitted(sweep["rows"], Gpu(sweep["sms"]))
    print(text(model, sweep["rows"]))
    if options.check is not None and 100 * abs(model.errors[model.largest]) > options.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
