"""FlashAttention-3 as vLLM 0.26.0 ships it, called without vLLM: on pages, and on contiguous keys and values."""

from __future__ import annotations

import importlib.util
from itertools import accumulate
from pathlib import Path
from typing import Any

from lazyrope.bench.peers import UnsupportedShape, queries
from lazyrope.bench.timer import Call, Memory

from tools.bench.kv import Pages, ints
from tools.bench.shapes import Shape

VLLM_LIBRARY = "vllm_flash_attn/_vllm_fa3_C.abi3.so"  # in the folder of the package vllm
NO_WINDOW = (-1, -1)
ANY_SPLITS = 0


def load_vllm_ops() -> Any:
    """Returns the operators of vLLM's FlashAttention-3. Python's part of vLLM is not imported, because it is large."""
    import torch

    found = importlib.util.find_spec("vllm")
    for folder in (found and found.submodule_search_locations) or ():
        if (library := Path(folder) / VLLM_LIBRARY).is_file():
            torch.ops.load_library(library)
            return torch.ops._vllm_fa3_C
    raise UnsupportedShape(f"has no {VLLM_LIBRARY} in the package vllm")


def flash_attention_3(shape: Shape, memory: Memory) -> Call:
    """The kernel call that vLLM 0.26.0 makes for the requests of a step. Its schedule is made before, once a step."""
    pages = Pages(shape.contexts, shape, memory)
    q = _queries(shape, memory)
    return paged_call(shape, memory, q, shape.tokens, pages)


def paged_call(shape: Shape, memory: Memory, q: Any, tokens: list[int], pages: Pages) -> Call:
    """Returns the call of FlashAttention-3 on pages.

    Args:
        shape: The row, for its mask, heads and page size.
        memory: Where the metadata is made.
        q: [query tokens, heads, head_dim].
        tokens: The query tokens of each sequence of `pages`.
        pages: Keys and values.
    """
    ops = load_vllm_ops()
    sizes = (len(tokens), max(tokens), int(pages.lengths.max()), *shape.heads, shape.head_dim, shape.head_dim, q.dtype)
    cu_q, causal = ints(list(accumulate(tokens, initial=0)), memory), shape.mask == "causal"
    no_cu_k = (None, None, None, None)
    schedule = ops.get_scheduler_metadata(
        *sizes, pages.lengths, cu_q, *no_cu_k, shape.page_size, 0, causal, *NO_WINDOW, False, ANY_SPLITS, None, 0
    )
    lengths = (cu_q, None, None, None, pages.lengths, sizes[1], sizes[2], pages.table)
    return _call(ops, shape, memory, (q, pages.k, pages.v), lengths, schedule)


def flash_attention_3_contiguous(shape: Shape, memory: Memory) -> Call:
    ops = load_vllm_ops()
    q = _queries(shape, memory)
    k, v = memory.keys_and_values((sum(shape.contexts), shape.heads[1], shape.head_dim), shape.kv_dtype)
    cu_q, cu_k = (ints(list(accumulate(each, initial=0)), memory) for each in (shape.tokens, shape.contexts))
    lengths = (cu_q, cu_k, None, None, None, max(shape.tokens), max(shape.contexts), None)
    return _call(ops, shape, memory, (q, k, v), lengths, None)


def _queries(shape: Shape, memory: Memory) -> Any:
    """Returns [query tokens, heads, head_dim], of 8 bits if the keys have 8 bits: then the products have, too."""
    import torch

    return queries(shape, memory, sum(shape.tokens), shape.heads[0], shape.head_dim).to(getattr(torch, shape.kv_dtype))


def _call(ops: Any, shape: Shape, memory: Memory, tensors: Any, lengths: tuple[Any, ...], schedule: Any) -> Call:
    import torch

    q, cu_q = tensors[0], lengths[0]
    out = torch.empty(q.shape, dtype=getattr(torch, shape.dtype), device=memory.device)
    scale = None if q.dtype == out.dtype else torch.ones(len(cu_q) - 1, shape.heads[1], device=memory.device)
    no_new_keys, no_rotation = (None,) * 3, (None,) * 5
    mask = (shape.head_dim**-0.5, shape.mask == "causal", *NO_WINDOW)
    options = (0.0, True, schedule, ANY_SPLITS, None, 0, None, 1, 0, None)

    def call() -> object:
        ops.fwd(*tensors, *no_new_keys, out, *lengths, *no_rotation, scale, scale, scale, *mask, *options)
        return out

    return call
