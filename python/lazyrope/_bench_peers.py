"""What ``lazyrope bench`` measures its attention beside. Peers know no documents and no lazy RoPE: they read keys that
are rotated already, contiguous or in shuffled pages of the row's size.

What plans a call, as a host's code would once a step, is done before anything is timed.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ._bench_shapes import Shape
from ._bench_timer import Call, Memory


class NotForThisRow(Exception):
    """The peer has no such attention."""


@dataclass(frozen=True)
class Peer:
    make: Callable[[Shape, Memory], Call]  # of a call that returns [batch, ...]
    module: str = "torch"
    paged: bool = False  # reads pages of the row's size


def _dtype(shape: Shape) -> Any:
    import torch

    return getattr(torch, shape.dtype)


def _require_16_bits(shape: Shape) -> None:
    if shape.kv_dtype != shape.dtype:
        raise NotForThisRow(f"has no {shape.kv_dtype} keys for {shape.dtype} queries")


def _of_torch(backend: str) -> Callable[[Shape, Memory], Call]:
    """PyTorch's scaled_dot_product_attention, contiguous."""

    def make(shape: Shape, memory: Memory) -> Call:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        _require_16_bits(shape)
        if shape.first_context:
            raise NotForThisRow("has no requests of different lengths")
        q_shape = (shape.batch, shape.heads[0], shape.query_tokens, shape.head_dim)
        q = torch.randn(q_shape, dtype=_dtype(shape), device=memory.device)
        kv_shape = (shape.batch, shape.heads[1], shape.context, shape.head_dim)
        k, v = memory.keys_and_values(kv_shape, shape.dtype)

        def call() -> object:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        return call

    return make


def block_table(shape: Shape, device: str) -> tuple[Any, int]:
    """[batch, pages of the longest request] int32, each request's pages first; and how many pages there are."""
    import torch

    counts = [math.ceil(context / shape.page_size) for context in shape.contexts]
    pages = torch.randperm(sum(counts)).to(torch.int32)
    table = torch.zeros((shape.batch, max(counts)), dtype=torch.int32)
    for row, own in zip(table, pages.split(counts), strict=True):
        row[: len(own)] = own
    return table.to(device), sum(counts)


def paged_keys_and_values(shape: Shape, memory: Memory, num_pages: int) -> tuple[Any, Any]:
    """[pages, page_size, kv_heads, head_dim] each."""
    return memory.keys_and_values((num_pages, shape.page_size, shape.heads[1], shape.head_dim), shape.kv_dtype)


def _cudnn_paged(shape: Shape, memory: Memory) -> Call:
    """cuDNN through its Python frontend."""
    import cudnn
    import torch

    _require_16_bits(shape)
    kinds = {"bfloat16": cudnn.data_type.BFLOAT16, "float16": cudnn.data_type.HALF}
    device, single = memory.device, cudnn.data_type.FLOAT
    table, num_pages = block_table(shape, device)
    k, v = paged_keys_and_values(shape, memory, num_pages)
    q_shape = (shape.batch, shape.heads[0], shape.query_tokens, shape.head_dim)

    def lengths(of_requests: list[int]) -> Any:
        return torch.tensor(of_requests, dtype=torch.int32, device=device).view(-1, 1, 1, 1)

    given = {
        "q": torch.randn(q_shape, dtype=_dtype(shape), device=device),
        "k": k.transpose(1, 2),
        "v": v.transpose(1, 2),
        "seq_len_q": lengths([shape.query_tokens] * shape.batch),
        "seq_len_kv": lengths(shape.contexts),
        "paged_attention_k_table": table[:, None, :, None],
        "paged_attention_v_table": table[:, None, :, None],
    }
    graph = cudnn.pygraph(io_data_type=kinds[shape.dtype], intermediate_data_type=single, compute_data_type=single)
    inputs = {name: graph.tensor_like(tensor) for name, tensor in given.items()}
    result, _ = graph.sdpa(
        **inputs,
        attn_scale=shape.head_dim**-0.5,
        generate_stats=False,
        use_padding_mask=True,
        paged_attention_max_seq_len_kv=max(shape.contexts),
    )
    out = torch.empty_like(given["q"])
    result.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride()))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=device)
    tensors = {inputs[name]: tensor for name, tensor in given.items()} | {result: out}

    def call() -> object:
        graph.execute(tensors, workspace)
        return out

    return call


PEERS = {
    "cudnn": Peer(_of_torch("CUDNN_ATTENTION")),
    "flash_attention_2": Peer(_of_torch("FLASH_ATTENTION")),
    "cudnn_paged": Peer(_cudnn_paged, module="cudnn", paged=True),
}
PAGED = frozenset(name for name, peer in PEERS.items() if peer.paged)


def importable(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the peers whose packages are there; says which are not."""
    found = []
    for name in names:
        if importlib.util.find_spec(PEERS[name].module) is None:
            print(f"{name} is left out: there is no Python package {PEERS[name].module}", file=sys.stderr)
        else:
            found.append(name)
    return tuple(found)


def peer_calls(shape: Shape, memory: Memory, allowed: Iterable[str]) -> dict[str, Call]:
    """The row's peers that are allowed and can do it."""
    calls = {}
    for name in shape.peers:
        if name in allowed and (call := _working(name, shape, memory)):
            calls[name] = call
    return calls


def _working(name: str, shape: Shape, memory: Memory) -> Call | None:
    """None, and a line about it, where a peer refuses the row: each has errors of its own for that."""
    try:
        call = PEERS[name].make(shape, memory)
        call()
    except Exception as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        print(f"  {name} is left out: {text[0]}", file=sys.stderr)
        return None
    return call
