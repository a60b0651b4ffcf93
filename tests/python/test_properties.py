"""Documents move to other positions and orders with the same physical pages."""

from __future__ import annotations

import lazyrope
import pytest
import torch

from tests.support.cases import Case, Request, Setting, Slice
from tests.support.checks import check_case
from tests.support.document_fixture import DocumentFixture, in_order
from tests.support.tolerance import error


def answer(case: Case, kernel: lazyrope.Attention) -> tuple[torch.Tensor, torch.Tensor]:
    return kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel, check=True), **case.call_arguments)


ROPES = ["neox", "gptj", "llama3"]


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1], [3, 3, 1, 1]])
def test_documents_in_any_order_equal_recomputed_keys(build, device, rope, tokens, order):
    """The same pages in another order give the result of keys recomputed for that order."""
    fixture = DocumentFixture(Setting(rope=rope), [100, 33, 64, 257], 1, device)
    q = fixture.queries(tokens)
    lazy = fixture.case(q, [in_order(fixture, order, tokens)])
    kernel = build(fixture.spec)
    check_case(lazy, kernel)
    keys = torch.cat([fixture.raw[i][0] for i in order])
    values = torch.cat([fixture.raw[i][1] for i in order])
    scratch = fixture.add(keys, values, 0)
    recomputed = fixture.case(q, [Request(lazy.requests[0].positions, [Slice(scratch, 0, 0, len(keys))])])
    ours, exact = answer(lazy, kernel)[0], recomputed.reference()[0]
    limit = 3 * error(answer(recomputed, kernel)[0], exact).norm
    assert error(ours, exact).norm <= limit


@pytest.mark.parametrize("cut", [1, 16, 63, 64, 65, 128, 199])
def test_cutting_a_document_changes_nothing(build, device, cut):
    """Two segments of one document with the same base are as close to fp64 as one segment."""
    fixture = DocumentFixture(Setting(), [200], 2, device)
    document = fixture.documents[0]
    q = fixture.queries(9)
    positions = list(range(5000, 5009))
    whole = fixture.case(q, [Request(positions, [Slice(document, 4000, 0, 200)])])
    parts = [Slice(document, 4000, 0, cut), Slice(document, 4000, cut, 200 - cut)]
    kernel = build(fixture.spec)
    ours, ours_lse = answer(fixture.case(q, [Request(positions, parts)]), kernel)
    theirs, theirs_lse = answer(whole, kernel)
    exact, _ = whole.reference()
    assert error(ours, exact).norm <= 1.2 * error(theirs, exact).norm
    assert (ours_lse - theirs_lse).abs().max() < 1e-5


@pytest.mark.parametrize("moved", [0, 7, -300, 100_000])
def test_keys_cached_at_absolute_positions_can_move(build, device, moved):
    """Keys that an engine rotated for positions P, P + 1, ... are a document whose first token has index P.

    The base is 0 at their old position, and d after a move by d.
    """
    fixture = DocumentFixture(Setting(), [150], 3, device)
    keys, values = fixture.raw[0]
    start = 1000
    cached = fixture.add(keys, values, start)
    computed = fixture.add(keys, values, start + moved)
    q = fixture.queries(5)
    positions = [start + moved + 200 + i for i in range(5)]
    kernel = build(fixture.spec)

    def ask(document, base, first):
        request = Request(positions, [Slice(document, base, 0, 150)])
        case = fixture.case(q, [request])
        case.metadata["start"] = torch.full_like(case.metadata["start"], first)
        return answer(case, kernel)[0]

    there = ask(computed, 0, start + moved)
    here = ask(cached, moved, start)
    assert error(here, there.double()).norm < 8e-3


def test_lse_combines_the_results_of_two_calls(build, device):
    """Attention over all documents equals the combined results of two calls, each over some of them."""
    fixture = DocumentFixture(Setting(), [80, 120, 40], 4, device)
    q = fixture.queries(3)
    request = in_order(fixture, [0, 1, 2], 3)
    kernel = build(fixture.spec)
    both, _ = answer(fixture.case(q, [request]), kernel)
    halves = [
        answer(fixture.case(q, [Request(request.positions, part)]), kernel)
        for part in (request.slices[:1], request.slices[1:])
    ]
    weights = torch.softmax(torch.stack([lse for _, lse in halves]), dim=0)
    merged = sum(w[..., None] * out.float() for w, (out, _) in zip(weights, halves, strict=True))
    assert error(merged, both.double()).norm < 5e-3


def test_one_pool_copy_serves_requests_at_different_positions(build, device):
    fixture = DocumentFixture(Setting(), [64, 200], 5, device)
    requests = [
        Request([900], [Slice(fixture.documents[1], 500, 0, 200)]),
        Request([70_000], [Slice(fixture.documents[1], 60_000, 0, 200), Slice(fixture.documents[0], 61_000, 0, 64)]),
        Request([150], [Slice(fixture.documents[1], -100, 0, 200)]),
    ]
    case = fixture.case(fixture.queries(3), requests)
    check_case(case, build(fixture.spec))
