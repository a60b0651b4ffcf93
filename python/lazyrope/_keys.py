"""Computes the key of a document in a document store. Two documents with one key are the same."""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ._core import AttentionSpec, LayerGroup, Rope
from ._layers import num_layers_of
from ._precomputed import Precomputed, argument_of
from .errors import SpecError, StoreError


class Keys:
    """Computes keys of one model's documents: the SHA-256 of everything that decides a document's KV."""

    def __init__(
        self, groups: Sequence[LayerGroup], model: str, dtype: torch.dtype, *, memories: str | None = None
    ) -> None:
        self._memories = memories
        self._groups = groups
        self._model = hashlib.sha256()
        for field in _model_fields(groups, model, dtype):
            _add(self._model, field.encode())

    @property
    def model(self) -> str:
        """The hexadecimal hash of the model alone."""
        return self._model.copy().hexdigest()

    def key(self, tokens: array[int], salt: str, context: str = "") -> str:
        """Returns the hexadecimal key of tokens, which :func:`int64_array` made, in a context."""
        digest = self._model.copy()
        _add(digest, salt.encode())
        _add(digest, tokens.tobytes())
        if context:  # the keys of documents by themselves have no such field
            _add(digest, context.encode())
        return digest.hexdigest()

    def key_of(self, document: Sequence[int] | torch.Tensor | Precomputed, salt: str, context: str) -> tuple[str, int]:
        """Returns the key of a document, and the number of slots that it takes.

        Raises:
            SpecError: As in :func:`int64_array`, the store keeps no memories, or a memory has a context.
            StoreError: As in :meth:`check_memory`.
        """
        if not isinstance(document, Precomputed):
            values = int64_array(document)
            return self.key(values, salt, context), len(values)
        if self._memories != document.kind:
            own = "no memories" if self._memories is None else f'memories of kind "{self._memories}"'
            raise SpecError(
                f'the store keeps {own}; make it with {argument_of(document.kind)} for one of kind "{document.kind}"'
            )
        if context:
            raise SpecError("context is given; a memory has none, for its document saw nothing before it")
        self.check_memory("the memory", document.model, document.scores)
        digest = self._model.copy()
        for field in (salt, "memory", document.key):  # a document's second field has a multiple of 8 bytes
            _add(digest, field.encode())
        return digest.hexdigest(), len(document)

    def check_memory(self, name: str, model: str, scores: Sequence[Any]) -> None:
        """Checks that a memory is of this model.

        Args:
            name: The memory, as messages name it.
            model: The hash of its model.
            scores: For each of its layers an object with the scale and the softcap of the scores.

        Raises:
            StoreError: The memory is of another model, or its scores are not those of the layers.
        """
        if model != self.model:
            raise StoreError(
                f"{name} is of another model: its model has the hash {model[:12]}, and this store's has "
                f"{self.model[:12]}. The name, the layers, RoPE and the dtype must be the same"
            )
        for layer, (given, own) in enumerate(zip(scores, _scores_of(self._groups), strict=True)):
            if (given.scale, given.softcap) != own:
                raise StoreError(
                    f"{name} is fitted to other scores: in layer {layer} it has scale = {given.scale:g} and softcap = "
                    f"{given.softcap}, and this store has scale = {own[0]:g} and softcap = {own[1]}. Build it again"
                )

    def keys(
        self, documents: Sequence[Sequence[int] | torch.Tensor | Precomputed], salt: str, contexts: Sequence[str] | None
    ) -> list[tuple[str, int]]:
        """Returns the key and the number of slots of each document. Without contexts, each has the context "".

        Raises:
            SpecError: As in :func:`int64_array`, or the contexts are not one text for each document.
        """
        given = [""] * len(documents) if contexts is None else contexts
        if isinstance(given, str) or not all(isinstance(context, str) for context in given):
            raise SpecError(f"contexts is {given!r:.80}; it must be a list of texts")
        if len(given) != len(documents):
            raise SpecError(
                f"contexts has {len(given)} entries; it must have one for each of {len(documents)} documents"
            )
        pairs = zip(documents, given, strict=True)
        return [self.key_of(document, salt, context) for document, context in pairs]


def int64_array(tokens: Sequence[int] | torch.Tensor) -> array[int]:
    """Returns token ids as little-endian int64.

    Args:
        tokens: Any one-dimensional sequence of integers, such as a list, a tensor or an array.

    Raises:
        SpecError: There are no tokens, or they are no one-dimensional sequence of 64-bit integers.
    """
    values = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    try:
        result = array("q", iter(values))  # without iter(), array() reads bytes as raw memory
    except (TypeError, OverflowError) as error:
        raise SpecError(f"tokens must be a one-dimensional sequence of 64-bit integers: {error}") from error
    if not result:
        raise SpecError("tokens are empty; a document has at least one")
    if sys.byteorder == "big":
        result.byteswap()
    return result


def _model_fields(groups: Sequence[LayerGroup], model: str, dtype: torch.dtype) -> Iterator[str]:
    spec = groups[0].spec
    numbers = (num_layers_of(groups), spec.num_kv_heads, spec.head_dim, _rotary_dim(spec))
    yield from (model, str(dtype), spec.key_form, spec.rope.variant, *map(str, numbers))
    yield from _rope_parameters(spec.rope)
    for group in groups[1:]:
        yield from (str(group.layers), group.spec.rope.variant, str(_rotary_dim(group.spec)))
        yield from _rope_parameters(group.spec.rope)


def _scores_of(groups: Sequence[LayerGroup]) -> list[tuple[float, float | None]]:
    """Returns the scale and the softcap of each layer."""
    of_layer = {layer: (group.spec.scale, group.spec.softcap) for group in groups for layer in group.layers}
    return [of_layer[layer] for layer in sorted(of_layer)]


def _rotary_dim(spec: AttentionSpec) -> int:
    return spec.head_dim if spec.rope.rotary_dim is None else spec.rope.rotary_dim


def _rope_parameters(rope: Rope) -> Iterator[str]:
    for name, value in sorted(rope.parameters.items()):
        yield from (name, value.hex())
    for name, values in sorted(rope.lists.items()):
        yield from (name, *(value.hex() for value in values))


def _add(digest: hashlib._Hash, field: bytes) -> None:
    # The length before each field makes the bytes unambiguous: no two lists of fields give the same bytes.
    digest.update(struct.pack("<Q", len(field)))
    digest.update(field)
