"""The rows of ``python -m tools.bench states``: look-ups in attention states, beside exact attention over 8K tokens."""

from __future__ import annotations

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


def states() -> list[Shape]:
    """Returns the row that must be 1.2 times as fast as exact attention, and those of other sizes and batches."""
    faster = Limit("exact", factor=1 / 1.2)
    rows = [_states(1, 1024 * k) for k in (1, 2, 4)]
    rows.append(_states(1, TOKENS, faster))
    rows.append(_states(1, 2 * TOKENS))
    return rows + [_states(batch, entries) for batch in (8, 32, 128) for entries in (1024, TOKENS)]
