"""The attention function that models of transformers call during a pass of the engine.

It is registered in the AttentionInterface of transformers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from transformers import AttentionInterface

Tensor = Any
NAME = "lazyrope"
UNKNOWN = "unknown"


class LayersDone(Exception):
    """Ends a call of the model in the last layer that the pass needs. :meth:`Layers.attend` raises it."""


@dataclass(frozen=True)
class AttentionCall:
    """A call of a layer's attention has these arguments beside queries, keys and values.

    Attributes:
        scale: The factor of the scores before softmax.
        softcap: The bound of the scores, or None.
        window: The tokens of the sliding window, None, or UNKNOWN for layers whose window is in their mask alone.
        sinks: A logit of each query head, [num_q_heads], of any floating dtype, or None.
        num_q_heads: The number of query heads.
        head_dim: The columns of a head.
    """

    scale: float
    softcap: float | None
    window: int | str | None
    sinks: Tensor | None
    num_q_heads: int
    head_dim: int


class Layers(Protocol):
    """The attention of one pass, which every layer calls."""

    def attend(self, layer: int, call: AttentionCall, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Stores k and v, and returns the attention of q.

        Args:
            layer: The layer's number, from 0.
            call: The other arguments of the layer.
            q: Queries, [tokens, num_q_heads, head_dim], rotated.
            k: New keys, [tokens, num_kv_heads, head_dim], rotated.
            v: New values, of the same shape as k.

        Returns:
            The output, a tensor of the shape of q.

        Raises:
            LayersDone: The pass needs neither this output nor a later layer.
        """


class _Running(threading.local):
    """The pass that a thread runs. It is no argument of the model, for not all models hand arguments on.

    Attributes:
        layers: The attention of the pass, or None.
        next_layer: The layer that comes next.
    """

    layers: Layers | None = None
    next_layer: int = 0


_running = _Running()


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | str | None = UNKNOWN,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Calls the pass's attention for one layer of a model.

    query, key and value are [1, heads, tokens, head_dim]. The model has rotated query and key by the tokens'
    positions, in layers with RoPE. transformers makes no mask for attention functions that it does not know.
    """
    layers = _running.layers
    if layers is None or module.layer_idx != _running.next_layer:
        raise RuntimeError(
            "the model was called while an engine of lazyrope.transformers runs a pass of it, in another thread or "
            "inside the pass: call it between passes"
        )
    _running.next_layer += 1
    if attention_mask is not None:
        raise RuntimeError(
            f"{type(module).__name__} gives a mask of {list(attention_mask.shape)} to its attention; in a pass of the "
            "engine, positions and documents alone say what a token sees"
        )
    heads, head_dim = query.shape[1], query.shape[3]
    scale = float(scaling) if scaling is not None else head_dim**-0.5
    call = AttentionCall(scale, softcap, sliding_window, s_aux, heads, head_dim)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return layers.attend(module.layer_idx, call, q, k, v)[None], None


AttentionInterface.register(NAME, _attention)


@contextmanager
def attending(model: Any, layers: Layers) -> Iterator[None]:
    """Makes the model attend with lazyrope in this thread for the duration of the with statement.

    Only one thread at a time may do so, for the choice of the attention is a setting of the model.
    """
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    _running.layers, _running.next_layer = layers, 0
    try:
        yield
    finally:
        _running.layers = None
        config._attn_implementation = before
