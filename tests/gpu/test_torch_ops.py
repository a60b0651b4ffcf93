"""lazyrope.torch in CUDA graphs that the caller or torch.compile captures."""

from __future__ import annotations

import lazyrope.torch
import pytest
import torch
from torch._dynamo.utils import counters

from tests.python.test_torch_ops import Pass, assert_same, make_pass
from tests.support.metadata import step_arguments

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

REPLAYS = 5


@pytest.fixture
def one(build) -> Pass:
    return make_pass(build, "cuda")


@pytest.fixture
def lookups(monkeypatch) -> list[int]:
    """Returns the handles that operators have looked up. A replayed graph looks up none."""
    seen: list[int] = []
    find = lazyrope.torch.find
    monkeypatch.setattr(lazyrope.torch, "find", lambda handle, kind: (seen.append(handle), find(handle, kind))[1])
    return seen


def move(p: Pass, by: int) -> tuple[torch.Tensor, ...]:
    """Refills the step with moved documents and the tensors with new values, and returns the expected result."""
    p.step.update(**step_arguments(p.case.metadata | {"base": p.case.metadata["base"] - by}))
    for tensor in (p.case.q, p.k, p.v):
        tensor.normal_()
    return p.expected()


def test_a_captured_graph_replays_with_other_requests(one, lookups):
    k_pool, v_pool = one.pools()
    out, lse = torch.empty_like(one.case.q), torch.empty(one.case.q.shape[:2], device="cuda")

    def layer() -> None:
        lazyrope.torch.append(one.kernel, one.k, one.v, k_pool, v_pool, one.writes)
        lazyrope.torch.attend(one.kernel, one.case.q, k_pool, v_pool, one.step, out=out, lse=lse)

    layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer()
    lookups.clear()
    for i in range(REPLAYS):
        expected = move(one, 7 * i)
        for tensor in (out, lse, k_pool, v_pool):
            tensor.fill_(torch.nan)
        graph.replay()
        assert_same((out, lse, k_pool, v_pool), expected)
    assert not lookups


def test_compiled_code_replays_with_other_requests(one, lookups):
    torch._dynamo.reset()
    counters.clear()
    k_pool, v_pool = one.pools()
    for pool in (k_pool, v_pool):
        torch._dynamo.mark_static_address(pool)

    @torch.compile(fullgraph=True, mode="reduce-overhead")
    def layer(q, k, v):
        lazyrope.torch.append(one.kernel, k, v, k_pool, v_pool, one.writes)
        return lazyrope.torch.attend(one.kernel, q, k_pool, v_pool, one.step)

    for i in range(3 + REPLAYS):
        if i == 3:  # compiled, warmed up and recorded
            lookups.clear()
        expected = move(one, 7 * i)
        torch.compiler.cudagraph_mark_step_begin()
        out, lse = layer(one.case.q, one.k, one.v)
        assert_same((out, lse, k_pool, v_pool), expected)
    assert not lookups
    assert counters["stats"]["unique_graphs"] == 1 and counters["inductor"]["cudagraph_skips"] == 0
