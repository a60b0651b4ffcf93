"""The kernels of all layers of a model, and the store of their pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .._core import AttentionSpec, LayerGroup
from ..documents import DocumentStore
from ..errors import SpecError
from .hook import UNKNOWN, AttentionCall
from .ranks import Ranks

Tensor = Any


@dataclass(frozen=True)
class LayerKernels:
    """The kernels of the layers that have one spec.

    Attributes:
        attention: A :class:`lazyrope.Attention` or a :class:`lazyrope.eager.EagerAttention`.
        reposition: A :class:`lazyrope.Reposition` or a :class:`lazyrope.eager.EagerReposition`.
    """

    attention: Any
    reposition: Any

    @property
    def spec(self) -> AttentionSpec:
        spec: AttentionSpec = self.attention.spec
        return spec


class Backend:
    """The kernels of a model's layers, the scales of their pools, and the store.

    Attributes:
        kernels: The kernels of each group of layers.
        store: The store. It has the pools of all layers.
        arch: The arch of the kernels.
        ranks: The processes among which the model is divided.
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        compiled: Callable[[AttentionSpec], LayerKernels],
        store: DocumentStore,
        scales: Sequence[tuple[Tensor, Tensor]] | None,
        ranks: Ranks,
    ) -> None:
        self.kernels = tuple(compiled(group.spec) for group in groups)
        self._compiled = compiled
        self.store = store
        self.ranks = ranks
        self.arch: str = self.kernels[0].attention.arch
        self._group = {layer: i for i, group in enumerate(groups) for layer in group.layers}
        self._scales = _scales_of_layers(scales, groups[0].spec, len(self._group))
        self._checked: set[int] = set()

    @property
    def spec(self) -> AttentionSpec:
        """The spec of layer 0. Heads, head_dim and dtypes are those of all layers."""
        return self.kernels[self.group_of(0)].spec

    @cached_property
    def measuring(self) -> tuple[Any, ...]:
        """The attention of each group of layers that also gives the mass of pages. First use compiles them.

        They share no segments between requests, because a cascade gives no masses.
        """
        changes = {"cascade": False, "page_mass": True}
        specs = [AttentionSpec(**(kernels.spec.__getstate__() | changes)) for kernels in self.kernels]
        return tuple(self._compiled(spec).attention for spec in specs)

    @property
    def num_layers(self) -> int:
        return len(self._group)

    def group_of(self, layer: int) -> int:
        """Returns the index in :attr:`kernels` of the layer's kernels."""
        return self._group[layer]

    def scales_of(self, layer: int) -> dict[str, Tensor]:
        """Returns the scales of a layer's pool as arguments of the attention and of append."""
        return self._scales[layer]

    def reading_of(self, layer: int) -> dict[str, Tensor]:
        """Returns the arguments of a layer's attention that describe its pool.

        They are the scales, and the biases of keys or the log-sum-exps of entries.
        """
        numbers = {"key_bias": self.store.key_bias(layer), "entry_lse": self.store.entry_lse(layer)}
        return self._scales[layer] | {name: given for name, given in numbers.items() if given is not None}

    def check(self, layer: int, call: AttentionCall) -> None:
        """Checks, once for each layer, that the model asks for the attention that its spec describes.

        Raises:
            SpecError: They differ. The message names the layer, the argument and both values.
        """
        if layer in self._checked:
            return
        spec = self.kernels[self.group_of(layer)].spec
        for name, given, known in (
            ("scaling", call.scale, spec.scale),
            ("softcap", call.softcap, spec.softcap),
            ("sliding_window", spec.window if call.window == UNKNOWN else call.window, spec.window),
            ("s_aux", call.sinks is not None, spec.sinks),
            ("query heads", call.num_q_heads, spec.num_q_heads),
            ("head_dim", call.head_dim, spec.head_dim),
        ):
            if given != known and not _is_near(given, known):
                raise SpecError(
                    f"layer {layer}: the model calls its attention with {name} = {given}; by its config, lazyrope "
                    f"expects {known}. Was the config changed after the model was made, or is the model's code not "
                    "that of transformers?"
                )
        self._checked.add(layer)


def _is_near(given: Any, known: Any) -> bool:
    """Returns True for two floats that differ by rounding alone."""
    return isinstance(given, float) and isinstance(known, float) and abs(given - known) <= 1e-6 * abs(known)


def _scales_of_layers(
    scales: Sequence[tuple[Tensor, Tensor]] | None, spec: AttentionSpec, num_layers: int
) -> list[dict[str, Tensor]]:
    if scales is None:
        return [{} for _ in range(num_layers)]
    if spec.kv_dtype == spec.dtype:
        raise SpecError(f"kv_scales are given; a pool of {spec.dtype} has no scales. Give kv_dtype= as well")
    pairs = list(scales)
    if len(pairs) != num_layers or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise SpecError(
            f"kv_scales has {len(pairs)} entries; it must have one pair (k_scale, v_scale) for each of {num_layers} "
            "layers"
        )
    return [{"k_scale": k_scale, "v_scale": v_scale} for k_scale, v_scale in pairs]
