"""Tests how the vLLM plug-in reads and writes vLLM's pool on the CPU. It needs no vLLM."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lazyrope.vllm.pool import key_and_value_pools, store

BLOCKS, HEADS, SIZE, DIM = 3, 2, 16, 64


def pool_of(dtype: torch.dtype, heads_first: bool) -> torch.Tensor:
    """Returns a pool of NaNs, [blocks, kv_heads, block_size, 2 * head_dim], with one of two orders in memory."""
    shape = (BLOCKS, HEADS, SIZE, 2 * DIM) if heads_first else (BLOCKS, SIZE, HEADS, 2 * DIM)
    pool = torch.full(shape, 0xFF, dtype=torch.uint8) if dtype.itemsize == 1 else torch.full(shape, torch.nan).to(dtype)
    return pool if heads_first else pool.transpose(1, 2)


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("name", ["auto", "fp8_e4m3", "fp8_e5m2"])
def test_tokens_are_stored_in_their_slots(name, heads_first):
    narrow = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}.get(name)
    generator = torch.Generator().manual_seed(1)
    key, value = (torch.randn(5, HEADS, DIM, generator=generator) for _ in range(2))
    slots = torch.tensor([33, -1, 0, 47])  # fewer than rows: vLLM pads the rows
    layer = SimpleNamespace(_k_scale=torch.tensor(0.5), _v_scale=torch.tensor(2.0))
    kv_cache = pool_of(narrow or torch.float32, heads_first)
    store(layer, key, value, kv_cache, slots, name)
    for pool, given, scale in zip(key_and_value_pools(kv_cache), (key, value), (0.5, 2.0), strict=True):
        assert pool.shape == (BLOCKS, SIZE, HEADS, DIM)
        stored = pool.view(narrow).float() * scale if narrow else pool.float()
        written = torch.zeros(BLOCKS * SIZE, dtype=torch.bool)
        for row, slot in ((0, 33), (2, 0), (3, 47)):
            exact = given[row]
            error = (stored[slot // SIZE, slot % SIZE] - exact).norm() / exact.norm()
            assert error <= (0.1 if narrow else 0.0)
            written[slot] = True
        assert stored[~written.view(BLOCKS, SIZE)].isnan().all(), "a slot of no token is written"
