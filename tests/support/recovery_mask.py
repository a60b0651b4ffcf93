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


@dataclass(frozen=True)
class Apart:
    """Rows that attend to a group of rows apart, with another temperature (APE, arXiv 2502.05431).

    Attributes:
        queries: The rows whose attention is divided.
        keys: The rows of the group.
        temperature: The number by which scores with the group are divided before the softcap.
        lse_scale: The factor of their log-sum-exp.
    """

    queries: range
    keys: list[range]
    temperature: float
    lse_scale: float


@dataclass
class Rows:
    """The rows of one run.

    Attributes:
        tokens: The token id of each row.
        positions: The logical position of each row.
        sees: The ranges of rows that each row sees. It sees itself and earlier positions of them alone.
        apart: The attention of some rows to others apart from all else, or None.
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sees: list[list[range]] = field(default_factory=list)
    apart: Apart | None = None

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
    ape: tuple[float, float] | None = None,
) -> Expected:
    """Returns the states of a request whose documents are stored after a prefix and partly computed again.

    The prompt attends to the documents apart if ``ape`` gives a temperature and a scale of the log-sum-exp.
    """
    rows, places = rows_of(prompt, documents, prefix, overlay_tokens, again)
    if ape is not None:
        rows.apart = Apart(places.prompt, places.documents, *ape)
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
    if rows.apart is not None:
        queries = slice(rows.apart.queries.start, rows.apart.queries.stop)
        out[:, queries] = _divided(rows.apart, query[:, :, queries], key, value, visible[queries], **named).to(
            out.dtype
        )
    return out, None


def _divided(
    apart: Apart,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    *,
    scaling: float,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """Returns attention with one softmax over the group's keys, and one over all others and the sink, in fp32.

    Their weights beside each other are exp(lse_scale * lse) and exp(lse). The result is [1, rows, heads, head_dim].
    """
    heads, count = query.shape[1], query.shape[2]
    key, value = (x[0].repeat_interleave(heads // x.shape[1], dim=0).float() for x in (key, value))
    is_group = torch.zeros(key.shape[1], dtype=torch.bool, device=query.device)
    for keys in apart.keys:
        is_group[keys.start : keys.stop] = True
    scores = query[0].float() @ key.transpose(1, 2) * scaling
    scores = torch.where(is_group, scores / apart.temperature, scores)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible, -torch.inf)
    of_group = scores[..., is_group]
    lse = of_group.logsumexp(-1, keepdim=True).clamp_min(-1e30)
    scores[..., is_group] = of_group - lse + apart.lse_scale * lse
    sinks = scores.new_empty(heads, count, 0) if s_aux is None else s_aux.float()[:, None, None].expand(-1, count, 1)
    weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., : key.shape[1]]
    return (weights @ value).transpose(0, 1)[None]


AttentionInterface.register(NAME, _attention)
