"""What ``lazyrope bench`` requires of a row, and whether the row keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

REQUIRED, AIM = "required", "aim"


@dataclass(frozen=True)
class Limit:
    """A row's time is at most the larger of factor x another figure and that figure + plus_us, of those given.

    ``over`` names the figure: "stream_us", "floor_us", "best_peer", "best_paged_peer" (of those that read the row's
    pages) or one of the row's ``against``. With None, plus_us is the bound.
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


def figures(row: dict[str, Any], paged_peers: frozenset[str]) -> dict[str, float]:
    """All that a limit of the row may name and that was measured."""
    peers = row["peers"]
    paged = [us for name, us in peers.items() if name in paged_peers]
    best = {"best_peer": min(peers.values())} if peers else {}
    best_paged = {"best_paged_peer": min(paged)} if paged else {}
    references = {name: us for name, us in row.items() if name in ("stream_us", "floor_us")}
    return {**references, **row["own"], **best, **best_paged}


def judged(limits: tuple[Limit, ...], row: dict[str, Any], paged_peers: frozenset[str]) -> list[dict[str, Any]]:
    """Each limit with its bound in microseconds, and whether the row keeps it; None where nothing was measured that it
    compares with."""
    found = figures(row, paged_peers)
    result = []
    for limit in limits:
        figure = 0.0 if limit.over is None else found.get(limit.over)
        bound = None if figure is None else limit.bound(figure)
        kept = None if bound is None else bool(row["us"] <= bound)
        result.append({"kind": limit.kind, "limit": str(limit), "bound_us": bound, "kept": kept})
    return result


def limit_text(judgement: dict[str, Any], us: float) -> str:
    """One line about one of :func:`judged`."""
    about = f"  {judgement['kind']}: at most {judgement['limit']}"
    if judgement["bound_us"] is None:
        return f"{about}: not judged, nothing to compare with was measured"
    verdict = "kept" if judgement["kept"] else "MISSED"
    return f"{about} = {judgement['bound_us']:.1f} us: {verdict} by {abs(us / judgement['bound_us'] - 1):.1%}"


def misses(rows: list[dict[str, Any]]) -> int:
    """How many required limits were not kept, or could not be judged."""
    return sum(judgement["kind"] == REQUIRED and not judgement["kept"] for row in rows for judgement in row["limits"])
