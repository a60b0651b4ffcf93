"""Memories: what a document's keys and values are reduced to, for all layers of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .._batch import CELL_ENTRY, KEY_PER_HEAD, Document, HasPages, Segment
from .._precomputed import COMPACT, STATES, PoolShape, Precomputed, Slots
from ..errors import StoreError
from .compact import CompactHeads
from .report import Report
from .scores import Scores, States, biased_states
from .states import StateHeads, looked_up

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor


@dataclass(eq=False)
class Memory(Precomputed):
    """A memory of one document. A store and an engine of its kind read it like any document.

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
class CompactMemory(Memory):
    """Some keys of a document with a bias each, and values.

    Attributes:
        index: The tokens whose keys are stored, ascending, int32 [layers, kv_heads, slots].
        keys: Their keys, rotated by their index in the document, [layers, kv_heads, slots, d].
        values: Their values, [layers, kv_heads, slots, d].
        bias: The numbers that are added to their scores, float32 [layers, kv_heads, slots].
    """

    kind: ClassVar[str] = COMPACT
    index: Tensor = field(repr=False)
    keys: Tensor = field(repr=False)
    values: Tensor = field(repr=False)
    bias: Tensor = field(repr=False)

    def __len__(self) -> int:
        return int(self.keys.shape[2])

    def check(self, pool: PoolShape) -> None:
        slots = (pool.kv_heads, len(self))
        for name, tensor in (("keys", self.keys), ("values", self.values)):
            pool.check(name, tensor, pool.dtype, (*slots, pool.head_dim))
        pool.check("biases", self.bias, torch.float32, slots)

    def slots(self, layer: int) -> Slots:
        return Slots(self.keys[layer], self.values[layer], self.bias[layer])

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

    In a store, the exact tokens come first, and after them a slot for each entry of each query head. So a key that the
    query heads of a KV head share is stored once for each of them, because their outputs differ. With two levels, the
    entries are in cells of one query head each, and after all cells comes a slot for the centre of each.
    """

    kind: ClassVar[str] = STATES
    keys: Tensor = field(repr=False)
    out: Tensor = field(repr=False)
    lse: Tensor = field(repr=False)
    tangent: Tensor = field(repr=False)
    centres: Tensor = field(repr=False)
    exact_keys: Tensor = field(repr=False)
    exact_values: Tensor = field(repr=False)

    @property
    def num_exact(self) -> int:
        """The number of the document's first tokens that are kept as they are."""
        return int(self.exact_keys.shape[2])

    @property
    def _group(self) -> int:
        """The query heads of a KV head."""
        return int(self.out.shape[1] // self.exact_keys.shape[1])

    @property
    def _cell(self) -> int:
        """The entries of a cell, or 0 without cells."""
        cells = int(self.centres.shape[2])
        return int(self.keys.shape[2]) // cells if cells else 0

    def __len__(self) -> int:
        return self.num_exact + int(self.out.shape[2] + self.centres.shape[2]) * self._group

    def check(self, pool: PoolShape) -> None:
        entries, cells = int(self.out.shape[2]), int(self.centres.shape[2])
        of_keys = pool.kv_heads if int(self.keys.shape[1]) == pool.kv_heads else pool.q_heads
        for name, tensor, shape in (
            ("keys of entries", self.keys, (of_keys, entries, pool.head_dim)),
            ("centres of cells", self.centres, (of_keys, cells, pool.head_dim)),
            ("outputs", self.out, (pool.q_heads, entries, pool.head_dim)),
            ("exact keys", self.exact_keys, (pool.kv_heads, self.num_exact, pool.head_dim)),
            ("exact values", self.exact_values, (pool.kv_heads, self.num_exact, pool.head_dim)),
        ):
            pool.check(name, tensor, pool.dtype, shape)
        pool.check("log-sum-exps", self.lse, torch.float32, (pool.q_heads, entries))
        if why := self.refusal():
            raise StoreError(f"the memory was made {why}")

    def refusal(self) -> str | None:
        if self.tangent.shape[2] > 0:
            return (
                "with tangent=True; the kernels take the state of an entry as it is: build the memory with "
                "tangent=False, or evaluate it by its states()"
            )
        return None

    def slots(self, layer: int) -> Slots:
        cell = max(1, self._cell)  # without cells, neighbouring slots are entries of different heads
        keys, values, lse = (self._slots(x[layer], cell) for x in (self.keys, self.out, self.lse))
        centres = self._slots(self.centres[layer], 1)
        return Slots(
            torch.cat([self.exact_keys[layer], keys, centres], dim=1),
            torch.cat([self.exact_values[layer], values, torch.zeros_like(centres)], dim=1),
            torch.nn.functional.pad(lse, (self.num_exact, centres.shape[1])),
        )

    def _slots(self, tensor: Tensor, count: int) -> Tensor:
        """Returns what the slots of each KV head have of a tensor [kv_heads or q_heads, entries, ...].

        The slots have `count` entries of the first query head, then as many of the next, and so on. Entries that query
        heads share are repeated.
        """
        of_kv_head = tensor.unflatten(0, (self.exact_keys.shape[1], -1))
        of_q_heads = of_kv_head.repeat_interleave(self._group // of_kv_head.shape[1], dim=1)
        return of_q_heads.unflatten(2, (-1, count)).transpose(1, 2).flatten(1, 3)

    def segments(self, document: HasPages, base: int, page_size: int, number: int = 1) -> list[Segment]:
        self._check_is_in(document)
        exact, slot = self.num_exact, document.lead + self.num_exact
        entries = Document(document.first_page + slot // page_size, len(self) - exact, slot % page_size)
        tokens = [Segment(Document(document.first_page, exact, document.lead), base)] if exact else []
        return [*tokens, Segment(entries, base, memory=number + KEY_PER_HEAD + CELL_ENTRY * self._cell)]

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
    if cells := heads.centres.shape[1]:
        centres = heads.centres.numel() * itemsize
        # Query heads choose cells of their own, also where they share the keys.
        cell = heads.out.shape[0] * heads.keys.shape[1] // cells * d * itemsize
        total, scanned = total + centres, centres + min(cell, scanned)
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
