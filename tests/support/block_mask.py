"""The reference of the engine: transformers' own modules, masks and eager attention, under the block mask.

A token of a document sees its own document alone. A token of the prompt sees all documents and itself. The masks of
transformers hide what is outside of a layer's sliding window, by logical position.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

NAME = "block_mask_of_the_model"
# Changes a layer's keys and values as a pool would: stored(layer, keys, values, bases), with keys and values
# [1, heads, tokens, head_dim] and the base of each token's document. It returns the keys that documents see, the keys
# that the prompt sees, and the values.
Stored = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


@dataclass
class Blocks:
    """The tokens of one run.

    Attributes:
        block: The index of each token's document; the prompt comes after the last document.
        num_documents: The number of documents.
        bases: The base of each token's document.
        stored: As in :func:`run`.
    """

    block: torch.Tensor
    num_documents: int
    bases: torch.Tensor
    stored: Stored | None


_running: list[Blocks] = []  # not all models hand unknown arguments on to their attention


def run(
    model: Any, prompt: Sequence[int], documents: Sequence[Sequence[int]], stored: Stored | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the last hidden states, [tokens, hidden size], and the logits, [tokens, vocabulary size], of all tokens.

    Documents come first, then the prompt.
    """
    texts = [*documents, prompt]
    ids = torch.tensor([[token for text in texts for token in text]], device=model.device)
    lengths = torch.tensor([len(text) for text in texts], device=model.device)
    starts = torch.tensor([0, *accumulate(len(text) for text in texts)], device=model.device)[:-1]
    block = torch.repeat_interleave(torch.arange(len(texts), device=model.device), lengths)
    # The prompt's own keys are stored rotated by their logical positions.
    bases = torch.where(block < len(documents), starts[block], 0)
    hidden: list[torch.Tensor] = []
    handle = model.base_model.register_forward_hook(lambda *call: hidden.append(call[-1].last_hidden_state[0]))
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    _running.append(Blocks(block, len(documents), bases, stored))
    try:
        with torch.no_grad():
            positions = torch.arange(ids.shape[1], device=model.device)[None]
            result = model(input_ids=ids, position_ids=positions, use_cache=False)
    finally:
        _running.clear()
        handle.remove()
        model.config._attn_implementation = before
    return hidden[0], result.logits[0]


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    [blocks] = _running
    seen_by_prompt = key
    if blocks.stored is not None:
        key, seen_by_prompt, value = blocks.stored(module.layer_idx, key, value, blocks.bases)
    mask = attention_mask.masked_fill(~_visible(blocks), torch.finfo(query.dtype).min)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    of_documents, of_prompt = (eager(module, query, keys, value, mask, **named)[0] for keys in (key, seen_by_prompt))
    is_prompt = blocks.block == blocks.num_documents
    return torch.where(is_prompt[None, :, None, None], of_prompt, of_documents), None


def _visible(blocks: Blocks) -> torch.Tensor:
    """Returns True where the block mask lets a query (row) see a key (column)."""
    block = blocks.block
    return (block[:, None] == block[None]) | (block[:, None] == blocks.num_documents)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
