"""What ``lazyrope bench`` requires of a row, and whether the row meets it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

REQUIRED, AIM = "required", "aim"


@dataclass(frozen=True)
class Limit:
    """A row's time is at most the larger of factor x another figure and that figure + plus_us, of those given.

    ``over`` names the figure: "stream_us", "floor_us", "best_peer", "best_paged_peer" (of those that read the row's
    pages), one of the row's peers or of its ``variants``, or a sum of such, "a + b". With None, plus_us is the bound.
    """

    over: str | None
    factor: float | None = None
    plus_us: float | None = None
    kind: str = REQUIRED

    def bound(self, figure: float) -> float:
        """In microseconds, of the figure's."""
        by_factor = [] if self.factor is None else [self.factor * figure]
        by_distance = [] if self.plus_us is None else [figure + self.plus_us]
        return max(by_factor + by_distance)

    def __str__(self) -> str:
        if self.over is None:
            return f"{self.plus_us:g} us"
        by_factor = [] if self.factor is None else [f"{self.factor:.4g} x {self.over}"]
        by_distance = [] if self.plus_us is None else [f"{self.over} + {self.plus_us:g} us"]
        return " or ".join(by_factor + by_distance)


def aim(over: str | None, **options: float) -> Limit:
    return Limit(over, kind=AIM, **options)


@dataclass(frozen=True)
class MeanLimit:
    """The geometric mean of another figure over the time, in all rows of a group, is at least ``least``."""

    group: str
    over: str
    least: float
    kind: str = REQUIRED

    def __str__(self) -> str:
        return f"geometric mean of {self.over} over ours, in all rows of {self.group}: {self.least:g}"


def figures(row: dict[str, Any], paged_peers: frozenset[str]) -> dict[str, float]:
    """All that a limit of the row may name and that was measured."""
    peers = row["peers"]
    paged = [us for name, us in peers.items() if name in paged_peers]
    best = {"best_peer": min(peers.values())} if peers else {}
    best_paged = {"best_paged_peer": min(paged)} if paged else {}
    references = {name: us for name, us in row.items() if name in ("stream_us", "floor_us")}
    return {**references, **row["own"], **peers, **best, **best_paged}


def figure(name: str, found: dict[str, float]) -> float | None:
    """Of a name; that of "a + b" is their sum."""
    parts = [found.get(part) for part in name.split(" + ")]
    return None if None in parts else sum(part for part in parts if part is not None)


def evaluate(limits: tuple[Limit, ...], row: dict[str, Any], paged_peers: frozenset[str]) -> list[dict[str, Any]]:
    """Each limit with its bound in microseconds, and whether the row meets it; None where nothing was measured that it
    compares with."""
    found = figures(row, paged_peers)
    result = []
    for limit in limits:
        over = 0.0 if limit.over is None else figure(limit.over, found)
        bound = None if over is None else limit.bound(over)
        met = None if bound is None else bool(row["us"] <= bound)
        result.append({"kind": limit.kind, "limit": str(limit), "bound_us": bound, "met": met})
    return result


def limit_text(outcome: dict[str, Any], us: float) -> str:
    """One line about one of :func:`evaluate`."""
    about = f"  {outcome['kind']}: at most {outcome['limit']}"
    if outcome["bound_us"] is None:
        return f"{about}: not evaluated, nothing to compare with was measured"
    verdict = "met" if outcome["met"] else "NOT MET"
    return f"{about} = {outcome['bound_us']:.1f} us: {verdict} by {abs(us / outcome['bound_us'] - 1):.1%}"


def evaluate_mean(limit: MeanLimit, rows: list[dict[str, Any]], paged_peers: frozenset[str]) -> dict[str, Any]:
    """The limit with the mean; None where a row has nothing that it compares with."""
    of_group = [row for row in rows if row.get("group") == limit.group]
    ratios = [figure(limit.over, figures(row, paged_peers)) for row in of_group]
    known = [over / row["us"] for over, row in zip(ratios, of_group, strict=True) if over is not None]
    mean = statistics.geometric_mean(known) if known and len(known) == len(of_group) else None
    met = None if mean is None else mean >= limit.least
    return {"kind": limit.kind, "limit": str(limit), "mean": mean, "met": met}


def mean_text(outcome: dict[str, Any]) -> str:
    """One line about one of :func:`evaluate_mean`."""
    about = f"{outcome['kind']}: {outcome['limit']}"
    if outcome["mean"] is None:
        return f"{about}: not evaluated, not all was measured"
    return f"{about}: {outcome['mean']:.3f}, {'met' if outcome['met'] else 'NOT MET'}"


def count_unmet(outcomes: list[dict[str, Any]]) -> int:
    """How many required limits were not met, or could not be evaluated."""
    return sum(outcome["kind"] == REQUIRED and not outcome["met"] for outcome in outcomes)
