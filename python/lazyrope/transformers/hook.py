"""The attention function that transformers' models call during a pass of the engine, by transformers' own registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from transformers import AttentionInterface

Tensor = Any
NAME = "lazyrope"


class Layers(Protocol):
    """What a pass does in each layer."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Stores k and v, both [tokens, num_kv_heads, head_dim], and returns the attention of q, [tokens, num_q_heads,
        head_dim], as a tensor of q's shape."""


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    lazyrope_pass: Layers | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query, key and value: [1, heads, tokens, head_dim], rotated to the tokens' positions."""
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
    """The model attends by lazyrope in here, and as before afterwards. In one thread at a time: which attention it uses
    is a setting of the model's."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
