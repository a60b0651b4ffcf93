"""The attention function that models of transformers call during a pass of the engine.

It is registered in the AttentionInterface of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from transformers import AttentionInterface

Tensor = Any
NAME = "lazyrope"


class Layers(Protocol):
    """The attention of one pass, which every layer calls."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Stores k and v, and returns the attention of q.

        Args:
            layer: The layer's number, from 0.
            q: Queries, [tokens, num_q_heads, head_dim], rotated.
            k: New keys, [tokens, num_kv_heads, head_dim], rotated.
            v: New values, of the same shape as k.

        Returns:
            The output, a tensor of the shape of q.
        """


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    lazyrope_pass: Layers | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Calls the pass's attention for one layer of a model.

    query, key and value are [1, heads, tokens, head_dim]; query and key are rotated by the tokens' positions.
    """
    if lazyrope_pass is None:
        raise RuntimeError(
            "the model was called while an engine of lazyrope.transformers runs a pass of it in another thread: call "
            "it between passes"
        )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return lazyrope_pass.attend(module.layer_idx, q, k, v)[None], None


AttentionInterface.register(NAME, _attention)


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Makes the model attend with lazyrope for the duration of the with statement.

    Only one thread at a time may do so, for the choice of the attention is a setting of the model.
    """
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
