"""The attention mass of pages that kernels give equals the sum of the softmax's weights in fp64."""

from __future__ import annotations

from dataclasses import replace

import lazyrope
import pytest
import torch
from lazyrope import eager

from tests.support.cases import Setting, documents_case, random_case
from tests.support.checks import check_case
from tests.support.document_fixture import DocumentFixture, in_order
from tests.support.page_mass import assert_masses_close, check_masses, mass_pages, measure, plan, reference, updated

SETTINGS = {
    "plain": Setting(head_dim=64, page_mass=True),
    "window": Setting(head_dim=64, page_mass=True, mask="sliding_window", page_size=48),
    "chunked": Setting(head_dim=64, page_mass=True, mask="chunked", group=1, kv_heads=3),
    "scores": Setting(head_dim=128, page_mass=True, scores="softcap and sinks", rope="gptj", group=8),
    "rotated queries": Setting(head_dim=64, page_mass=True, query_form="rotated", rope="yarn", dtype="float16"),
    "fp8": Setting(head_dim=64, page_mass=True, kv_dtype="float8_e4m3fn", layout="HND", page_size=32),
    "raw keys": Setting(head_dim=64, page_mass=True, key_form="raw"),
    "batch invariant": Setting(head_dim=64, page_mass=True, batch_invariant=True),
    "temperature": Setting(head_dim=64, page_mass=True, scores="temperature", mask="full"),
}
HOPPER = {
    "plain": Setting(head_dim=128, page_mass=True),
    "scores": Setting(head_dim=64, page_mass=True, scores="softcap and sinks", mask="sliding_window", kv_heads=1),
    "fp8": Setting(head_dim=128, page_mass=True, kv_dtype="float8_e5m2", page_size=64, kv_heads=1),
    "long head_dim": Setting(head_dim=256, page_mass=True, kv_heads=1, group=2),
    "padded head_dim": Setting(head_dim=72, page_mass=True, kv_heads=1, group=2),
    "float16": Setting(head_dim=192, page_mass=True, kv_heads=1, group=2, dtype="float16"),
    "batch invariant": Setting(head_dim=64, page_mass=True, batch_invariant=True, kv_heads=1, group=16),
    "raw keys": Setting(head_dim=64, page_mass=True, key_form="raw", kv_heads=1),
}
PHASES = ("decode", "chunk", "mixed")
# The seeds of a step of each phase with many segments, some of which have no tokens.
MANY_SEGMENTS = (6, 13, 17)


def step_mass(kernel: lazyrope.Attention, setting: Setting, seed: int, device: str) -> float:
    """Checks the masses of a random step. Returns their sum."""
    case = random_case(replace(setting, phase=PHASES[seed % 3]), seed, device)
    return float(check_masses(case, kernel, plan(case, kernel)).sum())


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SETTINGS)
def test_random_steps_agree_with_fp64(build, device, name, pytestconfig):
    """The steps have zero-length segments, slices, requests without segments, and queries that see nothing."""
    kernel = build(SETTINGS[name].spec())
    for seed in range(60 if device == "cuda" else 6 if pytestconfig.getoption("soak") else 0):
        step_mass(kernel, SETTINGS[name], seed, device)
    for seed in MANY_SEGMENTS:
        assert step_mass(kernel, SETTINGS[name], seed, device) > 1, "the step tests too little"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs its own family; the emulator searches for races")
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", HOPPER)
def test_random_steps_of_hopper_agree_with_fp64_and_have_no_races(name):
    kernel = lazyrope.compile(HOPPER[name].spec(), arch="emu:sm_90a")
    prefill = documents_case(HOPPER[name], [70, 23, 40], 40, "cpu")
    with lazyrope.emulator.options(races=True):
        for case in (random_case(replace(HOPPER[name], phase="decode"), 0, "cpu"), prefill):
            assert float(check_masses(case, kernel, plan(case, kernel)).sum()) > 10, "the step tests too little"


@pytest.mark.skipif(torch.cuda.is_available(), reason="test_random_steps_agree_with_fp64 runs on the GPU's family")
def test_keys_that_are_rotated_in_scratch_have_the_same_masses():
    """Segments have other slots in the scratch than in the pool, whose pages have more than 16."""
    setting = replace(HOPPER["raw keys"], page_size=48)
    kernel = lazyrope.compile(setting.spec(), arch="emu:sm_90a")
    fixture = DocumentFixture(setting, [140, 23, 61], 40, "cpu")
    case = fixture.case(fixture.queries(40), [in_order(fixture, [1, 0, 2], 40)])
    for scratch in (0, 16 * mass_pages(case, [1])):
        step = plan(case, kernel, rotated_tokens=scratch)
        assert step.capacity.rotated_tokens == scratch
        check_masses(case, kernel, step)


