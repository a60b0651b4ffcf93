"""Tests of CUDA graphs: replays after updates, and what a capture allows or refuses."""

from __future__ import annotations

import lazyrope
import pytest
import torch

from tests.support import eager, reference
from tests.support.cases import Case, Setting, random_case
from tests.support.metadata import step_arguments
from tests.support.shared_steps import always_shares, shared_case
from tests.support.tolerance import assert_close, assert_lse_close

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    "setting",
    [
        Setting(phase="mixed"),
        Setting(phase="decode", head_dim=64, layout="HND"),
        Setting(phase="mixed", key_form="raw"),
        Setting(cascade=True),
    ],
)
def test_a_graph_replays_with_other_requests(setting):
    """With raw keys, the scratch of the step suffices for some requests and not for others.

    With a cascade, each step shares other segments, or none.
    """
    make_case = shared_case if setting.cascade else random_case
    cases = [make_case(setting, seed, "cuda") for seed in range(40, 140)]
    kernel = that_shares(cases[0].spec) if setting.cascade else lazyrope.compile(cases[0].spec)
    tokens = max(len(c.q) for c in cases)
    pages = max(len(c.k_pool) for c in cases)
    q = torch.zeros((tokens, *cases[0].q.shape[1:]), dtype=cases[0].q.dtype, device="cuda")
    k_pool, v_pool = (torch.zeros((pages, *cases[0].k_pool.shape[1:]), dtype=q.dtype, device="cuda") for _ in range(2))
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], device="cuda")
    segments = max(len(c.metadata["base"]) for c in cases)
    capacity = lazyrope.StepCapacity(requests=16, segments=segments, query_tokens=tokens, rotated_tokens=800)
    step = cases[0].plan(kernel, capacity=capacity)

    graph = torch.cuda.CUDAGraph()
    kernel(q, k_pool, v_pool, step, out=out, lse=lse)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kernel(q, k_pool, v_pool, step, out=out, lse=lse)

    for case in cases:
        n = len(case.q)
        q[:n].copy_(case.q)
        k_pool[: len(case.k_pool)].copy_(case.k_pool)
        v_pool[: len(case.v_pool)].copy_(case.v_pool)
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        step.update(**step_arguments(case.metadata))
        graph.replay()
        exact, exact_lse = case.reference()
        assert_close(out[:n], exact, eager.attention(case))
        assert_lse_close(lse[:n], exact_lse, q.dtype)


def that_shares(spec: lazyrope.AttentionSpec) -> lazyrope.Attention:
    """Compiles a spec with a cascade so that its steps share all that they can."""
    return lazyrope.compile(spec, config=always_shares(lazyrope.configs(spec)[0]))


class Refilled:
    """Tensors of one size for all cases, which a graph reads and each case refills. Their tails are zero."""

    def __init__(self, cases: list[Case]) -> None:
        self.metadata = self._of_greatest([case.metadata for case in cases])
        self.inputs = self._of_greatest([self._inputs(case) for case in cases])

    @staticmethod
    def _of_greatest(filled: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {name: torch.zeros_like(max((tensors[name] for tensors in filled), key=len)) for name in filled[0]}

    @staticmethod
    def _inputs(case: Case) -> dict[str, torch.Tensor]:
        return {"q": case.q, "k_pool": case.k_pool, "v_pool": case.v_pool}

    def fill(self, case: Case) -> None:
        for held, given in ((self.metadata, case.metadata), (self.inputs, self._inputs(case))):
            for name, tensor in held.items():
                tensor.zero_()
                tensor[: len(given[name])].copy_(given[name])


def test_a_captured_update_finds_the_segments_that_requests_share():
    """One graph has the update and the call of a step with a cascade. Each replay shares other segments, or none."""
    cases = [shared_case(Setting(cascade=True), seed, "cuda") for seed in range(40, 80)]
    kernel = that_shares(cases[0].spec)
    held = Refilled(cases)
    held.fill(cases[0])
    q = held.inputs["q"]
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], device="cuda")
    step = kernel.plan(**step_arguments(held.metadata), page_size=cases[0].setting.page_size)

    def plan_and_attend() -> None:
        step.update(**step_arguments(held.metadata))
        kernel(**held.inputs, step=step, out=out, lse=lse)

    plan_and_attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan_and_attend()
    for case in cases:
        held.fill(case)
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        graph.replay()
        exact, exact_lse = case.reference()
        n = len(case.q)
        assert_close(out[:n], exact, eager.attention(case))
        assert_lse_close(lse[:n], exact_lse, q.dtype)


