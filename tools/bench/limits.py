"""Limits of a row's time, and the check whether a row meets them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

REQUIRED, AIM = "required", "aim"


@dataclass(frozen=True)
class Limit:
    """An upper bound of a row's time: factor x another figure or that figure + plus_us, the larger of those given.

    Attributes:
        over: the other figure: "stream_us", "floor_us", "best_peer", "best_paged_peer" (among peers that read pages of
            the row's size), one of the row's peers or variants, or a sum "a + b". With None the bound is plus_us.
        kind: REQUIRED or AIM.
    """

    over: str | None
    factor: float | None = None
    plus_us: float | None = None
    kind: str = REQUIRED

    def bound(self, figure: float) -> float:
        """Returns the bound in microseconds, where the other figure is `figure` microseconds."""
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
    """A lower bound of another figure over the row's time, as the geometric mean over a group's rows."""

    group: str
    over: str
    least: float
    kind: str = REQUIRED

    def __str__(self) -> str:
        return f"geometric mean of {self.over} over ours, in all rows of {self.group}: {self.least:g}"


def figures(row: dict[str, Any], paged_peers: frozenset[str]) -> dict[str, float]:
    """Returns the measured figures of the row that a limit may name."""
    peers = row["peers"]
    paged = [us for name, us in peers.items() if name in paged_peers]
    best = {"best_peer": min(peers.values())} if peers else {}
    best_paged = {"best_paged_peer": min(paged)} if paged else {}
    references = {name: us for name, us in row.items() if name in ("stream_us", "floor_us")}
    return {**references, **row["own"], **peers, **best, **best_paged}


def figure(name: str, found: dict[str, float]) -> float | None:
    """Returns one of the figures, or for "a + b" the sum of two. A figure that was not measured gives None."""
    parts = [found.get(part) for part in name.split(" + ")]
    return None if None in parts else sum(part for part in parts if part is not None)


def evaluate(limits: tuple[Limit, ...], row: dict[str, Any], paged_peers: frozenset[str]) -> list[dict[str, Any]]:
    """Returns each limit with its bound in microseconds, and whether the row meets it.

    Both are None if the figure that the limit names was not measured.
    """
    found = figures(row, paged_peers)
    result = []
    for limit in limits:
        over = 0.0 if limit.over is None else figure(limit.over, found)
        bound = None if over is None else limit.bound(over)
        met = None if bound is None else bool(row["us"] <= bound)
        result.append({"kind": limit.kind, "limit": str(limit), "bound_us": bound, "met": met})
    return result


def limit_text(outcome: dict[str, Any], us: float) -> str:
    """Returns one line about an entry of :func:`evaluate`."""
    about = f"  {outcome['kind']}: at most {outcome['limit']}"
    if outcome["bound_us"] is None:
        return f"{about}: not evaluated, because that figure was not measured"
    verdict = "met" if outcome["met"] else "NOT MET"
    return f"{about} = {outcome['bound_us']:.1f} us: {verdict} by {abs(us / outcome['bound_us'] - 1):.1%}"


def evaluate_mean(limit: MeanLimit, rows: list[dict[str, Any]], paged_peers: frozenset[str]) -> dict[str, Any]:
    """Returns the limit with the mean. The mean is None if the figure of a row was not measured."""
    of_group = [row for row in rows if row.get("group") == limit.group]
    ratios = [figure(limit.over, figures(row, paged_peers)) for row in of_group]
    known = [over / row["us"] for over, row in zip(ratios, of_group, strict=True) if over is not None]
    mean = statistics.geometric_mean(known) if known and len(known) == len(of_group) else None
    met = None if mean is None else mean >= limit.least
    return {"kind": limit.kind, "limit": str(limit), "mean": mean, "met": met}


def mean_text(outcome: dict[str, Any]) -> str:
    """Returns one line about the result of :func:`evaluate_mean`."""
    about = f"{outcome['kind']}: {outcome['limit']}"
    if outcome["mean"] is None:
        return f"{about}: not evaluated, because some rows were not measured"
    return f"{about}: {outcome['mean']:.3f}, {'met' if outcome['met'] else 'NOT MET'}"


def count_unmet(outcomes: list[dict[str, Any]]) -> int:
    """Returns how many required limits were not met or not evaluated."""
    return sum(outcome["kind"] == REQUIRED and not outcome["met"] for outcome in outcomes)
