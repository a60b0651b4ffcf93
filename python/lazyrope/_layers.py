"""Checks the layers of a model that share one store of documents."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ._core import AttentionSpec, LayerGroup
from .errors import SpecError

STORED = ("head_dim", "num_kv_heads", "kv_dtype", "key_form")  # the fields that decide the shape of a page


def groups_of(spec: AttentionSpec | Sequence[LayerGroup], num_layers: int | None) -> tuple[LayerGroup, ...]:
    """Returns the groups of all layers, for the arguments of a store.

    Args:
        spec: The attention of every layer, or groups of all layers.
        num_layers: The number of layers. None: that of the groups.

    Raises:
        SpecError: A layer is missing or occurs twice, num_layers is not allowed, or the layers' pages differ.
    """
    if isinstance(spec, AttentionSpec):
        count = 0 if num_layers is None else operator.index(num_layers)  # from NumPy, for example
        if count < 1:
            raise SpecError(f"num_layers is {num_layers}; it must be at least 1")
        return (LayerGroup(spec, range(count)),)
    groups = tuple(spec)
    for group in groups:
        if not isinstance(group, LayerGroup):
            raise SpecError(f"a group of layers is {group!r:.80}; it must be a lazyrope.LayerGroup")
    layers = sorted(layer for group in groups for layer in group.layers)
    if layers != list(range(len(layers))) or not layers:
        raise SpecError(f"the groups have the layers {layers}; each layer from 0 on must be in one group")
    if num_layers not in (None, len(layers)):
        raise SpecError(f"num_layers is {num_layers}; the groups have {len(layers)} layers")
    require_equal(groups, STORED)
    return groups


def num_layers_of(groups: Sequence[LayerGroup]) -> int:
    return sum(len(group.layers) for group in groups)


def require_equal(groups: Sequence[LayerGroup], fields: Sequence[str]) -> None:
    """Raises SpecError if a field of the spec differs between layers."""
    for name in fields:
        first: Any = getattr(groups[0].spec, name)
        for group in groups[1:]:
            if (value := getattr(group.spec, name)) != first:
                raise SpecError(
                    f"{name} is {first!r} in layer {groups[0].layers[0]} and {value!r} in layer {group.layers[0]}; all "
                    f"layers of a store must have the same {name}"
                )
