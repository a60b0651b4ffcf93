"""Measures, in passes of a model, to which pages of its documents a question attends."""

from __future__ import annotations

from typing import Any

import torch

from .ranks import Ranks
from .work import Packed, power_of_two

Tensor = Any


class Meter:
    """Holds the masses of all pages of a pass, as each layer's attention gives them.

    Its memory stays where it is from pass to pass, so that CUDA graphs can capture passes. If a pass has more pages
    than there is room for, larger memory replaces it, and a graph must be captured again.

    Args:
        num_layers: The layers of the model.
        device: The device of the passes.
        ranks: The processes among which the model is divided. Each one measures the attention of its own heads.

    Attributes:
        capacity: The pages that there is room for.
    """

    def __init__(self, num_layers: int, device: Any, ranks: Ranks) -> None:
        self.capacity = 0
        self._ranks = ranks
        self._masses = torch.empty((num_layers, 0), dtype=torch.float32, device=device)

    def update(self, packed: Packed, views: dict[str, Tensor]) -> None:
        """Makes room for the pages of a pass, and remembers which of them its questions ask for."""
        assert packed.masses is not None
        self._questions = packed.masses.questions
        self._layers = self._questions[0].layers  # all requests of an engine have the same number
        self._pages = views["mass_pages"]
        if packed.masses.num_pages > self.capacity:
            self.capacity = power_of_two(packed.masses.num_pages)
            self._masses = self._masses.new_empty((len(self._masses), self.capacity))

    def masses_of(self, layer: int) -> Tensor | None:
        """Returns the tensor that the layer's attention fills with the masses of all pages, float32 [capacity].

        None: the layer's attention does not choose pages.
        """
        return self._masses[layer] if self._layers is None or layer < self._layers else None

    def finish(self) -> None:
        """Gives the questions the masses of their pages, summed over layers, after the last layer."""
        counted = self._masses[: self._layers]
        masses = counted.index_select(1, self._pages).sum(0)
        self._ranks.add(masses)
        parts = masses.split([len(question.pages) for question in self._questions])
        for question, mass in zip(self._questions, parts, strict=True):
            question.mass = mass if question.mass is None else question.mass + mass
