"""What the project is for: documents that move, with the same physical pages."""

from __future__ import annotations

import lazyrope
import pytest
import torch

from tests.support.cases import Case, Request, Setting, Slice
from tests.support.checks import check_case
from tests.support.shelf import Shelf, in_order
from tests.support.tolerance import error


def answer(case: Case, kernel: lazyrope.Attention) -> tuple[torch.Tensor, torch.Tensor]:
    return kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel, check=True), **case.calls)


ROPES = ["neox", "gptj", "llama3"]


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1], [3, 3, 1, 1]])
def test_any_order_equals_recomputing(build, device, rope, tokens, order):
    """The same pages in another order equal keys computed from scratch for that order."""
    shelf = Shelf(Setting(rope=rope), [100, 33, 64, 257], 1, device)
    q = shelf.queries(tokens)
    lazy = shelf.case(q, [in_order(shelf, order, tokens)])
    kernel = build(shelf.spec)
    check_case(lazy, kernel)
    keys = torch.cat([shelf.raw[i][0] for i in order])
    values = torch.cat([shelf.raw[i][1] for i in order])
    scratch = shelf.add(keys, values, 0)
    recomputed = shelf.case(q, [Request(lazy.requests[0].positions, [Slice(scratch, 0, 0, len(keys))])])
    ours, exact = answer(lazy, kernel)[0], recomputed.reference()[0]
    limit = 3 * error(answer(recomputed, kernel)[0], exact).norm
    assert error(ours, exact).norm <= limit


@pytest.mark.parametrize("cut", [1, 16, 63, 64, 65, 128, 199])
def test_cutting_a_document_changes_nothing(build, device, cut):
    """Two segments of one document, with its base, are as near to fp64 as the document in one."""
    shelf = Shelf(Setting(), [200], 2, device)
    document = shelf.documents[0]
    q = shelf.queries(9)
    positions = list(range(5000, 5009))
    whole = shelf.case(q, [Request(positions, [Slice(document, 4000, 0, 200)])])
    parts = [Slice(document, 4000, 0, cut), Slice(document, 4000, cut, 200 - cut)]
    kernel = build(shelf.spec)
    ours, ours_lse = answer(shelf.case(q, [Request(positions, parts)]), kernel)
    theirs, theirs_lse = answer(whole, kernel)
    exact, _ = whole.reference()
    assert error(ours, exact).norm <= 1.2 * error(theirs, exact).norm
    assert (ours_lse - theirs_lse).abs().max() < 1e-5


@pytest.mark.parametrize("moved", [0, 7, -300, 100_000])
def test_keys_cached_at_absolute_positions_move(build, device, moved):
    """An ordinary engine's keys, rotated for positions P, P + 1, ..., are a document whose token P is its
    first: base 0 where they lie, base d when they have moved by d."""
    shelf = Shelf(Setting(), [150], 3, device)
    keys, values = shelf.raw[0]
    start = 1000
    cached = shelf.add(keys, values, start)
    computed = shelf.add(keys, values, start + moved)
    q = shelf.queries(5)
    positions = [start + moved + 200 + i for i in range(5)]
    kernel = build(shelf.spec)

    def ask(document, base, first):
        request = Request(positions, [Slice(document, base, 0, 150)])
        case = shelf.case(q, [request])
        case.metadata["start"] = torch.full_like(case.metadata["start"], first)
        return answer(case, kernel)[0]

    there = ask(computed, 0, start + moved)
    here = ask(cached, moved, start)
    assert error(here, there.double()).norm < 8e-3


def test_lse_merges_what_two_calls_saw(build, device):
    """Attention over all documents equals the merge of two calls over half of them each."""
    shelf = Shelf(Setting(), [80, 120, 40], 4, device)
    q = shelf.queries(3)
    request = in_order(shelf, [0, 1, 2], 3)
    kernel = build(shelf.spec)
    both, _ = answer(shelf.case(q, [request]), kernel)
    halves = [
        answer(shelf.case(q, [Request(request.positions, part)]), kernel)
        for part in (request.slices[:1], request.slices[1:])
    ]
    weights = torch.softmax(torch.stack([lse for _, lse in halves]), dim=0)
    merged = sum(w[..., None] * out.float() for w, (out, _) in zip(weights, halves, strict=True))
    assert error(merged, both.double()).norm < 5e-3


def test_one_pool_copy_serves_requests_at_different_positions(build, device):
    shelf = Shelf(Setting(), [64, 200], 5, device)
    requests = [
        Request([900], [Slice(shelf.documents[1], 500, 0, 200)]),
        Request([70_000], [Slice(shelf.documents[1], 60_000, 0, 200), Slice(shelf.documents[0], 61_000, 0, 64)]),
        Request([150], [Slice(shelf.documents[1], -100, 0, 200)]),
    ]
    case = shelf.case(shelf.queries(3), requests)
    check_case(case, build(shelf.spec))
