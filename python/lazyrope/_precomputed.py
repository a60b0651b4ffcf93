"""Keys and values that a document store copies instead of its caller computing them, and the biases of its keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .errors import StoreError


class Precomputed:
    """The base class of what a store keeps like a document although it has no token ids: a compact memory.

    Its length is the number of slots that it takes for each layer and KV head.

    Attributes:
        key: The hexadecimal content hash.
        model: The hexadecimal hash of its model, as :attr:`lazyrope.documents.DocumentStore.model_key` has it.
        num_positions: The number of positions that it stands for.
        scores: For each layer an object with the scale and the softcap of the scores that it was fitted to.
        keys: The keys, rotated by their index in the document, [layers, kv_heads, slots, head_dim].
        values: The values, of the same shape.
        bias: The numbers that are added to the scores of the keys, float32 [layers, kv_heads, slots].
    """

    key: str
    model: str
    num_positions: int
    scores: Sequence[Any]
    keys: Any
    values: Any
    bias: Any

    def __len__(self) -> int:
        return int(self.keys.shape[2])


def positions_of(document: Any) -> int:
    """Returns the number of positions that a document takes: its tokens, or those that a memory stands for."""
    return document.num_positions if isinstance(document, Precomputed) else len(document)


class KeyBiases:
    """The biases of all slots of a pool. They are 0 but for the slots of memories.

    Args:
        num_layers: The layers of the pool.
        num_pages: The pages of the pool.
        kv_heads: The KV heads.
        page_size: The tokens of a page.
        device: The device of the pool.
    """

    def __init__(self, num_layers: int, num_pages: int, kv_heads: int, page_size: int, device: torch.device) -> None:
        shape = (num_layers, num_pages, kv_heads, page_size)
        self._array = torch.zeros(shape, dtype=torch.float32, device=device)
        self.layers = self._array.unbind()
        self._written: set[int] = set()  # the pages that may have biases other than 0

    def clear(self, page_ids: Iterable[int]) -> None:
        """Sets the biases of pages to 0 that a memory had before. It runs when a document takes the pages."""
        if stale := self._written.intersection(page_ids):
            self._array.index_fill_(1, torch.tensor(sorted(stale), device=self._array.device), 0)
            self._written -= stale

    def write(self, pools: Sequence[Sequence[Any]], page_ids: Sequence[int], memory: Precomputed) -> None:
        """Copies a memory into pages.

        Args:
            pools: The keys and the values of each layer, [pages, page_size, kv_heads, head_dim].
            page_ids: The pages, as many as the memory needs.
            memory: The memory.

        Raises:
            StoreError: A tensor of the memory does not have the pool's layers, heads or dtype.
        """
        pages = torch.tensor(page_ids, device=self._array.device)
        page_size = self._array.shape[3]
        pad = len(page_ids) * page_size - len(memory)
        k_pool = pools[0][0]
        shape = (len(self.layers), k_pool.shape[2], len(memory))
        for name, tensor in (("keys", memory.keys), ("values", memory.values)):
            _check(name, tensor, k_pool.dtype, (*shape, k_pool.shape[3]))
        _check("biases", memory.bias, self._array.dtype, shape)
        self._written.update(page_ids)  # before the copy, so that an exception in it leaves no bias behind
        for layer, (keys, values) in enumerate(pools):
            for pool, rows in ((keys, memory.keys[layer]), (values, memory.values[layer])):
                slots = torch.nn.functional.pad(rows.transpose(0, 1).to(pool.device), (0, 0, 0, 0, 0, pad))
                pool[pages] = slots.unflatten(0, (-1, page_size))
            bias = torch.nn.functional.pad(memory.bias[layer].to(pages.device), (0, pad))
            self.layers[layer][pages] = bias.unflatten(1, (-1, page_size)).transpose(0, 1)


def _check(name: str, tensor: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise StoreError(
            f"the memory has {name} of {tensor.dtype} {list(tensor.shape)}; this pool needs {dtype} {list(shape)}: "
            "layers, KV heads, slots, and for keys and values head_dim"
        )
