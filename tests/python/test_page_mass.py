"""The attention mass of pages equals the sum of the softmax's weights, whatever the mask, the pages and the chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import lazyrope
import pytest
import torch
from lazyrope import eager
from lazyrope.page_mass import PageMass, QuestionPages, pages_of

from tests.conftest import HAS_GPU

HEADS, KV_HEADS, DIM = 4, 2, 64
DEVICE = "cuda" if HAS_GPU else "cpu"
# The base and the length of each document. The question comes after them.
DOCUMENTS = ((0, 40), (40, 23), (63, 70))
POSITIONS = list(range(133, 142))
SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"mask": "sliding_window", "window": 60},
    "chunks": {"mask": "chunked", "chunk": 64},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": True},
    "window and sinks": {"mask": "sliding_window", "window": 60, "sinks": True},
}


def spec_of(**changes: Any) -> lazyrope.AttentionSpec:
    sizes = {"head_dim": DIM, "num_q_heads": HEADS, "num_kv_heads": KV_HEADS, "rope": lazyrope.rope.neox()}
    return lazyrope.AttentionSpec(**sizes, query_form="rotated", **changes)


@dataclass
class Problem:
    """Documents in a pool and a question after them, with the kernels of one attention."""

    attention: Any
    page_size: int
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        lists = [torch.randperm(16, generator=generator)[: -(-length // self.page_size)] for _, length in DOCUMENTS]
        # Each document has pages of its own; unused slots have NaN.
        self.pages = torch.cat([16 * i + each for i, each in enumerate(lists)]).int().to(DEVICE)
        firsts = [sum(map(len, lists[:i])) for i in range(len(lists))]
        self.documents = [lazyrope.Document(f, length) for f, (_, length) in zip(firsts, DOCUMENTS, strict=True)]
        shape = (16 * len(lists), self.page_size, KV_HEADS, DIM)
        self.k_pool, self.v_pool = (torch.full(shape, torch.nan, dtype=self.dtype, device=DEVICE) for _ in range(2))
        for document in self.documents:
            tokens = torch.arange(document.num_tokens)
            at = self.pages[document.first_page + tokens // self.page_size].long(), tokens % self.page_size
            for pool in (self.k_pool, self.v_pool):
                pool[at] = torch.randn(len(tokens), KV_HEADS, DIM, generator=generator).to(pool)
        self.q = (2 * torch.randn(len(POSITIONS), HEADS, DIM, generator=generator)).to(self.k_pool)
        sinks = torch.randn(HEADS, generator=generator).to(DEVICE)
        self.sinks = sinks if self.attention.spec.sinks else None
        self.segments = [
            lazyrope.Segment(document, base) for document, (base, _) in zip(self.documents, DOCUMENTS, strict=True)
        ]

    def attend(self, segments: list[lazyrope.Segment]) -> tuple[torch.Tensor, torch.Tensor]:
        requests = [lazyrope.Request(POSITIONS, segments)]
        step = self.attention.plan(lazyrope.batch(requests, self.pages), page_size=self.page_size)
        out, lse = self.attention(self.q, self.k_pool, self.v_pool, step, sinks=self.sinks)
        return out, lse

    def mass(self, segments: list[lazyrope.Segment], **options: Any) -> torch.Tensor:
        _, lse = self.attend(self.segments)
        question = QuestionPages(self.attention.spec, POSITIONS, segments, self.pages, **options)
        measure = PageMass(self.attention, page_size=self.page_size)
        found = measure(question, self.q, self.k_pool, self.v_pool, lse)
        again = measure(question, self.q, self.k_pool, self.v_pool, lse)
        assert torch.equal(again, found), "a question serves several layers"
        return found

    def expected(self, segments: list[lazyrope.Segment]) -> torch.Tensor:
        """Takes the weights from the attention's own output: with one-hot values, it is the weight of each token."""
        total = sum(length for _, length in DOCUMENTS)
        weights = torch.zeros(len(POSITIONS), HEADS, total)
        values = self.v_pool.clone()
        for first in range(0, total, DIM):
            self.v_pool.zero_()
            for (base, _), document in zip(DOCUMENTS, self.documents, strict=True):
                for token in range(max(0, first - base), min(document.num_tokens, first + DIM - base)):
                    page = int(self.pages[document.first_page + token // self.page_size])
                    self.v_pool[page, token % self.page_size, :, base + token - first] = 1
            count = min(DIM, total - first)
            weights[..., first : first + count] = self.attend(self.segments)[0].float().cpu()[..., :count]
        self.v_pool.copy_(values)
        every = weights.sum((0, 1))
        return torch.stack([every[s.base + s.start :][: s.length].sum() for s in segments if s.length is not None])


class Recorder:
    """An attention that records the rows of each call."""

    def __init__(self, attention: Any) -> None:
        self.spec, self.plan, self.rows = attention.spec, attention.plan, []
        self._attention = attention

    def __call__(self, q: torch.Tensor, *given: Any, **named: Any) -> Any:
        self.rows.append(len(q))
        return self._attention(q, *given, **named)


def pages_of_all(segments: list[lazyrope.Segment]) -> list[lazyrope.Segment]:
    return [page for segment in segments for page in pages_of(segment)]


@pytest.mark.parametrize("page_size", [16, 48])
@pytest.mark.parametrize("changes", SPECS.values(), ids=SPECS)
def test_the_mass_is_the_sum_of_the_weights(changes, page_size):
    problem = Problem(eager.compile(spec_of(**changes)), page_size)
    pages = pages_of_all(problem.segments)
    assert [page.length for page in pages] == [16, 16, 8, 16, 7, 16, 16, 16, 16, 6]
    found = problem.mass(pages).cpu()
    torch.testing.assert_close(found, problem.expected(pages), atol=1e-5, rtol=1e-4)
    if "window" in changes or "chunk" in changes:
        assert found[0] == 0 and found[-1] > 0
    elif not changes:
        assert float(found.sum()) == pytest.approx(HEADS * len(POSITIONS), rel=1e-5)


def test_a_question_that_sees_nothing_has_no_mass():
    problem = Problem(eager.compile(spec_of(mask="sliding_window", window=1)), 16)
    _, lse = problem.attend(problem.segments)
    assert lse.isneginf().all()
    assert (problem.mass(pages_of_all(problem.segments)) == 0).all()


@pytest.mark.parametrize("rows", [1, 4, 9, 20, 1000])
def test_calls_that_are_bounded_give_the_same(rows):
    """The rows of all requests of a call are bounded: less than the question, some pages, or all."""
    problem = Problem(Recorder(eager.compile(spec_of(sinks=True))), 16)
    pages = pages_of_all(problem.segments)
    expected = problem.mass(pages)
    problem.attention.rows.clear()
    found = problem.mass(pages, max_bytes=rows * 4 * HEADS * (2 * DIM + 2))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    own, *calls = problem.attention.rows
    assert own == len(POSITIONS) and max(calls) <= rows
    assert sum(calls) == 2 * len(POSITIONS) * len(pages), "two measurements"
    assert len(calls) == 2 * math.ceil(len(POSITIONS) / min(rows, 9)) * math.ceil(len(pages) / max(1, rows // 9))


@pytest.mark.parametrize("changes", [{}, SPECS["window and sinks"]], ids=["plain", "window and sinks"])
def test_kernels_give_the_mass(changes):
    """The kernels run on a GPU or in the emulator."""
    spec = spec_of(**changes)
    problem = Problem(lazyrope.compile(spec, None if HAS_GPU else "emu:sm_80"), 32, torch.bfloat16)
    pages = pages_of_all(problem.segments)
    found = problem.mass(pages).cpu()
    torch.testing.assert_close(found, problem.expected(pages), atol=1e-2, rtol=1e-2)
    # One object measures questions of any size in turn: its step grows.
    measure, (_, lse) = PageMass(problem.attention, page_size=32), problem.attend(problem.segments)
    for first, last in ((0, 2), (0, 10), (3, 4)):
        question = QuestionPages(spec, POSITIONS, pages[first:last], problem.pages)
        again = measure(question, problem.q, problem.k_pool, problem.v_pool, lse).cpu()
        torch.testing.assert_close(again, found[first:last], atol=1e-5, rtol=1e-5)


def test_pages_count_from_the_beginning_of_the_document():
    document = lazyrope.Document(0, 50)
    assert [(p.start, p.length) for p in pages_of(lazyrope.Segment(document, -7, 20, 25))] == [(20, 12), (32, 13)]
    assert [(p.start, p.length) for p in pages_of(lazyrope.Segment(document, 5))] == [
        (0, 16),
        (16, 16),
        (32, 16),
        (48, 2),
    ]
    assert [p.base for p in pages_of(lazyrope.Segment(document, -7, 20, 25))] == [-7, -7]
    assert pages_of(lazyrope.Segment(document, 0, 50)) == []
    assert len(pages_of(lazyrope.Segment(document, 0), 25)) == 2


def test_mistakes_are_refused():
    problem = Problem(eager.compile(spec_of()), 16)
    with pytest.raises(lazyrope.SpecError, match="positions are empty; the mass is that of at least one query token"):
        QuestionPages(problem.attention.spec, [], problem.segments, problem.pages)
    question = QuestionPages(problem.attention.spec, POSITIONS, problem.segments, problem.pages)
    measure = PageMass(problem.attention)
    _, lse = problem.attend(problem.segments)
    with pytest.raises(lazyrope.SpecError, match=r"q has \[2, 4\] tokens and heads; the question has \[9, 4\]"):
        measure(question, problem.q[:2], problem.k_pool, problem.v_pool, lse)
    with pytest.raises(lazyrope.SpecError, match=r"lse has \[2, 4\] tokens and heads; the question has \[9, 4\]"):
        measure(question, problem.q, problem.k_pool, problem.v_pool, lse[:2])
    nothing = QuestionPages(problem.attention.spec, POSITIONS, [], problem.pages)
    assert len(measure(nothing, problem.q, problem.k_pool, problem.v_pool, lse)) == 0
