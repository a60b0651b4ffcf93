"""Other libraries' attention for requests that share a prefix: FlashInfer's cascade and vLLM's FlashAttention-3.

Both share one prefix that all requests have at the same positions, in keys that were rotated for them. The rows of
these peers have nothing but that prefix, so neither library merges it with tokens of a request's own.
"""

from __future__ import annotations

from typing import Any

from lazyrope.bench.peers import UnsupportedShape, queries, require_16_bits
from lazyrope.bench.timer import Call, Memory

from tools.bench import package_peers
from tools.bench.fa3_peer import paged_call
from tools.bench.kv import Pages, ints
from tools.bench.shapes import Shape

PREFIX_PEERS = ("flashinfer_cascade", "vllm_flash_attention_3")


def require_one_prefix(shape: Shape) -> None:
    """Refuses rows whose requests do not all have the same documents in the same order."""
    each = len(shape.documents[0])
    ids = shape.document_ids
    if shape.mask == "causal" or len(ids) != shape.batch * each or ids != ids[:each] * shape.batch:
        raise UnsupportedShape("shares only a prefix that all requests have at the same positions")


def _query_tokens(shape: Shape, memory: Memory) -> Any:
    """Returns [requests x query tokens, heads, head_dim]."""
    return queries(shape, memory, sum(shape.tokens), shape.heads[0], shape.head_dim)


def flashinfer_cascade(shape: Shape, memory: Memory) -> Call:
    """The multi-level cascade with one level: all query tokens attend to the pages of the prefix."""
    import flashinfer
    import torch

    require_one_prefix(shape)
    pages = Pages(shape.contexts[:1], shape, memory)
    q = _query_tokens(shape, memory)
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(1, package_peers.new_workspace(memory), "NHD")
    wrapper.plan(
        [ints([0, len(q)], memory)],
        [pages.indptr],
        [pages.indices],
        [pages.last],
        *shape.heads,
        shape.head_dim,
        shape.page_size,
        q_data_type=getattr(torch, shape.dtype),
        kv_data_type=getattr(torch, shape.kv_dtype),
    )
    return package_peers.Captured(lambda: wrapper.run(q, (pages.k, pages.v)))


def vllm_flash_attention_3(shape: Shape, memory: Memory) -> Call:
    """The kernel call that vLLM 0.26.0 makes for the common prefix of a step's requests.

    All query tokens are one sequence over the block table of the prefix, without a mask.
    """
    require_16_bits(shape)
    require_one_prefix(shape)
    pages = Pages(shape.contexts[:1], shape, memory)
    q = _query_tokens(shape, memory)
    return paged_call(shape, memory, q, [len(q)], pages)
