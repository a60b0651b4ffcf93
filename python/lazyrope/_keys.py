"""What makes two documents the same: the key under which a document store keeps one."""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence

import torch

from ._core import AttentionSpec
from .errors import SpecError


class Keys:
    """Keys of one model's documents: SHA-256 of all that decides a document's KV."""

    def __init__(self, spec: AttentionSpec, num_layers: int, model: str, dtype: torch.dtype) -> None:
        self._model = hashlib.sha256()
        for field in _model_fields(spec, num_layers, model, dtype):
            _add(self._model, field.encode())

    def key(self, tokens: array[int], salt: str) -> str:
        """Hexadecimal; of tokens as :func:`int64_array` gives them."""
        digest = self._model.copy()
        _add(digest, salt.encode())
        _add(digest, tokens.tobytes())
        return digest.hexdigest()


def int64_array(tokens: Sequence[int] | torch.Tensor) -> array[int]:
    """Token ids, whatever holds them, as little-endian int64.

    Raises:
        SpecError: there are none, or they are no one-dimensional sequence of 64-bit integers.
    """
    values = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    try:
        result = array("q", iter(values))  # iter, as an array would take bytes for its own memory
    except (TypeError, OverflowError) as error:
        raise SpecError(f"tokens must be a one-dimensional sequence of 64-bit integers: {error}") from error
    if not result:
        raise SpecError("tokens are empty; a document has at least one")
    if sys.byteorder == "big":
        result.byteswap()
    return result


def _model_fields(spec: AttentionSpec, num_layers: int, model: str, dtype: torch.dtype) -> Iterator[str]:
    rope = spec.rope
    rotary_dim = spec.head_dim if rope.rotary_dim is None else rope.rotary_dim
    numbers = (num_layers, spec.num_kv_heads, spec.head_dim, rotary_dim)
    yield from (model, str(dtype), spec.key_form, rope.variant, *map(str, numbers))
    for name, value in sorted(rope.parameters.items()):
        yield from (name, value.hex())


def _add(digest: hashlib._Hash, field: bytes) -> None:
    # The length in front makes a list of fields unambiguous: no two lists give the same bytes.
    digest.update(struct.pack("<Q", len(field)))
    digest.update(field)
