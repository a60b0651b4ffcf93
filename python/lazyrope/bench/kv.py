"""Keys and values as the peers of ``lazyrope bench`` read them."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

from .shapes import Shape
from .timer import Memory


class UnsupportedShape(Exception):
    """The peer has no such attention."""


def require_16_bits(shape: Shape) -> None:
    if shape.kv_dtype != shape.dtype:
        raise UnsupportedShape(f"has no {shape.kv_dtype} keys for {shape.dtype} queries")


def ints(values: Any, memory: Memory) -> Any:
    import torch

    return torch.as_tensor(values, dtype=torch.int32, device=memory.device)


def queries(shape: Shape, memory: Memory, *size: int) -> Any:
    import torch

    return torch.randn(size, dtype=getattr(torch, shape.dtype), device=memory.device)


class Pages:
    """Runs of tokens in pages of the row's size, in random order: as lists of them, and as a table."""

    def __init__(self, lengths: list[int], shape: Shape, memory: Memory) -> None:
        import torch

        counts = [math.ceil(length / shape.page_size) for length in lengths]
        pages = torch.randperm(sum(counts)).to(torch.int32)
        table = torch.zeros((len(lengths), max(counts)), dtype=torch.int32)
        for row, own in zip(table, pages.split(counts), strict=True):
            row[: len(own)] = own
        pool = (sum(counts), shape.page_size, shape.heads[1], shape.head_dim)
        # [pages, page_size, kv_heads, head_dim]
        self.k, self.v = memory.pools(pool, shape.kv_dtype, shape.pools_apart)
        self.table = table.to(memory.device)  # [runs, pages of the longest]
        self.indices = pages.to(memory.device)
        self.indptr = ints(list(accumulate(counts, initial=0)), memory)
        self.last = ints([(length - 1) % shape.page_size + 1 for length in lengths], memory)  # tokens in the last page
        self.lengths = ints(lengths, memory)
