"""The processes among which transformers has divided a model (tensor parallelism).

Each rank has an engine over its own heads, its own store and its own pools. The engines must make the same decisions,
so what depends on a rank's heads, or on its random numbers, is exchanged here.
"""

from __future__ import annotations

from typing import Any

import torch

from .._core import AttentionSpec
from ..errors import SpecError

Tensor = Any


def num_ranks(model: Any) -> int:
    """Returns how many ranks divide a model of transformers. 1: it is whole."""
    return getattr(model, "tp_size", None) or 1


def check_heads(model: Any, spec: AttentionSpec) -> None:
    """Checks that each rank attends with an equal part of the heads.

    Args:
        model: A model of transformers, which is divided.
        spec: The attention of the whole model.

    Raises:
        SpecError: The number of ranks does not divide the heads, or transformers does not divide them.
    """
    plan: dict[str, str] = getattr(model.config, "base_model_tp_plan", None) or {}
    ways = {name.rpartition(".")[2]: way for name, way in plan.items()}
    if any(ways.get(name) != "colwise" for name in ("q_proj", "k_proj", "v_proj")):
        raise SpecError(
            f'the model is divided among {num_ranks(model)} ranks; for model_type = "{model.config.model_type}", '
            "transformers does not give each rank a part of the heads, which the engine needs. Load the model whole"
        )
    ranks, heads = num_ranks(model), (spec.num_q_heads, spec.num_kv_heads)
    if any(count % ranks for count in heads):
        raise SpecError(
            f"{ranks} ranks divide a model of {heads[0]} query and {heads[1]} KV heads; transformers gives each rank "
            "an equal part of either, so the number of ranks must divide both. Repeat the KV heads in the weights, or "
            "use fewer ranks"
        )


def check_is_whole(model: Any, name: str) -> None:
    """Checks that no ranks divide a model for which a memory is made or read.

    Args:
        model: A model of transformers.
        name: What was asked for, as the message names it.

    Raises:
        SpecError: Ranks divide the model.
    """
    if (ranks := num_ranks(model)) > 1:
        raise SpecError(
            f"{name} with a model that {ranks} ranks divide: each rank has other heads, so the memory of one rank is "
            "wrong on the others. Load the model without tp_plan"
        )


class Ranks:
    """The ranks of one model. Every rank calls the methods in the same order."""

    def __init__(self, model: Any) -> None:
        """
        Args:
            model: A model of transformers. Its process group is that of its divided weights.
        """
        self._group: Any = None
        if num_ranks(model) > 1:
            self._group = next(w.device_mesh.get_group() for w in model.parameters() if hasattr(w, "device_mesh"))

    def add(self, tensor: Tensor) -> None:
        """Replaces a tensor by its sum over all ranks."""
        if self._group is not None:
            torch.distributed.all_reduce(tensor, group=self._group)

    def agree(self, tensor: Tensor) -> None:
        """Replaces a tensor by that of the first rank."""
        if self._group is not None:
            first = torch.distributed.get_global_rank(self._group, 0)
            torch.distributed.broadcast(tensor, first, group=self._group)
