"""What ``lazyrope bench`` measures its attention beside. Peers know no documents and no lazy RoPE, but for one that is
built from another's parts: they read keys that are rotated already, contiguous or in shuffled pages of the row's size.

What plans a call, as a host's code would once a step, is done before anything is timed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from . import package_peers
from .kv import Pages, UnsupportedShape, ints, queries, require_16_bits
from .shapes import Shape
from .timer import Call, Memory


@dataclass(frozen=True)
class Peer:
    make: Callable[[Shape, Memory], Call]  # of a call that returns [batch, ...]
    package: str = "torch"
    paged: bool = False  # reads pages of the row's size


def masks_as_a_square(shape: Shape) -> bool:
    """Whether PyTorch is to mask: it can where all keys have a query. Few queries hide hardly any, and may see all."""
    hidden = shape.query_tokens / (2 * shape.context) if shape.mask == "causal" else 0.0
    if hidden > 0.01 and shape.query_tokens != shape.context:
        raise UnsupportedShape("masks as if the queries were the context's first tokens")
    return hidden > 0.01


def _of_torch(backend: str) -> Callable[[Shape, Memory], Call]:
    """PyTorch's scaled_dot_product_attention, contiguous."""

    def make(shape: Shape, memory: Memory) -> Call:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        require_16_bits(shape)
        if shape.first_context:
            raise UnsupportedShape("has no requests of different lengths")
        q = queries(shape, memory, shape.batch, shape.heads[0], shape.query_tokens, shape.head_dim)
        kv_shape = (shape.batch, shape.heads[1], shape.context, shape.head_dim)
        k, v = memory.keys_and_values(kv_shape, shape.dtype)
        is_causal = masks_as_a_square(shape)

        def call() -> object:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)

        return call

    return make


def _cudnn_paged(shape: Shape, memory: Memory) -> Call:
    """cuDNN through its Python frontend."""
    import cudnn
    import torch

    require_16_bits(shape)
    kind = {"bfloat16": cudnn.data_type.BFLOAT16, "float16": cudnn.data_type.HALF}[shape.dtype]
    single = cudnn.data_type.FLOAT
    pages = Pages(shape.contexts, shape, memory)
    table = pages.table[:, None, :, None]
    given = {
        "q": queries(shape, memory, shape.batch, shape.heads[0], shape.query_tokens, shape.head_dim),
        "k": pages.k.transpose(1, 2),
        "v": pages.v.transpose(1, 2),
        "seq_len_q": ints([shape.query_tokens] * shape.batch, memory).view(-1, 1, 1, 1),
        "seq_len_kv": pages.lengths.view(-1, 1, 1, 1),
        "paged_attention_k_table": table,
        "paged_attention_v_table": table,
    }
    graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=single, compute_data_type=single)
    inputs = {name: graph.tensor_like(tensor) for name, tensor in given.items()}
    result, _ = graph.sdpa(
        **inputs,
        attn_scale=shape.head_dim**-0.5,
        generate_stats=False,
        use_padding_mask=True,
        use_causal_mask_bottom_right=shape.mask == "causal",
        paged_attention_max_seq_len_kv=max(shape.contexts),
    )
    out = torch.empty_like(given["q"])
    result.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride()))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=memory.device)
    tensors: dict[Any, Any] = {inputs[name]: tensor for name, tensor in given.items()} | {result: out}

    def call() -> object:
        graph.execute(tensors, workspace)
        return out

    return call


PEERS = {
    "cudnn": Peer(_of_torch("CUDNN_ATTENTION")),
    "flash_attention_2": Peer(_of_torch("FLASH_ATTENTION")),
    "cudnn_paged": Peer(_cudnn_paged, "cudnn", paged=True),
    "flashinfer_fa2": Peer(package_peers.flashinfer_fa2, "flashinfer", paged=True),
    "flashinfer_fa3": Peer(package_peers.flashinfer_fa3, "flashinfer", paged=True),
    "flashinfer_contiguous": Peer(package_peers.flashinfer_contiguous, "flashinfer"),
    "flashinfer_xqa": Peer(package_peers.flashinfer_xqa, "flashinfer", paged=True),
    "flash_attention_4": Peer(package_peers.flash_attention_4, "flash_attn.cute", paged=True),
    "flash_attention_4_contiguous": Peer(package_peers.flash_attention_4_contiguous, "flash_attn.cute"),
    "lazy_on_flashinfer": Peer(package_peers.lazy_on_flashinfer, "flashinfer", paged=True),
}
PAGED = frozenset(name for name, peer in PEERS.items() if peer.paged)


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # not even what it is part of
        return False


def importable(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the peers whose packages are there; says which are not."""
    found = []
    for name in names:
        if _is_there(PEERS[name].package):
            found.append(name)
        else:
            print(f"{name} is left out: there is no Python package {PEERS[name].package}", file=sys.stderr)
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
