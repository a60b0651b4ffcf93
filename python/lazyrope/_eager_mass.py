"""The attention mass of pages, as :mod:`lazyrope.eager` computes it (:attr:`lazyrope.AttentionSpec.page_mass`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ._core import AttentionSpec
from ._eager_pool import Tokens
from ._overloads import Ints, check_tensor, ints
from .errors import SpecError

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor

SLOTS = 16  # slots of a page whose mass is measured, whatever the page size of the pool


def counted_tokens(mass_tokens: Tensor | None, requests: int, all_tokens: int) -> Ints:
    """Returns the last query tokens of each request that count. No request has more than all_tokens.

    Raises:
        SpecError: mass_tokens has a wrong dtype, rank or length.
    """
    if mass_tokens is None:
        return [all_tokens] * requests
    counts = ints("segments.mass_tokens", mass_tokens)
    if len(counts) != requests:
        raise SpecError(f"segments.mass_tokens has {len(counts)} elements; it must have {requests}")
    return counts


class MassPages:
    """The pages of a step's segments.

    Attributes:
        of_key: The number of each key's page in the step, int64 [keys].
        count: The number of all pages.
    """

    def __init__(self, lengths: Ints, lead: Tensor | None, tokens: Tokens) -> None:
        length = torch.tensor(lengths, dtype=torch.int64, device=tokens.run.device)
        slot = torch.zeros_like(length) if lead is None else lead.long() % SLOTS
        counts = torch.where(length > 0, (slot + length + SLOTS - 1) // SLOTS, 0)
        self.of_key = (counts.cumsum(0) - counts)[tokens.run] + (slot[tokens.run] + tokens.offset) // SLOTS
        self.count = int(counts.sum())


class MassSum:
    """Adds up the masses of one call, if the caller asks for them.

    Raises:
        SpecError: The caller asks for them, and the spec has none, or the tensor has a wrong dtype or rank.
    """

    def __init__(self, spec: AttentionSpec, pages: MassPages, out: Tensor | None) -> None:
        if out is not None and not spec.page_mass:
            raise SpecError("page_mass is given; the spec has none (page_mass=True makes calls give it)")
        if out is not None:
            check_tensor("page_mass", out)
            if out.dtype != torch.float32 or out.dim() != 1:
                raise SpecError(f"page_mass is {out.dtype} {list(out.shape)}; it must be float32 [pages of 16 slots]")
        self._pages = pages
        self._out = out
        self._sum = None if out is None else torch.zeros(pages.count, dtype=torch.float32, device=out.device)

    def add(self, weights: Tensor, keys: slice) -> None:
        """Adds weights, [kv_heads, group, rows, keys], of some of the step's keys."""
        if self._sum is not None:
            self._sum.index_add_(0, self._pages.of_key[keys], weights.sum((0, 1, 2)))

    def store(self) -> None:
        """Writes the masses. Those beyond the end of the caller's tensor are dropped."""
        if self._out is not None and self._sum is not None:
            self._out[: len(self._sum)] = self._sum[: len(self._out)]
