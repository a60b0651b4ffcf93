"""vLLM's pool as lazyrope reads it, and the storing of new keys and values in it."""

from __future__ import annotations

from typing import Any

import torch


def key_and_value_pools(kv_cache: Any) -> tuple[Any, Any]:
    """Returns views of the keys and of the values, each [blocks, block_size, kv_heads, head_dim].

    Args:
        kv_cache: vLLM's pool of one layer, [blocks, kv_heads, block_size, 2 * head_dim] in any strides. A token's key
            comes before its value.
    """
    keys, values = kv_cache.transpose(1, 2).chunk(2, dim=-1)
    return keys, values


def store(layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any, kv_cache_dtype: str) -> None:
    """Stores keys and values in the slots that vLLM has chosen.

    Args:
        layer: vLLM's layer, which has the scales of a pool of 8 bits.
        key: [tokens, kv_heads, head_dim]. It may have more rows than slot_mapping.
        value: The same.
        kv_cache: As in :func:`key_and_value_pools`.
        slot_mapping: The slot of each row, int64 [tokens], ``block * block_size + slot``. Rows with -1 are skipped.
        kv_cache_dtype: vLLM's name of the pool's dtype.
    """
    k_pool, v_pool = key_and_value_pools(kv_cache)
    if key.device.type != "cpu":
        from vllm._custom_ops import reshape_and_cache_flash

        reshape_and_cache_flash(
            key, value, k_pool, v_pool, slot_mapping, kv_cache_dtype, layer._k_scale, layer._v_scale
        )
        return
    rows = (slot_mapping >= 0).nonzero().squeeze(-1)
    slots = slot_mapping[rows]
    at = slots // k_pool.shape[1], slots % k_pool.shape[1]
    for pool, new, scale in ((k_pool, key, layer._k_scale), (v_pool, value, layer._v_scale)):
        new = new[rows]
        if pool.dtype.itemsize == 1:
            new = (new.float() / scale).to(torch.float8_e5m2 if "e5m2" in kv_cache_dtype else torch.float8_e4m3fn)
            pool, new = pool.view(torch.uint8), new.view(torch.uint8)
        pool[at] = new
