"""Batches of host lists give the same results as device tensors."""

from __future__ import annotations

from dataclasses import replace

import lazyrope
import pytest
import torch
from lazyrope import Document, Request, Segment, StepCapacity

from tests.support.cases import Case, Setting, random_case
from tests.support.checks import check_case

SETTINGS = [
    Setting(phase="mixed"),
    Setting(phase="decode", head_dim=64, layout="HND", page_size=32),
    Setting(phase="chunk", query_form="rotated", page_size=48),
]


def requests_of(case: Case) -> list[Request]:
    """Returns the host lists of a case. Documents may begin inside a page, and segments inside a document."""
    return [
        Request(
            request.positions,
            [
                Segment(
                    Document(s.document.first_page, s.document.length, s.document.lead),
                    s.base + s.shift,
                    s.start,
                    s.length,
                    s.base if s.shift else None,
                )
                for s in request.slices
            ],
        )
        for request in case.requests
    ]


def plan(case: Case, kernel: lazyrope.Attention, batch: lazyrope.Batch, **options: object) -> lazyrope.Step:
    return kernel.plan(batch, page_size=case.setting.page_size, layout=case.setting.layout, check=True, **options)


def ints(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.phase)
def test_random_batches_agree_with_fp64(setting, build, device):
    for seed in range(5):
        case = random_case(setting, seed, device)
        batch = lazyrope.batch(requests_of(case), case.metadata["pages"])
        assert batch.num_requests == len(case.requests) and batch.num_tokens == len(case.q)
        assert batch.num_segments == len(case.metadata["base"]) and batch.pages is case.metadata["pages"]
        check_case(case, build(case.spec), plan(case, build(case.spec), batch))


def test_a_batch_and_its_step_are_refilled(build, device):
    setting = Setting(phase="mixed")
    cases = [random_case(setting, seed, device) for seed in (11, 12, 13, 14)]
    kernel = build(cases[0].spec)
    pages = ints([0] * max(len(case.metadata["pages"]) for case in cases), device)
    batch = lazyrope.Batch(pages, capacity=StepCapacity(requests=8, segments=200, query_tokens=1024))
    step = plan(cases[0], kernel, batch)
    assert step.capacity == batch.capacity and step.num_tokens == 0
    for case in cases:
        pages[: len(case.metadata["pages"])] = case.metadata["pages"]
        batch.fill(requests_of(case))
        step.update(batch, check=True)
        check_case(case, kernel, step)


def test_a_step_takes_tensors_and_batches_in_turn(build, device):
    case, other = (random_case(Setting(phase="decode"), seed, device) for seed in (3, 4))
    kernel = build(case.spec)
    capacity = StepCapacity(requests=16, segments=300, query_tokens=64)
    step = case.plan(kernel, capacity=capacity)
    check_case(case, kernel, step)
    step.update(lazyrope.batch(requests_of(other), other.metadata["pages"]), check=True)  # the step keeps the batch
    check_case(other, kernel, step)


def test_positions_are_a_list_a_range_or_one_int(build, device):
    pages = ints([3, 1, 0], device)
    whole = Segment(Document(0, 40), base=100)
    kernel = build(Setting().spec())
    k_pool, v_pool = (torch.randn((4, 16, 2, 128), device=device).to(torch.bfloat16) for _ in "kv")
    q = torch.randn((3, 8, 128), device=device).to(torch.bfloat16)

    def attend(*positions: object) -> torch.Tensor:
        step = kernel.plan(lazyrope.batch([Request(p, [whole]) for p in positions], pages), check=True)
        return kernel(q[: step.num_tokens], k_pool, v_pool, step)[0]

    expected = attend([150, 151, 152])
    assert torch.equal(attend(range(150, 153)), expected)
    assert torch.equal(attend(torch.arange(150, 153)), expected)
    assert torch.equal(attend(range(152, 149, -1)), attend([152, 151, 150]))
    assert torch.equal(attend(150), attend([150]))
    assert attend(range(0)).shape == (0, 8, 128)


def test_any_object_with_the_attributes_of_a_document_is_accepted(device):
    class Stored:
        first_page, num_tokens, lead = 1, 20, 0

    pages = ints([0, 1, 2], device)
    batch = lazyrope.batch([Request(30, [Segment(Stored(), base=0)])], pages)
    assert batch.num_segments == 1
    assert batch.capacity == StepCapacity(requests=1, segments=1, query_tokens=1, tokens_per_request=1)


def test_documents_of_a_store_are_accepted(device):
    documents = pytest.importorskip("lazyrope.documents")
    store = documents.DocumentStore(Setting().spec(), num_layers=1, budget="1MiB", device=device)
    document, _ = store.acquire(list(range(40)))
    batch = lazyrope.batch([Request(40, [Segment(document, base=0)])], store.pages)
    assert batch.num_segments == 1


def test_an_empty_batch_plans_a_step_without_tokens(build, device):
    batch = lazyrope.batch([], ints([0], device))
    step = build(Setting().spec()).plan(batch, check=True)
    assert batch.capacity == StepCapacity(0, 0, 0, 0) and step.num_tokens == 0


DOCUMENT = Document(first_page=0, num_tokens=40)


