"""The memory of a document store: a paged pool of all layers under a budget of bytes."""

from __future__ import annotations

import math

import torch

from ._core import AttentionSpec
from ._paging import bytes_of
from ._precomputed import SlotLogits, argument_of
from .errors import SpecError


def require(condition: bool, message: str) -> None:
    """Raises SpecError with the message unless the condition holds."""
    if not condition:
        raise SpecError(message)


class Pool:
    """Keys and values of all layers in pages, and a logit beside each slot if the store keeps memories.

    Attributes:
        budget: The given bytes.
        page_bytes: The bytes of a page: all layers, keys, values and logits.
        num_pages: The pages that the budget has room for, at least one.
        device: The torch.device.
        layers: For each layer its keys and its values, each [num_pages, page_size, kv_heads, head_dim].
        slot_logits: The logits beside the slots, or None.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        num_layers: int,
        budget: int | str,
        page_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        memories: str | None,
    ) -> None:
        """Allocates the pool for the arguments of :class:`lazyrope.documents.DocumentStore`.

        Raises:
            SpecError: A value is not allowed, or the budget is less than one page.
        """
        require(page_size >= 16 and page_size % 16 == 0, f"page_size is {page_size}; it must be a multiple of 16")
        require(dtype.is_floating_point, f"dtype is {dtype}; a pool holds a floating-point type")
        given = "" if memories is None else argument_of(memories)
        narrow = f"{given} with a pool of 8 bits; memories are of pools in the model's own dtype"
        require(not (memories and dtype.itemsize == 1), narrow)
        page = (page_size, spec.num_kv_heads, spec.head_dim)
        of_logits = num_layers * page_size * spec.num_kv_heads * 4 if memories else 0
        self.budget = bytes_of(budget)
        self.page_bytes = num_layers * 2 * math.prod(page) * dtype.itemsize + of_logits
        self.num_pages = self.budget // self.page_bytes
        require(
            self.num_pages >= 1,
            f"budget is {budget!r}, {self.budget} bytes; one page of {page_size} tokens takes {self.page_bytes} bytes: "
            f"{num_layers} layers, {spec.num_kv_heads} KV heads, head_dim {spec.head_dim}, {dtype}. Give at least that",
        )
        pool = torch.empty((num_layers, 2, self.num_pages, *page), dtype=dtype, device=device)
        self.layers, self.device = [layer.unbind() for layer in pool.unbind()], pool.device
        self.slot_logits: SlotLogits | None = None
        if memories:
            self.slot_logits = SlotLogits(memories, num_layers, self.num_pages, page_size, spec, dtype, self.device)
