"""Lists settings in which every pair of values of any two factors occurs, then random settings."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace

from tests.support.cases import DTYPES, FP8, HEAD_DIMS, KV_DTYPES, MASKS, PHASES, ROPES, SCORES, Setting

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
    "kv_heads": [1, 2, 3],
    "kv_dtype": list(KV_DTYPES),
    "key_form": ["local", "raw"],
}
# The bytes of an 8-bit key row must be a multiple of 16, and raw keys have 16 bits.
IMPOSSIBLE = {(("head_dim", head_dim), ("kv_dtype", fp8)) for head_dim in HEAD_DIMS if head_dim % 16 for fp8 in FP8}
IMPOSSIBLE |= {(("key_form", "raw"), ("kv_dtype", fp8)) for fp8 in FP8}

# Tensor parallelism gives each GPU heads like these: 8 query heads and 1 KV head, 16 and 2, 4 and 1.
PER_RANK: list[dict[str, object]] = [
    {"group": 8, "kv_heads": 1},
    {"group": 8, "kv_heads": 2},
    {"group": 4, "kv_heads": 1},
]

# Without a GPU, the emulator runs the first EMULATED settings of the list. Compiling takes longer than running, so the
# kernels of each of these settings run several steps, which differ in the parameters of calls: one for each phase, and
# with a GPU or --soak another one.
EMULATED = 22
STEPS = len(PHASES) + 1
RACE_CHECKED = 12

Value = tuple[str, object]
Pair = tuple[Value, Value]


def pairs_of(values: dict[str, object]) -> set[Pair]:
    return set(itertools.combinations(sorted(values.items(), key=lambda kv: kv[0]), 2))


def all_pairs() -> set[Pair]:
    pairs: set[Pair] = set()
    for a, b in itertools.combinations(sorted(FACTORS), 2):
        pairs |= {((a, x), (b, y)) for x in FACTORS[a] for y in FACTORS[b]}
    return pairs - IMPOSSIBLE


def covered(settings: Iterable[Setting]) -> set[Pair]:
    pairs: set[Pair] = set()
    for setting in settings:
        pairs |= pairs_of({name: getattr(setting, name) for name in FACTORS})
    return pairs


def values_in(setting: Setting) -> set[Value]:
    return {(name, getattr(setting, name)) for name in FACTORS}


def first_values(rng: random.Random) -> list[dict[str, object]]:
    """Returns values that the first settings have: those of PER_RANK, then each other group in a random order."""
    others = [group for group in FACTORS["group"] if all(group != values["group"] for values in PER_RANK)]
    return PER_RANK + [{"group": group} for group in rng.sample(others, len(others))]


def covering_settings(count: int, seed: int) -> list[Setting]:
    """Returns `count` settings: those of PER_RANK, greedily chosen ones until every pair occurs, then random ones.

    The first settings have a group each, because a group has more values than any other factor.
    """
    rng = random.Random(seed)
    missing = all_pairs()
    settings: list[Setting] = []
    first = first_values(rng)

    def draw() -> dict[str, object]:
        fixed = first[len(settings)] if len(settings) < len(first) else {}
        values = {name: rng.choice(FACTORS[name]) for name in FACTORS} | fixed
        return draw() if pairs_of(values) & IMPOSSIBLE else values

    while missing and len(settings) < count:
        best = max((draw() for _ in range(50)), key=lambda values: len(pairs_of(values) & missing))
        missing -= pairs_of(best)
        settings.append(Setting(**best))  # type: ignore[arg-type]
    while len(settings) < count:
        settings.append(Setting(**draw()))  # type: ignore[arg-type]
    return settings


def numbered_steps(count: int, seed: int, steps_each: int = STEPS) -> list[tuple[int, Setting]]:
    """Returns the steps of `count` settings, each with its seed, which also names it. GPU and emulator share them.

    Each of the first EMULATED settings has `steps_each` steps, and each other setting has one.
    """
    steps: list[tuple[int, Setting]] = []
    for i, setting in enumerate(covering_settings(count, seed)):
        steps.append((seed + i, setting))
        if i < EMULATED:
            others = _other_calls(setting, seed + i)[: steps_each - 1]
            steps += [(seed + i + 10_000 * k, other) for k, other in enumerate(others, 1)]
    return steps


def _other_calls(setting: Setting, seed: int) -> list[Setting]:
    """Returns settings of the same kernels: one for each other phase, then random phases."""
    rng = random.Random(seed)
    others = [phase for phase in PHASES if phase != setting.phase]
    phases = others + rng.choices(PHASES, k=STEPS - 1 - len(others))
    return [
        replace(setting, phase=phase, page_size=rng.choice(FACTORS["page_size"]), layout=rng.choice(FACTORS["layout"]))
        for phase in phases
    ]


def race_checked(steps: Iterable[tuple[int, Setting]], count: int = RACE_CHECKED) -> list[int]:
    """Returns the seeds of the steps in which the emulator also searches for races.

    The choice is greedy. It covers every value first, then as many pairs of factors as possible.
    """
    left, values, pairs = list(steps), set[Value](), set[Pair]()
    chosen: list[int] = []
    while left and len(chosen) < count:
        best = max(left, key=lambda step: (len(values_in(step[1]) - values), len(covered([step[1]]) - pairs)))
        left.remove(best)
        values |= values_in(best[1])
        pairs |= covered([best[1]])
        chosen.append(best[0])
    return chosen


def spread(parameters: list[dict[str, str]], size: int, seed: str) -> list[int]:
    """Draws tests of a parametrised function, so that the drawn ones together have many different values.

    Args:
        parameters: For each test, the value of each of its parameters.
        size: How many tests are drawn, if there are as many.
        seed: Other seeds draw other tests.

    Returns:
        The indices of the drawn tests.
    """
    left = random.Random(seed).sample(range(len(parameters)), len(parameters))
    drawn: list[int] = []
    seen: set[tuple[str, str]] = set()
    while left and len(drawn) < size:
        best = max(left, key=lambda i: len(parameters[i].items() - seen))
        left.remove(best)
        drawn.append(best)
        seen |= parameters[best].items()
    return drawn
