"""FlashInfer and FlashAttention-4 as peers.

FlashInfer compiles its kernels with nvcc when they are first called.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from lazyrope.bench.peers import UnsupportedShape, queries, require_16_bits
from lazyrope.bench.timer import Call, Memory

from tools.bench.kv import Pages, ints
from tools.bench.shapes import Shape

WORKSPACE = 512 << 20  # bytes; rows of thousands of documents need more than FlashInfer recommends


class Captured:
    """A call as one CUDA graph. Keeps a reference to the call, so that the tensors that the graph reads stay alive."""

    def __init__(self, call: Call) -> None:
        import torch

        self.call = call
        for _ in range(3):
            call()
        gc.collect()  # collecting another graph during the capture would invalidate the capture
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = call()

    def __call__(self) -> object:
        self.graph.replay()
        return self.result


def new_workspace(memory: Memory) -> Any:
    import torch

    return torch.zeros(WORKSPACE, dtype=torch.uint8, device=memory.device)


def _planned(pages: Pages, shape: Shape, memory: Memory, backend: str = "fa2") -> Any:
    """Returns a planned wrapper of FlashInfer. Each sequence of `pages` has the shape's query tokens."""
    import flashinfer
    import torch

    options = {"q_data_type": getattr(torch, shape.dtype), "kv_data_type": getattr(torch, shape.kv_dtype)}
    layout = (pages.indptr, pages.indices, pages.last, *shape.heads, shape.head_dim, shape.page_size)
    if shape.kernel == "decode":
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            new_workspace(memory), "NHD", use_tensor_cores=True, backend=backend
        )
        wrapper.plan(*layout, q_len_per_req=shape.query_tokens, **options)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(new_workspace(memory), "NHD", backend=backend)
        tokens = _indptr(shape.query_tokens, len(pages.lengths), memory)
        wrapper.plan(tokens, *layout, causal=shape.mask == "causal", **options)
    return wrapper


def _indptr(tokens: int, sequences: int, memory: Memory) -> Any:
    """Returns [sequences + 1] offsets of sequences that have the same number of tokens."""
    return ints([i * tokens for i in range(sequences + 1)], memory)


def _flashinfer_paged(backend: str) -> Callable[[Shape, Memory], Call]:
    def make(shape: Shape, memory: Memory) -> Call:
        pages = Pages(shape.contexts, shape, memory)
        wrapper = _planned(pages, shape, memory, backend)
        q = queries(shape, memory, shape.batch * shape.query_tokens, shape.heads[0], shape.head_dim)
        return Captured(lambda: wrapper.run(q, (pages.k, pages.v)))

    return make


flashinfer_fa2 = _flashinfer_paged("fa2")
flashinfer_fa3 = _flashinfer_paged("fa3")


def flashinfer_contiguous(shape: Shape, memory: Memory) -> Call:
    """FlashInfer's FA3 ragged prefill: all requests' K and V packed into one tensor."""
    import flashinfer
    import torch

    require_16_bits(shape)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(new_workspace(memory), "NHD", backend="fa3")
    dtype = getattr(torch, shape.dtype)
    wrapper.plan(
        _indptr(shape.query_tokens, shape.batch, memory),
        _indptr(shape.context, shape.batch, memory),
        *shape.heads,
        shape.head_dim,
        causal=shape.mask == "causal",
        q_data_type=dtype,
        kv_data_type=dtype,
    )
    q = queries(shape, memory, shape.batch * shape.query_tokens, shape.heads[0], shape.head_dim)
    k, v = memory.keys_and_values((shape.batch * shape.context, shape.heads[1], shape.head_dim), shape.dtype)
    return Captured(lambda: wrapper.run(q, k, v))


