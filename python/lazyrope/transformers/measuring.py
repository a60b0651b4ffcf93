"""Measures, in the passes of a model, to which pages of its documents a question attends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from ..page_mass import PageMass, QuestionPages
from .backend import Backend
from .work import Job, Work

Tensor = Any


class Meter:
    """Measures the questions of passes, one pass after the other."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @cached_property
    def masses(self) -> list[PageMass]:
        """The measurement by each group of layers: the plan of its steps depends on the mask."""
        return [PageMass(kernels.attention, page_size=self.backend.store.page_size) for kernels in self.backend.kernels]

    def of(self, work: Work) -> Iterator[Measurement]:
        """Yields a measurement for each job of a pass that has tokens of a question."""
        at = 0
        for job, n in work.rows:
            rows = job.measured(n)
            if job.question is not None and rows:
                yield Measurement(self, job, at, rows)
            at += n


class Measurement:
    """Adds up the mass of a question's pages over the layers of one pass.

    Args:
        meter: The measurements by each group of layers.
        job: The job with the question. The pass has not counted its tokens as done yet.
        first: The row in the pass of the job's next token.
        rows: The tokens whose attention counts, from the job's next one on.
    """

    def __init__(self, meter: Meter, job: Job, first: int, rows: range) -> None:
        assert job.question is not None
        self._meter = meter
        self._question = job.question
        self._rows = slice(first + rows.start, first + rows.stop)
        positions = list(job.next_positions(rows.stop)[rows.start :])
        backend = meter.backend
        self._pages = QuestionPages(backend.spec, positions, job.question.pages, backend.store.pages)

    def add(self, layer: int, q: Tensor, lse: Tensor) -> None:
        """Adds the masses in one layer, after its keys are stored.

        Args:
            layer: The layer's number.
            q: The queries of all rows of the pass, [rows, num_q_heads, head_dim].
            lse: The log-sum-exp of these rows, float32 [rows, num_q_heads].
        """
        question = self._question
        if question.layers is not None and layer >= question.layers:
            return
        backend, rows = self._meter.backend, self._rows
        measure = self._meter.masses[backend.group_of(layer)]
        pools = backend.store.k_pool(layer), backend.store.v_pool(layer)
        mass = measure(self._pages, q[rows], *pools, lse[rows], **backend.scales_of(layer))
        question.mass = mass if question.mass is None else question.mass + mass
