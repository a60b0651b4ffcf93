"""A slow reference of every level of recovery: a model of transformers whose attention is replaced by explicit masks.

``store()`` computes documents alone, as a store of documents does. ``read()`` runs a prompt over them, and computes any
of their tokens again: these see everything before them at its final position, and the prompt sees them instead of the
stored ones. Levels differ in the tokens that they compute again (tools/quality/levels.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.models.llama.modeling_llama import repeat_kv, rotate_half

from tools.rag.reference import attending_by

NAME = "lazyrope_quality"


@dataclass(frozen=True)
class Temperature:
    """APE (arXiv 2502.05431): the temperature of scores with documents, and the factor of their log sum."""

    temperature: float
    scale: float


@dataclass
class Stored:
    """Documents as a store has them. Tokens are numbered over the prefix and then all documents.

    ``keys`` and ``values`` have a tensor [1, kv_heads, tokens, head_dim] for each layer. Keys are rotated by the
    position at which they were computed, ``positions``; ``final`` is their position in the request.
    """

    ids: list[int]
    ends: list[int]  # where the prefix and each document end
    behind_prefix: bool
    positions: torch.Tensor
    final: torch.Tensor
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)

    @property
    def prefix(self) -> int:
        return self.ends[0]

    def documents(self) -> list[range]:
        """Returns the tokens of each document."""
        return [range(begin, end) for begin, end in zip(self.ends, self.ends[1:], strict=False)]


@dataclass
class Answer:
    """The logits of a prompt over documents, [prompt tokens, vocabulary], and each stored token's mass by layers.

    The mass is the attention of the prompt's tokens, summed over them and over heads: [layers, tokens].
    """

    logits: torch.Tensor
    layer_mass: torch.Tensor

    def mass(self, layers: int | None = None) -> torch.Tensor:
        """Returns each stored token's mass, [tokens], summed over the first ``layers`` layers or over all."""
        return self.layer_mass[:layers].sum(0)


class Reference:
    """Computes documents and prompts with a model of the Llama family."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = model.device

    def full(self, ids: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Returns the logits of an ordinary prefill, and the values of each layer."""
        call = _Full()
        return self._run(ids, torch.arange(len(ids)), call), call.values

    def store(self, prefix: Sequence[int], documents: Sequence[Sequence[int]], *, behind_prefix: bool) -> Stored:
        """Computes the prefix alone, and each document alone or behind the prefix."""
        ends = list(accumulate(map(len, documents), initial=len(prefix)))
        ids = [*prefix, *(token for document in documents for token in document)]
        first = len(prefix) if behind_prefix else 0
        local = [*range(len(prefix)), *(first + i for document in documents for i in range(len(document)))]
        stored = Stored(ids, ends, behind_prefix, torch.tensor(local), torch.arange(len(ids)))
        self._run(ids, stored.positions, _Store(stored))
        return stored

    def read(
        self,
        stored: Stored,
        prompt: Sequence[int],
        again: Sequence[int] = (),
        temperature: Temperature | None = None,
        *,
        wants_mass: bool = False,
    ) -> Answer:
        """Runs the prompt after the documents, of which the tokens ``again`` are computed again."""
        again = sorted(again)
        ids = [*(stored.ids[i] for i in again), *prompt]
        positions = torch.tensor([*again, *range(len(stored.ids), len(stored.ids) + len(prompt))])
        call = _Read(stored, again, positions, self._shift(stored), temperature, len(prompt) if wants_mass else 0)
        logits = self._run(ids, positions, call)
        return Answer(logits[len(again) :], torch.stack(call.masses) if wants_mass else torch.empty(0))

    def _shift(self, stored: Stored) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosines and sines of the rotation that moves stored keys to their final positions."""
        moved = (stored.final - stored.positions)[None].to(self.device)
        return self.model.model.rotary_emb(torch.zeros(1, device=self.device), moved)

    def _run(self, ids: Sequence[int], positions: torch.Tensor, call: _Call) -> torch.Tensor:
        with attending_by(self.model, NAME), torch.no_grad():
            row = torch.tensor([list(ids)], device=self.device)
            result = self.model(
                input_ids=row, position_ids=positions[None].to(self.device), use_cache=False, quality_call=call
            )
        return result.logits[0].float()


class _Call:
    """Attention of one layer of a pass. The tensors are [1, heads, tokens, head_dim]."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        raise NotImplementedError


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, **options: Any) -> torch.Tensor:
    return scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True, **options)