def one_token_tensors(pages: list[int]) -> dict[str, torch.Tensor]:
    """Returns the tensors of a step with one query token, at position 0, and a document of one token."""
    values = {
        "q_indptr": [0, 1],
        "q_position": [0],
        "segment_indptr": [0, 1],
        "base": [0],
        "start": [0],
        "length": [1],
        "first_page": [0],
        "pages": pages,
    }
    return {name: torch.tensor(value, dtype=torch.int32, device="cuda") for name, value in values.items()}


def assert_last_token_attends(
    out: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spec: lazyrope.AttentionSpec
) -> None:
    """Compares with the query of the last token over the raw keys [tokens, kv_heads, head_dim] of all tokens."""
    tokens = len(keys)
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    rotated = reference.rotate(keys, torch.arange(tokens, device="cuda"), frequencies, spec.head_dim)
    exact, _ = reference.attention(
        q,
        torch.tensor([tokens - 1], device="cuda"),
        [reference.Segment(rotated.to(keys.dtype), values, 0, 0)],
        frequencies=frequencies,
        rotary_dim=spec.head_dim,
        query_rotated=False,
        mask="causal",
        scale=spec.scale,
    )
    assert (out.double() - exact).norm() / exact.norm() < 8e-3


def test_update_and_append_can_be_captured():
    """One graph has a whole decode step: update, append and attend, with tensors refilled in place."""
    spec = Setting(phase="decode", kv_heads=2).spec()
    kernel = lazyrope.compile(spec)
    tensors = one_token_tensors(pages=[3, 1, 0, 2])
    one, pages = step_arguments(tensors), tensors["pages"]
    k, v = (torch.zeros((1, 2, 128), dtype=torch.bfloat16, device="cuda") for _ in range(2))
    q = torch.zeros((1, 8, 128), dtype=torch.bfloat16, device="cuda")
    k_pool, v_pool = (torch.full((4, 16, 2, 128), torch.nan, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    step = kernel.plan(**one)
    index = torch.tensor([0], dtype=torch.int32, device="cuda")  # index and slot of the appended token
    spans = lazyrope.TokenSpans(one["q_indptr"], index, index * 0, index)
    writes = kernel.plan_append(spans, pages, capacity=lazyrope.AppendCapacity(1))
    out = torch.empty_like(q)

    def token():
        step.update(**one)
        writes.update(lazyrope.TokenSpans(one["q_indptr"], index, torch.zeros_like(index), index), pages)
        kernel.append(k, v, k_pool, v_pool, writes)
        kernel(q, k_pool, v_pool, step, out=out, return_lse=False)

    token()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token()
    keys, values = [], []
    for i in range(40):
        keys.append(torch.randn_like(k))
        values.append(torch.randn_like(v))
        k.copy_(keys[-1])
        v.copy_(values[-1])
        q.normal_()
        index.fill_(i)
        tensors["length"].fill_(i + 1)
        tensors["q_position"].fill_(i)
        graph.replay()
    assert_last_token_attends(out, q, torch.cat(keys), torch.cat(values), spec)


def test_an_update_from_a_slot_mapping_can_be_captured():
    """A replay reads the slot mapping again, so rows may be skipped or moved by writing to the tensors."""
    kernel = lazyrope.compile(Setting(query_form="rotated").spec())
    mapping, index = (torch.tensor(values, device="cuda") for values in ([0, -1, 35], [0, 0, 7]))
    slots = lazyrope.TokenSlots(mapping, index)
    k, v = (torch.randn((3, 2, 128), device="cuda").to(torch.bfloat16) for _ in "kv")
    k_pool, v_pool = (torch.zeros((4, 16, 2, 128), dtype=torch.bfloat16, device="cuda") for _ in "kv")
    writes = kernel.plan_append(slots, capacity=lazyrope.AppendCapacity(3))
    kernel.append(k, v, k_pool, v_pool, writes)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        writes.update(slots)
        kernel.append(k, v, k_pool, v_pool, writes)
    for values in ([0, -1, 35], [-1, 60, 2], [-1, -1, -1], [5, 4, 3]):
        mapping.copy_(torch.tensor(values))
        k_pool.zero_()
        v_pool.zero_()
        graph.replay()
        kept = [row for row, slot in enumerate(values) if slot >= 0]
        at = [values[row] for row in kept]
        for pool, rows in ((k_pool, k), (v_pool, v)):
            expected = torch.zeros_like(pool)
            expected.flatten(0, 1)[at] = rows[kept]
            assert torch.equal(pool, expected)


def test_check_is_refused_in_capture():
    case = random_case(Setting(phase="decode"), 1, "cuda")
    kernel = lazyrope.compile(case.spec)
    step = case.plan(kernel)
    out = torch.empty_like(case.q)
    kernel(case.q, case.k_pool, case.v_pool, step, out=out, return_lse=False)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(case.q, case.k_pool, case.v_pool, step, out=out, return_lse=False)
        with pytest.raises(lazyrope.SpecError, match="captured"):
            kernel(case.q, case.k_pool, case.v_pool, step, out=out, return_lse=False, check=True)
        with pytest.raises(lazyrope.SpecError, match="captured"):
            step.update(**step_arguments(case.metadata), check=True)


def test_steps_made_and_freed_during_a_capture_do_not_break_it(build, device):
    """The garbage collector may free a step during a capture."""
    case = random_case(Setting(phase="decode"), 7, device)
    kernel = build(case.spec)
    step, other = case.plan(kernel), case.plan(kernel)
    out = torch.empty_like(case.q)
    kernel(case.q, case.k_pool, case.v_pool, step, out=out, return_lse=False)
    expected = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        del other
        made = case.plan(kernel)
        kernel(case.q, case.k_pool, case.v_pool, step, out=out, return_lse=False)
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected) and made.num_tokens == step.num_tokens


def test_a_step_made_in_a_capture_works_before_its_replay(build, device):
    """plan() zeroes the counters at once, not inside the graph, so the step works before the first replay."""
    case = random_case(Setting(phase="decode"), 7, device)
    kernel = build(case.spec)
    expected, _ = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step = case.plan(kernel)
    for _ in range(2):
        step.update(**step_arguments(case.metadata))
        out, _ = kernel(case.q, case.k_pool, case.v_pool, step)
        assert torch.equal(out, expected)
        graph.replay()


def requests_at(shift: int) -> list[lazyrope.Request]:
    """Returns two requests over up to three documents. `shift` changes their positions, order and slices."""
    documents = [lazyrope.Document(0, 100), lazyrope.Document(7, 40, lead=3), lazyrope.Document(10, 33)]
    segments = [
        lazyrope.Segment(documents[(shift + i) % 3], base=100 * i + shift, start=shift % 7, length=20 + shift % 5)
        for i in range(1 + shift % 3)
    ]
    return [lazyrope.Request(400 + shift, segments), lazyrope.Request(range(500, 500 + 1 + shift % 2), segments[:1])]


@pytest.fixture
def served():
    """Returns a kernel, queries for requests_at(), the pools and the page list."""
    kernel = lazyrope.compile(Setting(head_dim=64).spec())
    k_pool, v_pool = (torch.randn((13, 16, 2, 64), device="cuda").to(torch.bfloat16) for _ in "kv")
    q = torch.randn((3, 8, 64), device="cuda").to(torch.bfloat16)
    return kernel, q, k_pool, v_pool, torch.randperm(13, device="cuda").int()


CAPACITY = lazyrope.StepCapacity(requests=2, segments=4, query_tokens=3)


def test_a_graph_replays_with_the_last_fill_of_a_batch(served):
    """The host refills the batch while the device is still busy.

    Each update must upload the requests of the fill just before it.
    """
    kernel, q, k_pool, v_pool, pages = served
    expected = []
    for shift in range(40):
        step = kernel.plan(lazyrope.batch(requests_at(shift), pages, CAPACITY), check=True)
        expected.append(kernel(q[: step.num_tokens], k_pool, v_pool, step)[0])
    batch = lazyrope.Batch(pages, capacity=CAPACITY)
    step = kernel.plan(batch)
    out = torch.empty_like(q)
    kernel(q, k_pool, v_pool, step, out=out, return_lse=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(q, k_pool, v_pool, step, out=out, return_lse=False)
    torch.cuda.synchronize()
    results = []
    for shift in range(40):
        torch.cuda._sleep(2_000_000)
        batch.fill(requests_at(shift))
        step.update(batch)
        graph.replay()
        results.append(out[: step.num_tokens].clone())
    for result, exact in zip(results, expected, strict=True):
        assert torch.equal(result, exact)


def test_a_batch_is_refused_in_capture(served):
    kernel, _, _, _, pages = served
    batch = lazyrope.batch(requests_at(0), pages, CAPACITY)
    step = kernel.plan(batch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(lazyrope.SpecError, match="outside the capture"):
        step.update(batch)
    step.update(batch, check=True)


def test_batches_can_be_made_and_freed_during_a_capture(served):
    """A batch allocates and frees its memory although a stream is being captured."""
    kernel, q, k_pool, v_pool, pages = served
    step = kernel.plan(lazyrope.batch(requests_at(0), pages, CAPACITY))
    out = torch.empty_like(q)
    kernel(q, k_pool, v_pool, step, out=out, return_lse=False)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        other = lazyrope.batch(requests_at(1), pages, CAPACITY)
        kernel(q, k_pool, v_pool, step, out=out, return_lse=False)
        del other
    graph.replay()
    torch.cuda.synchronize()
