"""Measures, in the passes of a model, to which pages of its documents a question attends."""

from __future__ import annotations

from typing import Any

import torch

from .work import Packed, Work

Tensor = Any


class Meter:
    """Adds up the masses of the pages of one pass over its layers.

    Args:
        work: The work of the pass. The pass has not counted its tokens as done yet.
        packed: The same work, packed.
        device: The device of the pass.
    """

    def __init__(self, work: Work, packed: Packed, device: Any) -> None:
        assert packed.masses is not None
        self._work = work
        self._masses = packed.masses
        # All requests of an engine have the same number of layers.
        self._layers = next(job.question.layers for job, _ in work.rows if job.question is not None)
        self._of_layer = torch.empty(self._masses.page_indptr[-1], dtype=torch.float32, device=device)
        self._sum = torch.zeros_like(self._of_layer)

    def begin_layer(self) -> Tensor:
        """Returns the tensor that the next layer's attention fills with the masses of all pages."""
        return self._of_layer

    def end_layer(self, layer: int) -> None:
        """Adds the masses of a layer to those of the layers before, if its attention counts."""
        if self._layers is None or layer < self._layers:
            self._sum += self._of_layer

    def finish(self) -> None:
        """Gives the questions the masses of their pages, after the last layer."""
        indptr = self._masses.page_indptr
        for (job, n), first in zip(self._work.rows, self._masses.first_segments, strict=True):
            question = job.question
            if question is None or not job.measured(n):
                continue
            at = [indptr[first + segment] + page for segment, page in question.pages]
            mass = self._sum[torch.tensor(at, dtype=torch.int64).to(self._sum.device)]
            question.mass = mass if question.mass is None else question.mass + mass