@pytest.mark.parametrize("arch", [None, "emu:sm_90a"])
def test_kv_splits_give_terms_of_one_request(build, arch):
    """One long request is cut into KV splits, in decode and in a chunk; its masses add up to rows times heads."""
    if arch is not None and torch.cuda.is_available():
        pytest.skip("the GPU runs its own family")
    setting = Setting(head_dim=64, page_mass=True, kv_heads=1)
    kernel = lazyrope.compile(setting.spec(), arch=arch) if arch else build(setting.spec())
    device = "cuda" if arch is None and torch.cuda.is_available() else "cpu"
    for tokens in (1, 40):
        case = documents_case(setting, [1500, 131, 900], tokens, device)
        mass = check_masses(case, kernel, plan(case, kernel))
        assert float(mass.sum()) == pytest.approx(tokens * setting.group, rel=1e-3)


def test_the_call_without_masses_is_that_of_a_spec_without_them(build, device):
    setting = SETTINGS["plain"]
    kernel, other = build(setting.spec()), build(replace(setting, page_mass=False).spec())
    case = random_case(setting, 8, device)
    outs = [k(case.q, case.k_pool, case.v_pool, case.plan(k), **case.call_arguments) for k in (kernel, other)]
    for ours, theirs in zip(*outs, strict=True):
        assert torch.equal(ours, theirs)
    check_case(case, kernel)


def test_only_the_last_query_tokens_count(build, device):
    setting = replace(SETTINGS["plain"], phase="mixed")
    kernel = build(setting.spec())
    for seed in (1, 2, 5):
        case = random_case(setting, seed, device)
        counted = [max(0, min(len(request.positions), 3 - i)) for i, request in enumerate(case.requests)]
        check_masses(case, kernel, plan(case, kernel, counted), counted)
    case.metadata["mass_tokens"].fill_(-7)
    exact = reference(case, [0] * len(case.requests))
    assert bool((measure(case, kernel, updated(case, plan(case, kernel)), len(exact)) == 0).all())


def test_an_updated_step_keeps_nothing_of_its_last_requests(build, device):
    setting = SETTINGS["window"]
    kernel = build(setting.spec())
    cases = [
        random_case(replace(setting, phase=phase), seed, device) for seed, phase in enumerate(("chunk", "mixed") * 2)
    ]
    step = plan(cases[0], kernel, requests=8, segments=300, query_tokens=800, mass_pages=20000)
    for case in cases:
        check_masses(case, kernel, updated(case, step))


def test_a_batch_numbers_its_pages_and_finds_the_room(build, device):
    setting = replace(SETTINGS["plain"], page_size=32)
    kernel = build(setting.spec())
    case = documents_case(setting, [40, 23, 70], 9, device)
    pages = case.metadata["pages"]
    documents = [lazyrope.Document(s.document.first_page, s.document.length) for s in case.requests[0].slices]
    segments = [lazyrope.Segment(d, s.base) for d, s in zip(documents, case.requests[0].slices, strict=True)]
    positions = case.requests[0].positions
    batch = lazyrope.batch([lazyrope.Request(positions, segments)], pages)
    assert batch.page_indptr == [0, 3, 5, 10]
    assert batch.mass_pages == 90
    assert lazyrope.batch([lazyrope.Request(positions, segments, mass_tokens=4)], pages).mass_pages == 40
    slices = [
        lazyrope.Segment(documents[0], 0, 20, 12),
        lazyrope.Segment(documents[0], 0, 40),
        lazyrope.Segment(documents[2], 0, 30, 4),
    ]
    assert lazyrope.batch([lazyrope.Request(0, slices)], pages).page_indptr == [0, 1, 1, 3]
    for counted in (None, 4):
        batch = lazyrope.batch([lazyrope.Request(positions, segments, mass_tokens=counted)], pages)
        step = kernel.plan(batch, page_size=32)
        assert step.capacity.mass_pages == batch.mass_pages
        check_masses(case, kernel, step, None if counted is None else [counted])


def test_a_batch_in_which_nothing_counts_has_masses_of_zero(build, device):
    """There are requests without query tokens that count, and without segments."""
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    case = documents_case(setting, [40], 2, device)
    segment = lazyrope.Segment(lazyrope.Document(case.requests[0].slices[0].document.first_page, 40), 0)
    for request in (lazyrope.Request([40, 41], [segment], mass_tokens=0), lazyrope.Request([0, 1])):
        batch = lazyrope.batch([request], case.metadata["pages"])
        assert batch.mass_pages == 0
        mass = measure(case, kernel, kernel.plan(batch, page_size=setting.page_size), batch.page_indptr[-1])
        assert bool((mass == 0).all())


def test_requests_without_room_get_nan(build, device):
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    fixture = DocumentFixture(setting, [40, 50, 30], 3, device)
    case = fixture.case(fixture.queries(3), [in_order(fixture, order, 1) for order in ([0, 1], [2], [0])])
    exact = reference(case)
    counts = [len(reference_of) for reference_of in _by_request(case)]
    step = plan(case, kernel, mass_pages=mass_pages(case) - 1)
    mass = measure(case, kernel, step, len(exact))
    assert bool(mass[-counts[-1] :].isnan().all()) and not bool(mass[: -counts[-1]].isnan().any())
    few = measure(case, kernel, plan(case, kernel), 3)
    torch.testing.assert_close(few.double(), exact[:3], atol=1e-3, rtol=1e-2)


