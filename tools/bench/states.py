"""Rows of ``python -m tools.bench memories``: look-ups in attention states, beside exact attention over 8K tokens.

All query heads of a KV head share the entries, which is the least that a look-up can read. A memory of
:mod:`lazyrope.memory` has entries for each query head.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tools.bench.limits import Limit
from tools.bench.shapes import Shape

TOKENS = 8192  # the tokens of the prefix for which the entries stand
EXACT = {"exact": {"options": {}, "context": TOKENS, "doc_tokens": TOKENS}}


def _states(batch: int, entries: int, *limits: Limit) -> Shape:
    """Returns a row of decode whose requests have one memory each, of their own."""
    return Shape(
        "decode",
        batch,
        1,
        entries,
        doc_tokens=entries,
        peers=(),
        options={"states": True},
        variants=EXACT,
        limits=limits,
    )


def _two_level(batch: int, entries: int) -> Shape:
    """Returns a row whose entries are in cells: as many as a cell has entries. A variant has the same entries flat."""
    cell = math.isqrt(entries)
    slots = entries // cell * (cell + 1)
    flat = {"options": {"states": True}, "context": entries, "doc_tokens": entries, "cell": 0}
    return replace(
        _states(batch, entries), context=slots, doc_tokens=slots, cell=cell, variants={**EXACT, "flat": flat}
    )


def states() -> list[Shape]:
    """Returns the row that must be 1.2 times as fast as exact attention, and those of other sizes and batches."""
    faster = Limit("exact", factor=1 / 1.2)
    rows = [_states(1, 1024 * k) for k in (1, 2, 4)]
    rows.append(_states(1, TOKENS, faster))
    rows.append(_states(1, 2 * TOKENS))
    rows += [_states(batch, entries) for batch in (8, 32, 128) for entries in (1024, TOKENS)]
    rows += [_two_level(1, 1024 * k) for k in (1, 4, 16)]
    return rows + [_two_level(batch, 16 * 1024) for batch in (8, 32)]
