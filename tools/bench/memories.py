"""Rows of ``python -m tools.bench memories``: compact memories in place of a long prefix, beside the prefix itself.

A compact memory is read like a document of as many tokens as it has slots, with a bias for each key. The prefix is one
document of the batch's requests, or each request has a prefix of its own.
"""

from __future__ import annotations

from typing import Any

from tools.bench.limits import Limit
from tools.bench.prefix_peers import PREFIX_PEERS
from tools.bench.shapes import DECODE_PEERS, Overrides
from tools.bench.shared import SharedShape

PREFIXES = (1024, 8192, 65536)
BATCHES = (1, 8, 32, 128)
COMPACT = {"options": {"key_bias": True}}
# (prefix, batch, whether the requests share it): the least factor by which a compact memory of 1024 slots is faster.
LEAST_GAINS = {(8192, 1, True): 1.3, (8192, 64, False): 5.0}


def _of(tokens: int, **options: Any) -> Overrides:
    """Returns the changes that make each request read one document of so many tokens."""
    return {"context": tokens, "doc_tokens": tokens, **options}


def _row(prefix: int, batch: int, is_shared: bool) -> SharedShape:
    """Returns the row of a compact memory of 1024 slots, or 256 where the prefix has no more tokens."""
    slots = min(1024, prefix // 4)
    exact = _of(prefix, options={})
    variants = {"exact": exact, **({"compact_256": _of(256)} if slots > 256 else {})}
    if is_shared and batch > 1:
        variants["exact_cascade"] = exact | {"cascade": True}
    gain = LEAST_GAINS.get((prefix, batch, is_shared))
    return SharedShape(
        "decode",
        batch,
        1,
        **_of(slots, **COMPACT),
        stored=1 if is_shared else 0,
        cascade=False,
        variants=variants,
        peers=PREFIX_PEERS if is_shared and batch > 1 else DECODE_PEERS if batch == 1 else (),
        peers_at=exact,
        limits=(Limit("exact", factor=1 / gain),) if gain else (),
    )


def memories() -> list[SharedShape]:
    """Returns the rows of all prefixes and batches, and those that have limits."""
    steps = [(prefix, batch, True) for prefix in PREFIXES for batch in BATCHES]
    steps += [(prefix, batch, False) for prefix in PREFIXES for batch in BATCHES[1:]]
    return [_row(*step) for step in dict.fromkeys([*LEAST_GAINS, *steps])]