class _Full(_Call):
    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        self.values.append(v)
        return _sdpa(q, k, v, scale, is_causal=True)


class _Store(_Call):
    def __init__(self, stored: Stored) -> None:
        self.stored = stored

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        self.stored.keys.append(k)
        self.stored.values.append(v)
        prefix = self.stored.prefix
        parts = [_sdpa(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix], scale, is_causal=True)]
        for document in self.stored.documents():
            rows = slice(document.start, document.stop)
            seen = [*(range(prefix) if self.stored.behind_prefix else ()), *document]
            causal = torch.ones((len(document), len(seen)), dtype=torch.bool, device=q.device)
            causal = causal.tril(len(seen) - len(document))
            parts.append(_sdpa(q[:, :, rows], k[:, :, seen], v[:, :, seen], scale, attn_mask=causal))
        return torch.cat(parts, dim=2)


class _Read(_Call):
    """Rows are tokens computed again and then the prompt; keys are the stored tokens and then these rows."""

    def __init__(
        self,
        stored: Stored,
        again: Sequence[int],
        positions: torch.Tensor,
        shift: tuple[torch.Tensor, torch.Tensor],
        temperature: Temperature | None,
        mass_rows: int,
    ) -> None:
        self.stored, self.shift, self.temperature, self.mass_rows = stored, shift, temperature, mass_rows
        device = shift[0].device
        self.masses: list[torch.Tensor] = []  # a tensor [tokens] for each layer
        key_positions = torch.cat([stored.final, positions]).to(device)
        replaced = torch.zeros(len(key_positions), dtype=torch.bool, device=device)
        replaced[torch.tensor(again, dtype=torch.long, device=device)] = True
        self.mask = (key_positions[None, :] <= positions.to(device)[:, None]) & ~replaced[None, :]

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        stored = self.stored.keys[layer]
        cosine, sine = (x[:, None].to(stored.dtype) for x in self.shift)
        keys = torch.cat([stored * cosine + rotate_half(stored) * sine, k], dim=2)
        values = torch.cat([self.stored.values[layer], v], dim=2)
        if self.mass_rows > 0:
            self._add_mass(q[:, :, -self.mass_rows :], keys, scale)
        if self.temperature is not None:
            return self._attend_by_ape(q, keys, values, scale, self.temperature)
        return _sdpa(q, keys, values, scale, attn_mask=self.mask)

    def _scores(self, q: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
        groups = q.shape[1] // keys.shape[1]
        scores = (q @ repeat_kv(keys, groups).transpose(2, 3)).float() * scale
        return scores.masked_fill(~self.mask[-q.shape[2] :], -torch.inf)

    def _add_mass(self, q: torch.Tensor, keys: torch.Tensor, scale: float) -> None:
        self.masses.append(self._scores(q, keys, scale).softmax(-1)[..., : len(self.stored.ids)].sum((0, 1, 2)))

    def _attend_by_ape(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, by: Temperature
    ) -> torch.Tensor:
        scores = self._scores(q, keys, scale)
        documents = slice(self.stored.prefix, len(self.stored.ids))
        sharp = scores[..., documents] / by.temperature
        log_sum = sharp.logsumexp(-1, keepdim=True)
        scores[..., documents] = sharp - log_sum + by.scale * log_sum
        weights = scores.softmax(-1).to(values.dtype)
        return weights @ repeat_kv(values, q.shape[1] // values.shape[1])


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float,
    quality_call: _Call,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    return quality_call.attend(module.layer_idx, query, key, value, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attention)