def pair(*segments: object, positions: object = 50) -> list[Request]:
    """Returns a request without segments, and one with the segments."""
    return [Request(0, []), Request(positions, segments)]


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        (7, "requests is a int; it must be a list of lazyrope.Request"),
        ([(0, 3)], "request 0 is a tuple; it must be a lazyrope.Request"),
        (pair(positions=[1, 2**31]), "request 1: position 2147483648; it must be an int of 32 bits"),
        (pair(positions=range(2**31, 2**31 + 2)), "request 1: position 2147483648; it must be an int of 32 bits"),
        (pair(positions=[1.5]), "request 1: position 1.5; it must be an int of 32 bits"),
        (pair(positions=2.5), "request 1: positions is a float; it must be a list of ints, a range, or an int"),
        ([Request(0, DOCUMENT)], "request 0: segments is a Document; it must be a list of lazyrope.Segment"),
        (pair(DOCUMENT), "request 1, segment 0 is a Document; it must be a lazyrope.Segment"),
        (pair(Segment("a text", 0)), "request 1, segment 0: document is a str; it must be a lazyrope.Document, or"),
        (pair(Segment(DOCUMENT, 0), Segment(DOCUMENT, 2**40)), "request 1, segment 1: base = 1099511627776; it must"),
        (pair(Segment(DOCUMENT, 0, -1)), "request 1, segment 0: start = -1; it must be at least 0"),
        (pair(Segment(DOCUMENT, 0, 0, -3)), "request 1, segment 0: length = -3; it must be at least 0"),
        (
            pair(Segment(DOCUMENT, 0, 30, 11)),
            "request 1, segment 0: start + length = 41; the document has 40 tokens",
        ),
        (pair(Segment(DOCUMENT, 0, 41)), "request 1, segment 0: start = 41"),
        (pair(Segment(Document(-1, 4), 0)), "request 1, segment 0: document.first_page = -1; it must be at least 0"),
        (pair(Segment(Document(0, 4, -2), 0)), "request 1, segment 0: document.lead = -2; it must be at least 0"),
        (
            pair(Segment(DOCUMENT, 2**31 - 30)),
            "request 1, segment 0: base + start + length = 2147483658; it must be at most 2147483647",
        ),
    ],
)
def test_bad_requests_are_refused_by_name(requests, says, device):
    pages = ints([0, 1, 2], device)
    with pytest.raises(lazyrope.SpecError) as made:
        lazyrope.batch(requests, pages)
    assert str(made.value).startswith(says)
    batch = lazyrope.batch(pair(Segment(DOCUMENT, 0)), pages, capacity=StepCapacity(9, 9, 9))
    with pytest.raises(lazyrope.SpecError) as filled:
        batch.fill(requests)
    assert str(filled.value) == str(made.value)
    assert (batch.num_requests, batch.num_segments, batch.num_tokens) == (2, 1, 2), "the previous fill is lost"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"requests": 1}, "2 requests are 1 more than the batch has room for (1)"),
        ({"segments": 0}, "3 segments are 3 more than the batch has room for (0)"),
        ({"query_tokens": 4}, "6 query tokens are 2 more than the batch has room for (4)"),
        ({"tokens_per_request": 3}, "5 query tokens of request 1 are 2 more than the batch has room for (3)"),
    ],
)
def test_an_exceeded_capacity_is_named(change, says, device):
    requests = pair(*[Segment(DOCUMENT, 0)] * 3, positions=range(5))
    enough = StepCapacity(requests=2, segments=3, query_tokens=6, tokens_per_request=5)
    assert lazyrope.batch(requests, ints([0, 1, 2], device)).capacity == enough
    with pytest.raises(lazyrope.SpecError) as error:
        lazyrope.batch(requests, ints([0, 1, 2], device), replace(enough, **change))
    assert str(error.value) == f"{says}: make one of greater capacity, or give fewer"


def test_pages_are_checked_when_the_page_size_is_known(build, device):
    kernel = build(Setting().spec())
    batch = lazyrope.batch(pair(Segment(DOCUMENT, 0), Segment(Document(2, 33), 0)), ints([0, 1, 2, 3], device))
    with pytest.raises(
        lazyrope.SpecError, match=r"request 1, segment 1: its last page is element 4 of pages, which has 4 elements"
    ):
        kernel.plan(batch)
    kernel.plan(batch, page_size=32)
    low = lazyrope.batch(pair(Segment(Document(0, 40, lead=5), -(2**31))), ints([0, 1, 2, 3], device))
    with pytest.raises(
        lazyrope.SpecError,
        match="request 1, segment 0: slot 0 of its first page would have the logical position -2147483653",
    ):
        kernel.plan(low)


def test_bad_arguments_of_a_batch_are_refused(build, device):
    with pytest.raises(lazyrope.SpecError, match=r"capacity is a dict; it must be a lazyrope\.StepCapacity"):
        lazyrope.Batch(ints([0], device), capacity={"requests": 3})
    with pytest.raises(lazyrope.SpecError, match="capacity: segments = -1; it must be at least 0"):
        lazyrope.Batch(ints([0], device), capacity=StepCapacity(1, -1, 1))
    with pytest.raises(lazyrope.SpecError, match="pages is int64"):
        lazyrope.Batch(ints([0], device).long(), capacity=StepCapacity(1, 1, 1))
    batch = lazyrope.batch(pair(Segment(DOCUMENT, 0)), ints([0, 1, 2], device))
    with pytest.raises(lazyrope.SpecError, match="2 requests; the step was made for at most 1"):
        build(Setting().spec()).plan(batch, capacity=StepCapacity(1, 1, 2))