def _by_request(case):
    from tests.support.page_mass import masses_of

    return [torch.cat(masses_of(w, r)) for w, r in zip(case.weights(), case.requests, strict=True)]


def test_a_request_of_a_batch_invariant_spec_has_the_same_masses_in_any_batch(build, device):
    setting = SETTINGS["batch invariant"]
    kernel = build(setting.spec())
    fixture = DocumentFixture(setting, [300, 200], 8, device)
    order = in_order(fixture, [0, 1], 1)
    q = fixture.queries(8)
    masses = [
        measure(case, kernel, plan(case, kernel), len(reference(case)))
        for case in (fixture.case(q[:count], [order] * count) for count in (1, 8))
    ]
    assert torch.equal(masses[1][: len(masses[0])], masses[0])


def test_mistakes_are_refused(build, device):
    kernel = build(SETTINGS["plain"].spec())
    case = documents_case(SETTINGS["plain"], [40], 2, device)
    step, without = plan(case, kernel), case.plan(kernel)
    arguments = (case.q, case.k_pool, case.v_pool)
    mass = torch.zeros(3, device=device)
    with pytest.raises(lazyrope.SpecError, match="the step has no room for the masses: plan it with a capacity"):
        kernel(*arguments, without, page_mass=mass)
    for given, why in (
        (mass.double(), "page_mass .*float64"),
        (mass[None], r"\[pages of 16 slots\]"),
        (torch.zeros(6, device=device)[::2], "page_mass"),
    ):
        with pytest.raises(lazyrope.SpecError, match=why):
            kernel(*arguments, step, page_mass=given)
    out = torch.empty_like(case.q)
    with pytest.raises(lazyrope.SpecError, match=r"page_mass .*out|out.*page_mass"):
        kernel(*arguments, step, out=out, page_mass=out.view(torch.float32).flatten()[:3])
    other = build(replace(SETTINGS["plain"], page_mass=False).spec())
    with pytest.raises(lazyrope.SpecError, match=r"page_mass is given; the spec has none"):
        other(*arguments, case.plan(other), page_mass=mass)
    with pytest.raises(lazyrope.SpecError, match="cascade with page_mass"):
        replace(SETTINGS["plain"], cascade=True).spec()
    with pytest.raises(lazyrope.SpecError, match="mass_pages = -1; it must be at least 0"):
        plan(case, kernel, mass_pages=-1)
    with pytest.raises(lazyrope.SpecError, match="mass_pages = 4194305 with 8 query heads"):
        plan(case, kernel, mass_pages=4194305)
    with pytest.raises(lazyrope.SpecError, match="request 0: mass_tokens = -1; it must be at least 0"):
        lazyrope.batch([lazyrope.Request(0, [], mass_tokens=-1)], case.metadata["pages"])


@pytest.mark.parametrize("name", SETTINGS)
def test_plain_pytorch_gives_the_masses_too(name):
    setting = replace(SETTINGS[name], page_mass=True)
    kernel = eager.compile(setting.spec())
    for seed in range(4):
        case = random_case(replace(setting, phase=PHASES[seed % 3]), seed, "cpu")
        counted = None if seed % 2 else [2] * len(case.requests)
        if counted is not None:
            case.metadata["mass_tokens"] = torch.tensor(counted, dtype=torch.int32)
        step = case.plan(kernel)
        exact = reference(case, counted)
        assert_masses_close(measure(case, kernel, step, len(exact)), exact, case.q.dtype)
    few = measure(case, kernel, step, len(exact) // 2)
    torch.testing.assert_close(few.double(), exact[: len(few)], atol=1e-3, rtol=1e-2)
    with pytest.raises(lazyrope.SpecError, match="page_mass is given; the spec has none"):
        other = eager.compile(replace(setting, page_mass=False).spec())
        measure(case, other, case.plan(other), 1)


def test_mistakes_are_refused_in_plain_pytorch():
    setting = SETTINGS["plain"]
    kernel = eager.compile(setting.spec())
    case = documents_case(setting, [40], 2, "cpu")
    step = case.plan(kernel)
    for given, why in (
        (torch.zeros(3, dtype=torch.float64), "page_mass is torch.float64"),
        (torch.zeros(1, 3), r"page_mass is torch.float32 \[1, 3\]; it must be float32 \[pages of 16 slots\]"),
    ):
        with pytest.raises(lazyrope.SpecError, match=why):
            kernel(case.q, case.k_pool, case.v_pool, step, page_mass=given)
    for tokens, why in (
        (torch.zeros(2, dtype=torch.int32), "segments.mass_tokens has 2 elements; it must have 1"),
        (torch.zeros(0, dtype=torch.int32), "segments.mass_tokens has 0 elements; it must have 1"),
        (torch.zeros(1), "segments.mass_tokens is torch.float32"),
    ):
        case.metadata["mass_tokens"] = tokens
        with pytest.raises(lazyrope.SpecError, match=why):
            updated(case, step)
