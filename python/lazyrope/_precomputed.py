"""Keys and values that a document store copies instead of its caller computing them, and logits beside its slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ._batch import Document, HasPages, Segment
from ._core import AttentionSpec
from .errors import SpecError, StoreError

COMPACT, STATES = "compact", "states"


@dataclass(frozen=True)
class PoolShape:
    """The layers, heads and dtype of a pool."""

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def check(self, name: str, tensor: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Raises StoreError unless a tensor of a memory has a dtype, and a shape after the layers."""
        wanted = (self.layers, *shape)
        if tuple(tensor.shape) != wanted or tensor.dtype != dtype:
            raise StoreError(
                f"the memory has {name} of {tensor.dtype} {list(tensor.shape)}; this pool needs {dtype} "
                f"{list(wanted)}: layers, heads, slots or entries, and for keys and values head_dim"
            )


@dataclass(frozen=True)
class Slots:
    """The keys, values and logits that a memory stores in one layer.

    Attributes:
        keys: The keys, [kv_heads, slots, head_dim].
        values: The values, of the same shape.
        logits: The bias of each key, or the log-sum-exp of each entry: float32 [kv_heads, slots].
    """

    keys: Any
    values: Any
    logits: Any


class Precomputed:
    """The base class of what a store keeps like a document although it has no token ids: a memory.

    Its length is the number of slots that it takes for each layer and KV head.

    Attributes:
        kind: "compact" or "states".
        key: The hexadecimal content hash.
        model: The hexadecimal hash of its model, as :attr:`lazyrope.documents.DocumentStore.model_key` has it.
        num_positions: The number of positions that it stands for.
        scores: For each layer an object with the scale and the softcap of the scores that it was fitted to.
    """

    kind: ClassVar[str]
    key: str
    model: str
    num_positions: int
    scores: Sequence[Any]

    def __len__(self) -> int:
        raise NotImplementedError

    def check(self, pool: PoolShape) -> None:
        """Raises StoreError if a tensor does not fit the pool, or if the kernels cannot read the memory."""
        raise NotImplementedError

    def refusal(self) -> str | None:
        """Returns why the kernels cannot read the memory, as an error message goes on, or None if they can."""
        return None

    def slots(self, layer: int) -> Slots:
        """Returns what a layer stores in its slots."""
        raise NotImplementedError

    def segments(self, document: HasPages, base: int, page_size: int, number: int = 1) -> list[Segment]:
        """Returns the segments by which a request reads the memory.

        Args:
            document: The document of a store that was filled with the memory.
            base: The logical position of the first token of the document that it stands for.
            page_size: The tokens of a page.
            number: The number of the memory in the request, 1 to 4. Only memories of kind "states" have one.

        Raises:
            SpecError: The document does not have the memory's number of slots.
        """
        self._check_is_in(document)
        return [Segment(Document(document.first_page, len(self), document.lead), base)]

    def _check_is_in(self, document: HasPages) -> None:
        if document.num_tokens != len(self):
            raise SpecError(
                f"the document has {document.num_tokens} slots and the memory {len(self)}; give the document of a "
                "store that was filled with this memory"
            )


def memory_kind(memories: bool | str) -> str | None:
    """Returns the kind of memories that an argument asks for, or None.

    Raises:
        SpecError: The value is not allowed.
    """
    kinds = {False: None, True: COMPACT, COMPACT: COMPACT, STATES: STATES}
    if not isinstance(memories, bool | str) or memories not in kinds:
        raise SpecError(f'memories = {memories!r:.80}; it must be False, True or "{COMPACT}", or "{STATES}"')
    return kinds[memories]


def argument_of(kind: str) -> str:
    """Returns the argument by which a store or an engine keeps memories of a kind."""
    return "memories=True" if kind == COMPACT else f'memories="{kind}"'


def positions_of(document: Any) -> int:
    """Returns the number of positions that a document takes: its tokens, or those that a memory stands for."""
    return document.num_positions if isinstance(document, Precomputed) else len(document)


class SlotLogits:
    """A logit for each slot of a pool, which is 0 but for the slots of memories.

    They are the biases of keys in a store of compact memories, and the log-sum-exps of entries in one of states.

    Args:
        kind: The kind of the store's memories.
        num_layers: The layers of the pool.
        num_pages: The pages of the pool.
        page_size: The tokens of a page.
        spec: The attention of the layers.
        dtype: The dtype of the pool.
        device: The device of the pool.
    """

    def __init__(
        self,
        kind: str,
        num_layers: int,
        num_pages: int,
        page_size: int,
        spec: AttentionSpec,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.kind = kind
        self._pool = PoolShape(num_layers, spec.num_q_heads, spec.num_kv_heads, spec.head_dim, dtype)
        shape = (num_layers, num_pages, spec.num_kv_heads, page_size)
        self._array = torch.zeros(shape, dtype=torch.float32, device=device)
        self.layers = self._array.unbind()
        self._written: set[int] = set()  # the pages that may have logits other than 0

    def clear(self, page_ids: Iterable[int]) -> None:
        """Sets the logits of pages to 0 that a memory had before. It runs when a document takes the pages."""
        if stale := self._written.intersection(page_ids):
            self._array.index_fill_(1, torch.tensor(sorted(stale), device=self._array.device), 0)
            self._written -= stale

    def write(self, pools: Sequence[Sequence[Any]], page_ids: Sequence[int], memory: Precomputed) -> None:
        """Copies a memory into pages.

        Args:
            pools: The keys and the values of each layer, [pages, page_size, kv_heads, head_dim].
            page_ids: The pages, as many as the memory needs.
            memory: The memory.

        Raises:
            StoreError: A tensor of the memory does not have the pool's layers, heads or dtype.
        """
        memory.check(self._pool)
        pages = torch.tensor(page_ids, device=self._array.device)
        page_size = self._array.shape[3]
        pad = len(page_ids) * page_size - len(memory)
        self._written.update(page_ids)  # before the copy, so that an exception in it leaves no logit behind
        for layer, (keys, values) in enumerate(pools):
            stored = memory.slots(layer)
            for pool, rows in ((keys, stored.keys), (values, stored.values)):
                slots = torch.nn.functional.pad(rows.transpose(0, 1).to(pool.device), (0, 0, 0, 0, 0, pad))
                pool[pages] = slots.unflatten(0, (-1, page_size))
            logits = torch.nn.functional.pad(stored.logits.to(pages.device), (0, pad))
            self.layers[layer][pages] = logits.unflatten(1, (-1, page_size)).transpose(0, 1)
