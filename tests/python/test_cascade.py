"""Segments that several requests read are read once for all of them, and answers stay exact."""

from __future__ import annotations

import random
from dataclasses import replace

import lazyrope
import pytest
import torch

from tests.support.cases import Case, Setting
from tests.support.checks import check_case
from tests.support.document_fixture import DocumentFixture, in_order
from tests.support.metadata import step_arguments
from tests.support.shared_steps import always_shares, shared_case, with_private_lists

SETTINGS = {
    "decode": Setting(head_dim=64, cascade=True),
    "rotated queries": Setting(head_dim=64, cascade=True, query_form="rotated", rope="yarn"),
    "window": Setting(head_dim=64, cascade=True, mask="sliding_window"),
    "chunked": Setting(head_dim=64, cascade=True, mask="chunked"),
    "full": Setting(head_dim=64, cascade=True, mask="full", group=1, kv_heads=3),
    "scores": Setting(head_dim=64, cascade=True, scores="softcap and sinks", rope="gptj", group=8),
    "fp8": Setting(head_dim=64, cascade=True, kv_dtype="float8_e4m3fn", layout="HND"),
    "pages of 32": Setting(head_dim=128, cascade=True, page_size=32, dtype="float16"),
}


HOPPER = {
    "decode": Setting(head_dim=128, cascade=True),
    "rotated queries": Setting(
        head_dim=64, cascade=True, query_form="rotated", rope="yarn", scores="softcap and sinks"
    ),
    "long head_dim": Setting(head_dim=256, cascade=True, kv_heads=1),
}


def compile_sharing(build, setting: Setting, **options: object) -> lazyrope.Attention:
    """Compiles a spec so that its steps share all that they can."""
    default = build(setting.spec(), **options).config
    return build(setting.spec(), config=always_shares(default), **options)


def check_steps(kernel: lazyrope.Attention, setting: Setting, seeds: range, device: str) -> None:
    for seed in seeds:
        case = shared_case(setting, seed, device)
        check_case(case if seed % 2 else with_private_lists(case, seed), kernel)


def differs(case: Case, kernel: lazyrope.Attention, other: lazyrope.Attention) -> bool:
    """Returns True if the kernels' outputs differ in some bit, as they do where one of them shares segments.

    The default config shares nothing in steps as small as these, and has the same kernels.
    """
    first, second = (
        each(case.q, case.k_pool, case.v_pool, case.plan(each), **case.call_arguments)[0] for each in (kernel, other)
    )
    return not torch.equal(first, second)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", SETTINGS)
def test_shared_steps_agree_with_fp64(build, device, name, pytestconfig):
    kernel = compile_sharing(build, SETTINGS[name])
    steps = 64 if device == "cuda" else 6 if pytestconfig.getoption("soak") else 3
    check_steps(kernel, SETTINGS[name], range(steps), device)
    alone = build(SETTINGS[name].spec())
    cases = (shared_case(SETTINGS[name], seed, device) for seed in range(6))
    assert any(differs(case, kernel, alone) for case in cases), "no step shares anything"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs its own family; the emulator searches for races")
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", HOPPER)
def test_shared_steps_of_hopper_agree_with_fp64_and_have_no_races(name):
    kernel = compile_sharing(lazyrope.compile, HOPPER[name], arch="emu:sm_90a")
    assert kernel.config.prefill.family == "sm90a"
    with lazyrope.emulator.options(races=True):
        check_steps(kernel, HOPPER[name], range(2), "cpu")
    alone = lazyrope.compile(HOPPER[name].spec(), arch="emu:sm_90a")
    assert differs(shared_case(HOPPER[name], 0, "cpu"), kernel, alone), "the step shares nothing"


@pytest.mark.parametrize("requests", [10, 20, 130, 500])
def test_many_segments_are_sorted(build, device, requests):
    """The share kernel sorts up to 64 segments by one warp, more by its CTA, and most of them in global memory."""
    setting = Setting(head_dim=64, kv_heads=1, group=1, cascade=True)
    kernel = compile_sharing(build, setting)
    fixture = DocumentFixture(setting, [64, 80, 96, 64], requests, device)
    rng = random.Random(requests)
    asked = [in_order(fixture, rng.choices(range(4), k=5), 1) for _ in range(requests)]
    check_case(fixture.case(fixture.queries(requests), asked), kernel)


