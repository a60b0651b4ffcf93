"""A list of settings in which every pair of values of any two factors occurs, then random ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

from tests.support.cases import DTYPES, HEAD_DIMS, MASKS, PHASES, ROPES, SCORES, Setting

FACTORS: dict[str, list[object]] = {
    "head_dim": list(HEAD_DIMS),
    "group": [*range(1, 17), 71],
    "dtype": list(DTYPES),
    "page_size": [16, 48, 64, 128],
    "layout": ["NHD", "HND"],
    "query_form": ["raw", "rotated"],
    "rope": list(ROPES),
    "phase": list(PHASES),
    "mask": list(MASKS),
    "scores": list(SCORES),
}

Pair = tuple[tuple[str, object], tuple[str, object]]


def pairs_of(values: dict[str, object]) -> set[Pair]:
    return set(itertools.combinations(sorted(values.items(), key=lambda kv: kv[0]), 2))


def all_pairs() -> set[Pair]:
    pairs: set[Pair] = set()
    for (a, a_values), (b, b_values) in itertools.combinations(sorted(FACTORS.items()), 2):
        pairs |= {((a, x), (b, y)) for x in a_values for y in b_values}
    return pairs


def covered(settings: Iterable[Setting]) -> set[Pair]:
    pairs: set[Pair] = set()
    for setting in settings:
        pairs |= pairs_of({name: getattr(setting, name) for name in FACTORS})
    return pairs


def covering_settings(count: int, seed: int) -> list[Setting]:
    """`count` settings; greedily chosen until every pair occurs, random after that."""
    rng = random.Random(seed)
    missing = all_pairs()
    settings: list[Setting] = []

    def draw() -> dict[str, object]:
        return {name: rng.choice(values) for name, values in FACTORS.items()}

    while missing and len(settings) < count:
        best = max((draw() for _ in range(50)), key=lambda values: len(pairs_of(values) & missing))
        missing -= pairs_of(best)
        settings.append(Setting(**best))  # type: ignore[arg-type]
    while len(settings) < count:
        settings.append(Setting(**draw()))  # type: ignore[arg-type]
    return settings
