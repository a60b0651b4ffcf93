"""SmolLM2's attention with a document in any form: exact, compact, as states of queries, or absent.

The functions are plain PyTorch and independent of lazyrope's kernels and of its engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lazyrope.memory.scores import Scores, States
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from tools.rag.reference import attending_by

NAME = "lazyrope_memory"
# The attention of a layer's queries, [q_heads, tokens, d], over the document: states of shape [q_heads, tokens].
Over = Callable[[torch.Tensor], States]


@dataclass
class Document:
    """A document that the model has computed at positions from 0.

    Attributes:
        length: The number of its tokens.
        keys: Each layer's keys, rotated by their positions, [kv_heads, tokens, d].
        values: Each layer's values, of the same shape.
    """

    length: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


class _Call:
    """The attention of one layer of a pass. Tensors are [heads, tokens, d]."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def compute(model: Any, tokens: Sequence[int]) -> Document:
    """Computes a document alone."""
    document = Document(len(tokens), [], [])

    class Compute(_Call):
        def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            document.keys.append(k.clone())
            document.values.append(v.clone())
            return _sdpa(q, k, v, is_causal=True)

    _run(model, tokens, 0, Compute(), logits=False)
    return document


def queries_after(model: Any, tokens: Sequence[int], document: Document) -> list[torch.Tensor]:
    """Returns each layer's queries of tokens that follow the document, [tokens, q_heads, d], rotated."""
    found: list[torch.Tensor] = []

    class Record(_Call):
        def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            found.append(q.transpose(0, 1).clone())
            keys, values = (
                torch.cat([stored[layer], own], dim=1) for stored, own in ((document.keys, k), (document.values, v))
            )
            rows = []
            for begin in range(0, q.shape[1], 512):  # a causal mask of all rows would not be computed in blocks
                end = min(begin + 512, q.shape[1])
                seen = document.length + end
                mask = torch.ones((end - begin, seen), dtype=torch.bool, device=q.device).tril(document.length + begin)
                rows.append(_sdpa(q[:, begin:end], keys[:, :seen], values[:, :seen], attn_mask=mask))
            return torch.cat(rows, dim=1)

    _run(model, tokens, document.length, Record(), logits=False)
    return found


def logits_after(model: Any, tokens: Sequence[int], position: int, over: Sequence[Over] | None) -> torch.Tensor:
    """Returns the logits of tokens from a position on, float32 [tokens, vocabulary].

    Args:
        model: The model.
        tokens: The tokens.
        position: The position of the first token.
        over: For each layer, the attention over what comes before the tokens. None: nothing comes before.
    """

    class Read(_Call):
        def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            own = _own_states(q, k, v)
            return own.out if over is None else merged(own, over[layer](q)).out

    return _run(model, tokens, position, Read(), logits=True)


def merged(a: States, b: States) -> States:
    """Returns the attention over the keys of both states."""
    lse = torch.logaddexp(a.lse, b.lse)
    out = (a.lse - lse).exp()[..., None] * a.out + (b.lse - lse).exp()[..., None] * b.out
    return States(out, lse)


def states_over(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None) -> States:
    """Returns the attention of queries [q_heads, tokens, d] over keys and values [kv_heads, keys, d].

    bias is [kv_heads, keys].
    """
    group = q.shape[0] // k.shape[0]
    score = Scores(q.shape[-1] ** -0.5, None)(q, k.repeat_interleave(group, 0))
    if bias is not None:
        score = score + bias.repeat_interleave(group, 0)[:, None]
    lse = score.logsumexp(-1)
    return States(torch.exp(score - lse[..., None]) @ v.repeat_interleave(group, 0), lse)


def _own_states(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> States:
    group = q.shape[0] // k.shape[0]
    score = Scores(q.shape[-1] ** -0.5, None)(q, k.repeat_interleave(group, 0))
    later = torch.ones(score.shape[1:], dtype=torch.bool, device=score.device).triu(1)
    score = score.masked_fill(later, -torch.inf)
    lse = score.logsumexp(-1)
    return States(torch.exp(score - lse[..., None]) @ v.repeat_interleave(group, 0), lse)


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    group = q.shape[0] // k.shape[0]
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    return scaled_dot_product_attention(q[None], k[None], v[None], **options)[0]


def _run(model: Any, tokens: Sequence[int], position: int, call: _Call, *, logits: bool) -> torch.Tensor:
    ids = torch.tensor([list(tokens)], device=model.device)
    positions = torch.arange(len(tokens), device=model.device)[None] + position
    arguments = {"position_ids": positions, "use_cache": False, "memory_call": call}
    with attending_by(model, NAME), torch.no_grad():
        if logits:
            return model(input_ids=ids, **arguments).logits[0].float()
        return model.base_model(input_ids=ids, **arguments).last_hidden_state[0]


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    memory_call: _Call,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    out = memory_call.attend(module.layer_idx, query[0], key[0], value[0])
    return out.transpose(0, 1)[None].contiguous().to(query.dtype), None


AttentionInterface.register(NAME, _attention)