@pytest.mark.parametrize("room", [60, 5000])
def test_one_step_is_updated_as_its_sharing_changes(build, device, room):
    """With room for more than 2048 segments, the step's table is in shared memory or in global memory."""
    setting = SETTINGS["decode"]
    kernel = compile_sharing(build, setting)
    capacity = lazyrope.StepCapacity(8, room, 200)
    step = shared_case(setting, 0, device).plan(kernel, capacity=capacity)
    for seed in (1, 2, 3, 2, 4):
        case = shared_case(setting, seed, device)
        step.update(**step_arguments(case.metadata))
        check_case(case, kernel, step)


def test_sharing_changes_how_results_are_rounded_and_nothing_else(build, device):
    """Steps that save little are not shared by default: they then have the bits of a spec without a cascade."""
    setting = SETTINGS["decode"]
    alone = build(replace(setting, cascade=False).spec())
    kernels = [build(setting.spec()), compile_sharing(build, setting)]
    fixture = DocumentFixture(setting, [300, 200], 5, device)
    case = fixture.case(fixture.queries(6), [in_order(fixture, order, 1) for order in ([0, 1], [1, 0], [0, 1]) * 2])
    expected, _ = alone(case.q, case.k_pool, case.v_pool, case.plan(alone))
    little, shared = (kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel))[0] for kernel in kernels)
    assert torch.equal(little, expected)
    assert not torch.equal(shared, expected)


def test_a_token_s_value_may_follow_its_key_in_memory(build, device):
    """vLLM's pool has both in one tensor."""
    kernel = compile_sharing(build, SETTINGS["decode"])
    case = shared_case(SETTINGS["decode"], 1, device)
    k_pool, v_pool = torch.cat([case.k_pool, case.v_pool], dim=-1).chunk(2, dim=-1)
    check_case(replace(case, k_pool=k_pool, v_pool=v_pool), kernel)


def test_a_step_with_room_for_one_segment_shares_nothing(build, device):
    setting = SETTINGS["decode"]
    kernel = compile_sharing(build, setting)
    fixture = DocumentFixture(setting, [100], 6, device)
    check_case(fixture.case(fixture.queries(1), [in_order(fixture, [0], 1)]), kernel)


def test_a_cascade_is_refused_where_it_would_change_the_answer():
    with pytest.raises(lazyrope.SpecError, match="cascade with batch_invariant"):
        replace(SETTINGS["decode"], batch_invariant=True).spec()
    with pytest.raises(lazyrope.SpecError, match='cascade with temperature and query_form = "raw"'):
        replace(SETTINGS["decode"], scores="temperature").spec()
    assert replace(SETTINGS["decode"], scores="temperature", query_form="rotated").spec().cascade
    with pytest.raises(lazyrope.SpecError, match='cascade with key_form = "raw"'):
        replace(SETTINGS["decode"], key_form="raw").spec()


def test_a_step_of_another_query_form_is_refused(build, device):
    """The positions of the shared step depend on the form of the queries."""
    raw, rotated = (compile_sharing(build, replace(SETTINGS["decode"], query_form=form)) for form in ("raw", "rotated"))
    case = shared_case(SETTINGS["decode"], 1, device)
    with pytest.raises(lazyrope.SpecError, match=r"cascade of raw queries.*cascade of rotated queries"):
        rotated(case.q, case.k_pool, case.v_pool, case.plan(raw))


def test_share_above_kib_is_checked(build):
    config = build(SETTINGS["decode"].spec()).config
    bad = lazyrope.KernelConfig(decode=config.decode, prefill=config.prefill, share_above_kib=-1)
    with pytest.raises(lazyrope.SpecError, match="share_above_kib = -1; it must be at least 0"):
        build(SETTINGS["decode"].spec(), config=bad)