def flashinfer_xqa(shape: Shape, memory: Memory) -> Call:
    import flashinfer
    import torch

    if shape.query_tokens > 1:
        raise UnsupportedShape("is measured with one query token")
    pages = Pages(shape.contexts, shape, memory)
    q = queries(shape, memory, shape.batch, shape.heads[0], shape.head_dim)
    workspace, lengths = new_workspace(memory), pages.lengths.view(torch.uint32)
    options = {"bmm1_scale": shape.head_dim**-0.5, "kv_layout": "NHD"}

    def call() -> object:
        return flashinfer.decode.xqa_batch_decode_with_kv_cache(
            q, (pages.k, pages.v), workspace, pages.table, lengths, max(shape.contexts), **options
        )

    return call


def flash_attention_4(shape: Shape, memory: Memory) -> Call:
    from flash_attn.cute import flash_attn_varlen_func

    require_16_bits(shape)
    pages = Pages(shape.contexts, shape, memory)
    q = queries(shape, memory, shape.batch, shape.query_tokens, shape.heads[0], shape.head_dim)
    options = {
        "page_table": pages.table,
        "seqused_k": pages.lengths,
        "max_seqlen_k": max(shape.contexts),
        "causal": shape.mask == "causal",
        "pack_gqa": True,
    }
    return lambda: _first(flash_attn_varlen_func(q, pages.k, pages.v, **options))


def flash_attention_4_contiguous(shape: Shape, memory: Memory) -> Call:
    from flash_attn.cute import flash_attn_func

    require_16_bits(shape)
    q = queries(shape, memory, shape.batch, shape.query_tokens, shape.heads[0], shape.head_dim)
    k, v = memory.keys_and_values((shape.batch, shape.context, shape.heads[1], shape.head_dim), shape.dtype)
    return lambda: _first(flash_attn_func(q, k, v, causal=shape.mask == "causal"))


def _first(result: Any) -> Any:
    """Returns the output from a result that may also have the LSE."""
    return result[0] if isinstance(result, tuple) else result


def lazy_on_flashinfer(shape: Shape, memory: Memory) -> Call:
    """Lazy attention from FlashInfer's kernels: each document is a request with its own rotated copy of the queries.

    The partial outputs are merged by their LSE.
    """
    import flashinfer

    requests = shape.documents
    per_request = len(requests[0])
    if any(len(documents) != per_request for documents in requests):
        raise UnsupportedShape("needs the same number of documents in each request")
    if shape.query_tokens > 1 and (shape.kernel == "decode" or shape.mask == "causal"):
        raise UnsupportedShape("takes more than one query token only in prefill with the full mask")
    rotations = {
        "llama3": flashinfer.apply_llama31_rope_pos_ids_inplace,
        "neox": flashinfer.apply_rope_pos_ids_inplace,
    }
    if shape.rope not in rotations:
        raise UnsupportedShape(f"is built for {' and '.join(rotations)} RoPE")
    pages = Pages([length for documents in requests for length in documents], shape, memory)
    wrapper = _planned(pages, shape, memory, "fa2" if shape.kernel == "decode" else "fa3")
    q = queries(shape, memory, shape.batch, 1, shape.query_tokens, shape.heads[0], shape.head_dim)
    distances = _distances(shape, memory)
    unused_keys = queries(shape, memory, len(distances), 1, shape.head_dim)  # the function also rotates keys

    def call() -> object:
        rotated = q.repeat(1, per_request, 1, 1, 1).flatten(0, 2)  # a copy, which is rotated in place
        rotations[shape.rope](rotated, unused_keys, distances, interleave=False)
        out, lse = wrapper.run(rotated, (pages.k, pages.v), return_lse=True)
        size = (shape.batch, per_request, shape.query_tokens, shape.heads[0])
        # [batch x query_tokens, documents, heads]
        states = [x.reshape(*size, -1).transpose(1, 2).flatten(0, 1).contiguous() for x in (out, lse)]
        merged, _ = flashinfer.merge_states(states[0], states[1].squeeze(-1))
        return merged

    return Captured(call)


def _distances(shape: Shape, memory: Memory) -> Any:
    """Returns [documents x query_tokens] int32: the distance of each query from the first token of each document."""
    distances = [
        first + i - base
        for first, bases in zip(shape.first_query, shape.bases, strict=True)
        for base in bases
        for i in range(shape.query_tokens)
    ]
    return ints(distances, memory)
