"""Keys and values in pages, as the paged peers read them."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

from lazyrope.bench.timer import Memory

from tools.bench.shapes import Shape


def ints(values: Any, memory: Memory) -> Any:
    import torch

    return torch.as_tensor(values, dtype=torch.int32, device=memory.device)


class Pages:
    """Sequences of tokens in pages of the shape's size, in random order.

    Attributes:
        k, v: [pages, page_size, KV heads, head_dim].
        table: [sequences, pages of the longest one].
        indptr, indices: the pages of each sequence as a compressed list.
        last: tokens in the last page of each sequence.
        lengths: tokens of each sequence.
    """

    def __init__(self, lengths: list[int], shape: Shape, memory: Memory) -> None:
        import torch

        counts = [math.ceil(length / shape.page_size) for length in lengths]
        pages = torch.randperm(sum(counts)).to(torch.int32)
        table = torch.zeros((len(lengths), max(counts)), dtype=torch.int32)
        for row, own in zip(table, pages.split(counts), strict=True):
            row[: len(own)] = own
        self.k, self.v = shape.pools(memory, sum(counts))
        self.table = table.to(memory.device)
        self.indices = pages.to(memory.device)
        self.indptr = ints(list(accumulate(counts, initial=0)), memory)
        self.last = ints([(length - 1) % shape.page_size + 1 for length in lengths], memory)
        self.lengths = ints(lengths, memory)
