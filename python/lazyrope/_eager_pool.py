"""Tokens in pages of a pool, as :mod:`lazyrope.eager` reads and writes them in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ._overloads import Ints

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor


class Slots:
    """Slots of a pool, all tensors int64 [slots]."""

    def __init__(self, page: Tensor, slot: Tensor, page_size: int) -> None:
        self.page = page
        self.slot = slot
        self.row = page * page_size + slot  # the index in a pool whose pages are joined


@dataclass
class Tokens:
    """Runs of tokens in pages, concatenated."""

    offset: Tensor  # [tokens], int64: index of a token in its run
    run: Tensor  # [tokens]: index of its run
    slots: Slots


def tokens_of(lengths: Ints, first_page: Tensor, lead: Tensor | None, pages: Tensor, page_size: int) -> Tokens:
    device = pages.device
    lead = torch.zeros_like(first_page) if lead is None else lead
    count = torch.tensor(lengths, dtype=torch.int64, device=device)
    run = torch.repeat_interleave(torch.arange(len(lengths), device=device), count)
    offset = torch.arange(len(run), device=device) - (count.cumsum(0) - count)[run]
    slot = lead.long()[run] + offset
    page = pages[first_page.long()[run] + slot // page_size].long()
    return Tokens(offset, run, Slots(page, slot % page_size, page_size))


def is_narrow(dtype: Any) -> bool:
    """Returns True if an element has 8 bits."""
    return bool(dtype.itemsize == 1)


def bits_of(x: Tensor) -> Tensor:
    """Returns a view that PyTorch can index: 8-bit floating-point numbers as uint8."""
    return x.view(torch.uint8) if is_narrow(x.dtype) else x


def with_joined_pages(pool: Tensor, layout: str) -> Tensor | None:
    """Returns a view of the pool with its pages joined, [slots, kv_heads, head_dim], or None if there is no such view.

    PyTorch reads and writes rows of one dimension several times as fast as rows of two.
    """
    if layout != "NHD" or pool.stride(0) != pool.shape[1] * pool.stride(1):
        return None
    return pool.as_strided((pool.shape[0] * pool.shape[1], *pool.shape[2:]), pool.stride()[1:])


def gather(pool: Tensor, layout: str, slots: Slots) -> Tensor:
    """Reads rows of the pool, [tokens, kv_heads, head_dim]."""
    bits = bits_of(pool)
    joined = with_joined_pages(bits, layout)
    if joined is not None:
        return joined.index_select(0, slots.row).view(pool.dtype)
    return (bits[slots.page, slots.slot] if layout == "NHD" else bits[slots.page, :, slots.slot]).view(pool.dtype)


def read(pool: Tensor, layout: str, slots: Slots, scale: Tensor | None) -> Tensor:
    """Reads rows of the pool, multiplied by their scale, float32 [tokens, kv_heads, head_dim]."""
    rows = gather(pool, layout, slots).float()
    return rows if scale is None else rows * scale


def scatter(pool: Tensor, layout: str, slots: Slots, rows: Tensor) -> None:
    """Writes rows to the pool, rounded to its dtype. Numbers of 8 bits saturate at the greatest one.

    Rows that have the pool's dtype keep their bits.
    """
    if is_narrow(pool.dtype) and rows.dtype != pool.dtype:
        greatest = torch.finfo(pool.dtype).max
        rows = rows.float().clamp(-greatest, greatest).nan_to_num(torch.nan)  # all NaNs get the same bits
    rows, bits = bits_of(rows.to(pool.dtype)), bits_of(pool)
    joined = with_joined_pages(bits, layout)
    if joined is not None:
        joined.index_copy_(0, slots.row, rows)
    elif layout == "NHD":
        bits[slots.page, slots.slot] = rows
    else:
        bits[slots.page, :, slots.slot] = rows
