"""Memories: what a document's keys and values are reduced to, for all layers of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .._precomputed import Precomputed
from .compact import CompactHeads
from .report import Report
from .scores import Scores, States, biased_states
from .states import PROBES, StateHeads, looked_up

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor


@dataclass(eq=False)
class Memory:
    """A memory of one document.

    Attributes:
        key: The content hash: hexadecimal SHA-256 of the model, RoPE, scores, tokens, traces, arguments and seed.
        model: The hexadecimal hash of the model alone.
        num_positions: The number of the document's tokens. What follows the memory in a request begins after so many
            positions.
        scores: The scale and the soft cap of each layer's scores.
        arguments: The arguments of :func:`lazyrope.memory.build`.
        report: The measured errors and costs.
        typical: For each layer and KV head the directions of typical trace queries, of length 1, float32
            [layers, kv_heads, directions, d]. :class:`lazyrope.memory.Drift` compares queries with them.
        floor: For each layer and KV head the cosine that 5% of the held-out queries fall below, float32
            [layers, kv_heads].
    """

    kind: ClassVar[str]
    key: str
    model: str
    num_positions: int
    scores: Sequence[Scores]
    arguments: dict[str, Any]
    report: Report = field(repr=False)
    typical: Tensor = field(repr=False)
    floor: Tensor = field(repr=False)

    @property
    def num_layers(self) -> int:
        return len(self.scores)

    @property
    def num_bytes(self) -> int:
        """The bytes of the memory: all layers."""
        return self.report.num_bytes

    def states(self, layer: int, queries: Tensor) -> States:
        """Returns the attention of queries over the memory, in plain PyTorch.

        Args:
            layer: The layer.
            queries: Queries, [tokens, q_heads, d], rotated by their positions where the document's token 0 is at
                position 0.

        Returns:
            The outputs, float32 [q_heads, tokens, d], and the log-sum-exps, float32 [q_heads, tokens].
        """
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """Returns all tensors by their names."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in values if isinstance(value, torch.Tensor)}


@dataclass(eq=False)
class CompactMemory(Memory, Precomputed):
    """Some keys of a document with a bias each, and values. A store and an engine read it like any document.

    Attributes:
        index: The tokens whose keys are stored, ascending, int32 [layers, kv_heads, slots].
        keys: Their keys, rotated by their index in the document, [layers, kv_heads, slots, d].
        values: Their values, [layers, kv_heads, slots, d].
        bias: The numbers that are added to their scores, float32 [layers, kv_heads, slots].
    """

    kind: ClassVar[str] = "compact"
    index: Tensor = field(repr=False)
    keys: Tensor = field(repr=False)
    values: Tensor = field(repr=False)
    bias: Tensor = field(repr=False)

    def states(self, layer: int, queries: Tensor) -> States:
        kv_heads, group = self.keys.shape[1], queries.shape[1] // self.keys.shape[1]
        q = queries.float().transpose(0, 1).unflatten(0, (kv_heads, group)).flatten(1, 2)
        k, v = self.keys[layer].float(), self.values[layer].float()
        states = biased_states(q, k, v, self.bias[layer], self.scores[layer])
        shape = (kv_heads * group, len(queries))
        return States(states.out.reshape(*shape, -1), states.lse.reshape(shape))


@dataclass(eq=False)
class StatesMemory(Memory):
    """The attention of typical queries over a document, looked up by the query.

    The attributes are those of :class:`lazyrope.memory.states.StateHeads`, with the layers as a first dimension.
    """

    kind: ClassVar[str] = "states"
    keys: Tensor = field(repr=False)
    out: Tensor = field(repr=False)
    lse: Tensor = field(repr=False)
    tangent: Tensor = field(repr=False)
    groups: Tensor = field(repr=False)
    group_of: Tensor = field(repr=False)
    exact_keys: Tensor = field(repr=False)
    exact_values: Tensor = field(repr=False)

    def heads(self, layer: int) -> StateHeads:
        """Returns the entries of a layer."""
        return StateHeads(**{name: getattr(self, name)[layer] for name in StateHeads.__dataclass_fields__})

    def states(self, layer: int, queries: Tensor) -> States:
        return looked_up(self.heads(layer), queries, self.scores[layer])[0]


KINDS: dict[str, type[Memory]] = {each.kind: each for each in (CompactMemory, StatesMemory)}


def compact_bytes(kv_heads: int, slots: int, head_dim: int, itemsize: int) -> int:
    """Returns the bytes of a compact memory of one layer: keys, values and biases of float32."""
    return kv_heads * slots * (2 * head_dim * itemsize + 4)


def states_bytes(heads: StateHeads) -> tuple[int, int]:
    """Returns the bytes of the entries of one layer, and those that a step of decoding reads of them."""
    itemsize, d = heads.keys.element_size(), heads.keys.shape[-1]
    scanned = heads.keys.numel() * itemsize
    total = scanned + (heads.out.numel() + heads.tangent.numel()) * itemsize + heads.lse.numel() * 4
    exact = (heads.exact_keys.numel() + heads.exact_values.numel()) * itemsize
    if heads.groups.shape[1]:
        total += heads.groups.numel() * itemsize + heads.group_of.numel() * 4
        share = min(1.0, PROBES / heads.groups.shape[1])
        scanned = heads.groups.numel() * itemsize + int(share * (scanned + heads.group_of.numel() * 4))
    # The entry that is found: an output, a log-sum-exp and a tangent for each query head.
    found = heads.out.shape[0] * (d * itemsize * (2 if heads.tangent.shape[1] else 1) + 4)
    return total + exact, scanned + found + exact


def stacked_compact(layers: Sequence[CompactHeads]) -> dict[str, Tensor]:
    """Returns the tensors of a compact memory."""
    tensors = {name: torch.stack([getattr(layer, name) for layer in layers]) for name in ("keys", "values", "bias")}
    return tensors | {"index": torch.stack([layer.index for layer in layers]).int()}


def stacked_states(layers: Sequence[StateHeads]) -> dict[str, Tensor]:
    """Returns the tensors of an attention-state memory."""
    return {name: torch.stack([getattr(layer, name) for layer in layers]) for name in StateHeads.__dataclass_fields__}
