"""The reference of recovery: transformers' own modules over every version of every token, with an explicit mask.

A token that is computed again, or that other tokens see at other positions, has a row for each version. A row has a
logical position, and the mask says which rows it sees. All rows run in one pass, so the states of each layer follow
from the mask alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from transformers import AttentionInterface

NAME = "recovery_mask_of_the_model"


@dataclass
class Rows:
    """The rows of one run.

    Attributes:
        tokens: The token id of each row.
        positions: The logical position of each row.
        sees: The ranges of rows that each row sees. It sees itself and earlier positions of them alone.
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sees: list[list[range]] = field(default_factory=list)

    def add(self, tokens: Sequence[int], position: int, before: Sequence[range]) -> range:
        """Adds rows at consecutive positions, which see the rows before and each other."""
        rows = range(len(self.tokens), len(self.tokens) + len(tokens))
        self.tokens += tokens
        self.positions += range(position, position + len(tokens))
        self.sees += [[*before, rows]] * len(tokens)
        return rows

    def visible(self, window: int | None) -> torch.Tensor:
        """Returns True where a row sees a column, [rows, rows]."""
        listed = torch.zeros(len(self.tokens), len(self.tokens), dtype=torch.bool)
        for row, ranges in enumerate(self.sees):
            for seen in ranges:
                listed[row, seen.start : seen.stop] = True
        distance = torch.tensor(self.positions)[:, None] - torch.tensor(self.positions)
        return listed & (distance >= 0) & (distance < (window or 1 << 30))


@dataclass(frozen=True)
class Expected:
    """The last hidden states of a request's rows, [tokens, hidden size] each.

    Attributes:
        documents: Those of the tokens of each document as it is stored.
        overlays: Those of the tokens of each document that are computed again, or None.
        prompt: Those of the prompt.
        mass: The prompt's attention to each token of each document as it is stored, summed over the prompt's tokens,
            query heads and layers: [tokens] each.
    """

    documents: list[torch.Tensor]
    overlays: list[torch.Tensor | None]
    prompt: torch.Tensor
    mass: list[torch.Tensor]


@dataclass(frozen=True)
class Places:
    """The rows of each text of a request.

    Attributes:
        documents: Those of each document as it is stored.
        overlays: Those of each document that are computed again, or None.
        prompt: Those of the prompt.
    """

    documents: list[range]
    overlays: list[range | None]
    prompt: range


def rows_of(
    prompt: Sequence[int],
    documents: Sequence[Sequence[int]],
    prefix: Sequence[int],
    overlay_tokens: int,
    again: Sequence[Sequence[int]] | None = None,
) -> tuple[Rows, Places]:
    """Returns the rows of a request whose documents are stored after a prefix and partly computed again.

    Args:
        prompt: The tokens of the prompt.
        documents: The tokens of each document.
        prefix: The tokens that each document has seen.
        overlay_tokens: The first tokens of each document but the first that are computed again.
        again: The indices of the tokens of each document that are computed again instead, in ascending order.
    """
    if again is None:
        again = [range(min(overlay_tokens, len(tokens)) if i else 0) for i, tokens in enumerate(documents)]
    rows = Rows()
    shown = [rows.add(prefix, 0, [])]  # the rows that the prompt sees so far
    position = len(prefix)
    stored, overlays = [], []
    for tokens, chosen in zip(documents, again, strict=True):
        # The document has seen the prefix just before itself, so it has a copy of the prefix there.
        copy = rows.add(prefix, position - len(prefix), [])
        stored.append(rows.add(tokens, position, [copy]))
        first = len(rows.tokens)
        for is_again, run in groupby(range(len(tokens)), key=set(chosen).__contains__):
            indices = list(run)
            own = slice(indices[0], indices[-1] + 1)
            shown = [*shown, rows.add(tokens[own], position + own.start, shown) if is_again else stored[-1][own]]
        overlays.append(range(first, len(rows.tokens)) if chosen else None)
        position += len(tokens)
    return rows, Places(stored, overlays, rows.add(prompt, position, shown))


_running: list[Rows] = []
_weights: list[torch.Tensor] = []  # the weights of each layer, [1, query heads, rows, rows]


def run(
    model: Any,
    prompt: Sequence[int],
    documents: Sequence[Sequence[int]],
    prefix: Sequence[int] = (),
    overlay_tokens: int = 0,
    again: Sequence[Sequence[int]] | None = None,
) -> Expected:
    """Returns the states of a request whose documents are stored after a prefix and partly computed again."""
    rows, places = rows_of(prompt, documents, prefix, overlay_tokens, again)
    hidden, attention = _hidden(model, rows, places.prompt)

    def of(some: range) -> torch.Tensor:
        return hidden[some.start : some.stop]

    overlays = [None if each is None else of(each) for each in places.overlays]
    mass = [attention[each.start : each.stop] for each in places.documents]
    return Expected([of(each) for each in places.documents], overlays, of(places.prompt), mass)


def _hidden(model: Any, rows: Rows, prompt: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the states of all rows, and the attention of the prompt's rows to each row."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    _running.append(rows)
    _weights.clear()
    try:
        with torch.no_grad():
            ids, positions = (torch.tensor([x], device=model.device) for x in (rows.tokens, rows.positions))
            result = model.base_model(input_ids=ids, position_ids=positions, use_cache=False)
    finally:
        _running.clear()
        model.config._attn_implementation = before
    attention = sum(each[0, :, prompt.start : prompt.stop].float().sum((0, 1)) for each in _weights)
    assert isinstance(attention, torch.Tensor)
    return result.last_hidden_state[0], attention.cpu()


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: object, **named: Any
) -> tuple[torch.Tensor, None]:
    assert attention_mask is None, "transformers makes no mask for an attention that it does not know"
    [rows] = _running
    visible = rows.visible(named.get("sliding_window")).to(query.device)
    mask = torch.zeros(visible.shape, dtype=query.dtype, device=query.device)
    mask = mask.masked_fill(~visible, torch.finfo(query.dtype).min)[None, None]
    eager = sys.modules[type(module).__module__].eager_attention_forward
    out, weights = eager(module, query, key, value, mask, **named)
    _weights.append(weights)
    return out, None


AttentionInterface.register(NAME, _attention)
