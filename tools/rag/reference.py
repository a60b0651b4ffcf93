"""The reference of lazy attention: transformers' own eager attention under the block mask.

Every document is recomputed at its position in the context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.models.llama.modeling_llama import eager_attention_forward

NAME = "block_mask_eager"
# Query rows at a time. The mask and the scores of all rows of a prompt over 128k tokens would not fit.
ROWS = 256


@contextmanager
def attending_by(model: Any, name: str) -> Iterator[None]:
    """Makes the model attend by a function that transformers knows by this name, within the with statement."""
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before


def hidden_states(model: Any, prompt: Sequence[int], documents: Sequence[Sequence[int]]) -> torch.Tensor:
    """Returns the last hidden states [tokens, hidden size] of all documents and then the prompt, in the model's dtype.

    A token of a document sees that document up to itself. A token of the prompt sees everything before it.
    """
    ids = torch.tensor([[t for text in (*documents, prompt) for t in text]], device=model.device)
    ends = list(accumulate((len(text) for text in (*documents, prompt)), initial=0))
    with attending_by(model, NAME), torch.no_grad():
        result = model.base_model(
            input_ids=ids,
            position_ids=torch.arange(ids.shape[1], device=model.device)[None],
            use_cache=False,
            block_ends=ends,
        )
    return result.last_hidden_state[0]


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float,
    block_ends: list[int],
    **_: Any,
) -> tuple[torch.Tensor, None]:
    out = []
    for rows, keys in _blocks(block_ends):
        mask = torch.zeros((rows.stop - rows.start, keys.stop - keys.start), dtype=query.dtype, device=query.device)
        position = torch.arange(keys.start, keys.stop, device=query.device)
        mask.masked_fill_(position > torch.arange(rows.start, rows.stop, device=query.device)[:, None], -torch.inf)
        part, _weights = eager_attention_forward(
            module, query[:, :, rows], key[:, :, keys], value[:, :, keys], mask[None, None], scaling
        )
        out.append(part)
    return torch.cat(out, dim=1), None


def _blocks(ends: list[int]) -> Iterator[tuple[slice, slice]]:
    """Yields slices of query rows, each with the slice of keys that they may see up to their own position."""
    for begin, end in pairwise(ends):
        first_key = 0 if end == ends[-1] else begin
        for row in range(begin, end, ROWS):
            last = min(row + ROWS, end)
            yield slice(row, last), slice(first_key, last)


AttentionInterface.register(NAME, _attention)
