"""Measures, in the passes of a model, to which pages of its documents a question attends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..page_mass import PageMass
from .backend import Backend
from .work import Job, Work

Tensor = Any


def measurements(backend: Backend, work: Work) -> Iterator[Measurement]:
    """Yields a measurement for each job of a pass that has tokens of a question."""
    at = 0
    for job, n in work.rows:
        rows = job.measured(n)
        if job.question is not None and job.question.pages and rows:
            yield Measurement(backend, job, at, rows)
        at += n


class Measurement:
    """Adds up the mass of a question's pages over the layers of one pass.

    Args:
        backend: The kernels and the store.
        job: The job with the question. The pass has not counted its tokens as done yet.
        first: The row in the pass of the job's next token.
        rows: The tokens whose attention counts, from the job's next one on.
    """

    def __init__(self, backend: Backend, job: Job, first: int, rows: range) -> None:
        assert job.question is not None
        self._backend = backend
        self._question = job.question
        self._rows = slice(first + rows.start, first + rows.stop)
        positions = list(job.next_positions(rows.stop)[rows.start :])
        store = backend.store
        # The plan of a step depends on the mask, so each group of layers has a plan.
        self._plans = [
            PageMass(kernels.attention, positions, job.question.pages, store.pages, page_size=store.page_size)
            for kernels in backend.kernels
        ]

    def add(self, layer: int, q: Tensor, lse: Tensor) -> None:
        """Adds the masses in one layer, after its keys are stored.

        Args:
            layer: The layer's number.
            q: The queries of all rows of the pass, [rows, num_q_heads, head_dim].
            lse: The log-sum-exp of these rows, float32 [rows, num_q_heads].
        """
        plan, store = self._plans[self._backend.group_of(layer)], self._backend.store
        pools = store.k_pool(layer), store.v_pool(layer)
        mass = plan(q[self._rows], *pools, lse[self._rows], **self._backend.scales_of(layer))
        question = self._question
        question.mass = mass if question.mass is None else question.mass + mass
