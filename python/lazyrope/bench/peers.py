"""PyTorch's attention, which ``lazyrope bench`` measures beside lazyrope's.

These peers know no documents. They read contiguous keys that were rotated beforehand, and that work is not timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from .shapes import Shape
from .timer import Call, Memory

# A peer returns the call that is timed. Before that, it does the work that an engine does once a step, which is not
# timed. The call returns [batch, ...].
Peer = Callable[[Shape, Memory], Call]


class UnsupportedShape(Exception):
    """The peer has no such attention."""


def require_16_bits(shape: Shape) -> None:
    if shape.kv_dtype != shape.dtype:
        raise UnsupportedShape(f"has no {shape.kv_dtype} keys for {shape.dtype} queries")


def require_equal_requests(shape: Shape) -> None:
    if len({*zip(shape.contexts, shape.tokens, strict=True)}) > 1:
        raise UnsupportedShape("has no requests of different lengths")


def queries(shape: Shape, memory: Memory, *size: int) -> Any:
    import torch

    return torch.randn(size, dtype=getattr(torch, shape.dtype), device=memory.device)


def is_causal_square(shape: Shape) -> bool:
    """Returns True if the shape needs PyTorch's causal mask, which is right only if every key has a query.

    A few queries at the end of a long context see nearly all keys, so they may see all of them.

    Raises:
        UnsupportedShape: The mask is needed, but there are fewer queries than keys.
    """
    hidden = shape.query_tokens / (2 * shape.context) if shape.mask == "causal" else 0.0
    if hidden > 0.01 and shape.query_tokens != shape.context:
        raise UnsupportedShape("masks as if the queries were the context's first tokens")
    return hidden > 0.01


def _sdpa(backend: str) -> Peer:
    """Returns PyTorch's scaled_dot_product_attention with one backend."""

    def make(shape: Shape, memory: Memory) -> Call:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        require_16_bits(shape)
        require_equal_requests(shape)
        q = queries(shape, memory, shape.batch, shape.heads[0], shape.query_tokens, shape.head_dim)
        kv_shape = (shape.batch, shape.heads[1], shape.context, shape.head_dim)
        k, v = memory.keys_and_values(kv_shape, shape.dtype)
        is_causal = is_causal_square(shape)

        def call() -> object:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)

        return call

    return make


PEERS: dict[str, Peer] = {
    "cudnn": _sdpa("CUDNN_ATTENTION"),
    "flash_attention_2": _sdpa("FLASH_ATTENTION"),
}


def peer_calls(shape: Shape, memory: Memory, peers: Mapping[str, Peer]) -> dict[str, Call]:
    """Returns the calls of the shape's peers that are among `peers` and support the shape."""
    calls = {}
    for name in shape.peers:
        if name in peers and (call := _working(name, peers[name], shape, memory)):
            calls[name] = call
    return calls


def _working(name: str, peer: Peer, shape: Shape, memory: Memory) -> Call | None:
    """Makes a call and tries it. Returns None, and prints why, if the peer refuses the shape.

    Each library has exceptions of its own for this, so all exceptions count as a refusal.
    """
    try:
        call = peer(shape, memory)
        call()
    except Exception as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        print(f"  {name} is left out: {text[0]}", file=sys.stderr)
        return None
    return call
