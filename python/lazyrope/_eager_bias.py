"""The bias of keys, as :mod:`lazyrope.eager` reads it (:attr:`lazyrope.AttentionSpec.key_bias`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ._core import AttentionSpec
from ._eager_pool import Slots
from ._overloads import check_tensor
from .errors import SpecError

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor


def read_key_bias(spec: AttentionSpec, bias: Tensor | None, pages: int, slots: Slots, page_size: int) -> Tensor | None:
    """Returns the bias of each token of a step.

    Args:
        spec: The spec.
        bias: The caller's tensor, float32 [pages, kv_heads, page_size], or None.
        pages: The number of pages of the pool.
        slots: The slots of the tokens.
        page_size: The number of slots of a page.

    Returns:
        The bias, float32 [kv_heads, tokens], or None if the spec has none.

    Raises:
        SpecError: The tensor is missing or superfluous, or has a wrong dtype or shape.
    """
    if bias is None:
        if spec.key_bias:
            wanted = "a float32 tensor [pages, kv_heads, page_size], 0 for keys without a bias"
            raise SpecError(f"the spec has key_bias; give key_bias=, {wanted}")
        return None
    if not spec.key_bias:
        raise SpecError("key_bias is given; the spec has none (key_bias=True makes calls take it)")
    check_tensor("key_bias", bias)
    shape = (pages, spec.num_kv_heads, page_size)
    if bias.dtype != torch.float32 or tuple(bias.shape) != shape:
        wanted = f"float32 [pages, kv_heads, page_size] = {list(shape)}"
        raise SpecError(f"key_bias is {bias.dtype} {list(bias.shape)}; it must be {wanted}")
    return bias[slots.page, :, slots.slot].T
