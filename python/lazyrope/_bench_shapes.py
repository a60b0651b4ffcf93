"""The rows of ``lazyrope bench``: what is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import lazyrope

PART = {80: 20, 96: 24}  # rotated columns of a partial rotary embedding, as models have them; else 32


def _part(head_dim: int) -> int:
    return PART.get(head_dim, 32)


ROPES = {
    "none": lambda head_dim: lazyrope.rope.none(),
    "neox": lambda head_dim: lazyrope.rope.neox(10000.0),
    "gptj": lambda head_dim: lazyrope.rope.gptj(10000.0),
    "linear": lambda head_dim: lazyrope.rope.linear(10000.0, factor=4.0),
    "llama3": lambda head_dim: lazyrope.rope.llama3(),
    "partial neox": lambda head_dim: lazyrope.rope.neox(10000.0, rotary_dim=_part(head_dim)),
    "partial gptj": lambda head_dim: lazyrope.rope.gptj(10000.0, rotary_dim=_part(head_dim)),
}


@dataclass(frozen=True)
class Shape:
    """One row: a batch of requests, each with query_tokens over context tokens of cached documents."""

    kernel: str
    batch: int
    query_tokens: int
    context: int
    doc_tokens: int = 1024
    heads: tuple[int, int] = (32, 8)
    head_dim: int = 128
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    page_size: int = 16
    mask: str = "full"
    rope: str = "llama3"
    scores: dict[str, Any] = field(default_factory=dict, hash=False)  # window, softcap, sinks
    against: dict[str, Any] = field(default_factory=dict, hash=False)  # what differs in a peer of our own

    def spec(self) -> lazyrope.AttentionSpec:
        """Causal, or with a window: queries come after all keys, so that the causal mask hides nothing."""
        return lazyrope.AttentionSpec(
            head_dim=self.head_dim,
            num_q_heads=self.heads[0],
            num_kv_heads=self.heads[1],
            rope=ROPES[self.rope](self.head_dim),
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            mask="sliding_window" if "window" in self.scores else "causal",
            **self.scores,
        )

    @property
    def kv_bytes(self) -> int:
        """Of the keys and values that a request's queries see."""
        seen: int = min(self.context, self.scores.get("window", self.context))
        return 2 * self.batch * seen * self.heads[1] * self.head_dim * (1 if self.kv_dtype.startswith("float8") else 2)

    @property
    def flops(self) -> float:
        """Of the pairs of a query and a key that it sees: query i of the chunk lies i tokens after the first."""
        window: int = self.scores.get("window", self.context + self.query_tokens)
        pairs = sum(min(self.context, max(0, window - 1 - i)) for i in range(self.query_tokens))
        return 4.0 * self.batch * self.heads[0] * pairs * self.head_dim


DECODE = [Shape("decode", b, 1, c) for b, c in ((1, 16384), (8, 16384), (64, 4096), (64, 16384))]
PREFILL = [Shape("prefill", 1, q, c) for q, c in ((64, 8192), (256, 8192), (512, 32768), (2048, 8192))]
APPEND = [Shape("append", 64, 1, 0), Shape("append", 1, 16384, 0)]
REPOSITION = [Shape("reposition", 1, 1024, 0), Shape("reposition", 1, 16384, 0)]


def _both(**options: Any) -> list[Shape]:
    """The decode and the prefill row at which shapes are compared."""
    return [Shape("decode", 64, 1, 16384, **options), Shape("prefill", 1, 512, 32768, **options)]


def _breadth() -> list[Shape]:
    """Every head_dim, group, per-rank shape, RoPE variant and treatment of scores."""
    rows: list[Shape] = []
    for head_dim in lazyrope.head_dims():
        for group in (1, 4, 8):
            rows += _both(head_dim=head_dim, heads=(8 * group, 8), rope="neox")
    for group in [*range(1, 17), 71]:
        if group not in (1, 4, 8):
            rows += _both(heads=(8 * group, 8), rope="neox")
    for heads in ((8, 1), (16, 2), (4, 1)):
        rows += _both(heads=heads, rope="neox")
    for rope in ROPES:
        if rope != "neox":
            rows += _both(rope=rope, against={"rope": "neox"})
    for head_dim in PART:
        for rope in ("partial neox", "partial gptj"):
            rows += _both(head_dim=head_dim, rope=rope, against={"rope": "neox"})
    for scores in ({"softcap": 50.0}, {"sinks": True}, {"window": 4096}):
        rows += _both(rope="neox", scores=scores)
    for kv_dtype in ("float8_e4m3fn", "float8_e5m2"):
        for head_dim in (d for d in lazyrope.head_dims() if d % 16 == 0):
            rows += _both(head_dim=head_dim, rope="neox", kv_dtype=kv_dtype, against={"kv_dtype": "bfloat16"})
    return rows


BREADTH = _breadth()
TABLES = {"decode": DECODE, "prefill": PREFILL, "append": APPEND, "reposition": REPOSITION, "breadth": BREADTH}
# What `all` measures: the tables that the README shows.
ALL = ["decode", "prefill", "append", "reposition"]
