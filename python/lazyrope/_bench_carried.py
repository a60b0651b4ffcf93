"""FlashInfer and FlashAttention-4 as peers of ``lazyrope bench``, where these packages are installed.

FlashInfer compiles its kernels with nvcc when they are first called.
"""

from __future__ import annotations

import gc
from itertools import accumulate
from typing import Any

from ._bench_kv import NotForThisRow, Pages, ints, queries, require_16_bits
from ._bench_shapes import Shape
from ._bench_timer import Call, Memory

WORKSPACE = 512 << 20  # bytes; more than FlashInfer recommends, for rows of thousands of documents


def captured(call: Call) -> Call:
    """The same as one CUDA graph."""
    import torch

    for _ in range(3):
        call()
    gc.collect()  # a graph that is destroyed meanwhile breaks the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> object:
        graph.replay()
        return result

    return replay


def _workspace(memory: Memory) -> Any:
    import torch

    return torch.zeros(WORKSPACE, dtype=torch.uint8, device=memory.device)


def _planned(pages: Pages, shape: Shape, memory: Memory) -> Any:
    """FlashInfer's fa2 over the runs of `pages`, each with the row's query tokens."""
    import flashinfer
    import torch

    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(memory), "NHD", use_tensor_cores=True, backend="fa2"
    )
    wrapper.plan(
        pages.indptr,
        pages.indices,
        pages.last,
        *shape.heads,
        shape.head_dim,
        shape.page_size,
        q_data_type=getattr(torch, shape.dtype),
        kv_data_type=getattr(torch, shape.kv_dtype),
        q_len_per_req=shape.query_tokens,
    )
    return wrapper


def flashinfer_fa2(shape: Shape, memory: Memory) -> Call:
    pages = Pages(shape.contexts, shape, memory)
    wrapper = _planned(pages, shape, memory)
    q = queries(shape, memory, shape.batch * shape.query_tokens, shape.heads[0], shape.head_dim)
    return captured(lambda: wrapper.run(q, (pages.k, pages.v)))


def flashinfer_xqa(shape: Shape, memory: Memory) -> Call:
    import flashinfer
    import torch

    if shape.query_tokens > 1:
        raise NotForThisRow("is measured with one query token")
    pages = Pages(shape.contexts, shape, memory)
    q = queries(shape, memory, shape.batch, shape.heads[0], shape.head_dim)
    workspace, lengths = _workspace(memory), pages.lengths.view(torch.uint32)
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

    def call() -> object:
        result = flash_attn_varlen_func(q, pages.k, pages.v, **options)
        return result[0] if isinstance(result, tuple) else result

    return call


def lazy_on_flashinfer(shape: Shape, memory: Memory) -> Call:
    """What lazyrope does, built from FlashInfer: a request of its own for each document, queries copied and turned for
    it, and the results merged by their LSE."""
    import flashinfer
    import torch

    requests = shape.documents
    per_request = len(requests[0])
    if shape.query_tokens > 1 or any(len(documents) != per_request for documents in requests):
        raise NotForThisRow("is built for one query token, and as many documents in each request")
    turns = {
        "llama3": flashinfer.apply_llama31_rope_pos_ids_inplace,
        "neox": flashinfer.apply_rope_pos_ids_inplace,
    }
    if shape.rope not in turns:
        raise NotForThisRow(f"is built for {' and '.join(turns)} RoPE")
    pages = Pages([length for documents in requests for length in documents], shape, memory)
    wrapper = _planned(pages, shape, memory)
    q = queries(shape, memory, shape.batch, shape.heads[0], shape.head_dim)
    owner = torch.arange(shape.batch, device=memory.device).repeat_interleave(per_request)
    distances = _distances(shape, memory)
    unused_keys = queries(shape, memory, len(distances), 1, shape.head_dim)  # it turns keys as well

    def call() -> object:
        turned = q.index_select(0, owner)
        turns[shape.rope](turned, unused_keys, distances, interleave=False)
        out, lse = wrapper.run(turned, (pages.k, pages.v), return_lse=True)
        size = (shape.batch, per_request, shape.heads[0])
        merged, _ = flashinfer.merge_states(out.view(*size, shape.head_dim), lse.view(size))
        return merged

    return captured(call)


def _distances(shape: Shape, memory: Memory) -> Any:
    """What each request's query is turned by: how far it is from each document's first token. [documents] int32."""
    distances = [
        query - base
        for query, documents in zip(shape.first_query, shape.documents, strict=True)
        for base in accumulate(documents[:-1], initial=0)
    ]
    return ints(distances, memory)
