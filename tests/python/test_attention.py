"""Compares attend with fp64 in random steps that cover every parameter that specialises a kernel."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import lazyrope
import pytest
import torch

from tests.conftest import HAS_GPU, assert_steps_cover_all, shared_list, values_of
from tests.support import eager, reference
from tests.support.cases import (
    EXTREME_POSITIONS,
    ROPES,
    PoolBuilder,
    Request,
    Setting,
    Slice,
    assemble,
    case_at,
    documents_case,
    random_case,
)
from tests.support.checks import check_case
from tests.support.covering import FACTORS, race_checked
from tests.support.metadata import capacity_of, step_arguments
from tests.support.tolerance import assert_close, assert_lse_close

ROOT = Path(__file__).parents[2]
FILES_OF_RANDOM_STEPS = ("tests/python/test_append.py", "tests/python/test_attention.py")


@pytest.mark.usefixtures("compiled_ahead")
def test_random_step(numbered_setting, build, device, executed):
    seed, setting = numbered_setting
    case = random_case(setting, seed, device)
    kernel = build(case.spec)
    check_case(case, kernel)
    executed.attend(case, kernel)


def test_every_rope_variant_is_among_the_settings():
    """The head dims and masks of the settings come from the registries, so only RoPE variants are checked."""
    used = {ROPES[rope](128).variant for rope in ROPES}
    assert used == set(lazyrope.rope_variants())


def test_random_steps_cover_every_value_and_enough_kernels(request, executed):
    assert_steps_cover_all(request, executed, kernels=60)


def test_race_checked_steps_have_every_value(request):
    """The steps need only the common group sizes."""
    steps = dict(shared_list(request.config))
    searched = values_of([steps[seed] for seed in race_checked(steps.items())])
    assert searched.pop("group") >= {1, 3, 4, 8}
    assert searched == {name: set(values) for name, values in FACTORS.items() if name != "group"}


@pytest.mark.skipif(HAS_GPU, reason="the emulator searches for races; on a GPU, compute-sanitizer does")
def test_the_kernels_have_no_races(request):
    """A process of its own runs the steps, because the emulator reads the environment once."""
    options = [f"--{name}={request.config.getoption(name)}" for name in ("cases", "seed")]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "races",
        *FILES_OF_RANDOM_STEPS,
        *options,
        "-p",
        "no:cacheprovider",
    ]
    environment = os.environ | {"LAZYROPE_EMULATOR_RACES": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    count = 2 * len(race_checked(shared_list(request.config)))
    assert result.returncode == 0 and f"\n{count} passed" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize("group", [71, 128])
@pytest.mark.parametrize("head_dim", [160, 192, 256])
def test_a_group_with_more_heads_than_tile_rows_is_computed(build, device, head_dim, group):
    """The last config, which needs the least shared memory, has the fewest rows."""
    case = random_case(Setting(head_dim=head_dim, group=group, phase="decode", kv_heads=1), 31, device)
    config = lazyrope.configs(case.spec, None if device == "cuda" else "emu:sm_80")[-1]
    assert config.prefill.warps_m * config.prefill.warp_m < group
    check_case(case, build(case.spec, config=config))


def test_the_error_bound_can_fail(build, device):
    """A result computed for bases that are one token off must fail the check."""
    case = random_case(Setting(phase="chunk"), 3, device)
    case.metadata["base"] = case.metadata["base"] + 1
    with pytest.raises(AssertionError, match=r"off by|error|wrong places"):
        check_case(case, build(case.spec))


def test_rows_beyond_the_step_are_not_written(build, device):
    case = random_case(Setting(phase="decode"), 5, device)
    kernel = build(case.spec)
    step = case.plan(kernel)
    extra = torch.cat([case.q, case.q])
    with pytest.raises(lazyrope.SpecError, match="give out= and lse="):
        kernel(extra, case.k_pool, case.v_pool, step)
    out = torch.full_like(extra, torch.nan)
    kernel(extra, case.k_pool, case.v_pool, step, out=out, return_lse=False)
    assert bool(out[: len(case.q)].isfinite().all()) and bool(out[len(case.q) :].isnan().all())


def test_outputs_belong_to_the_callers_framework(build, device):
    case = random_case(Setting(phase="decode"), 5, device)
    kernel = build(case.spec)
    out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel))
    assert isinstance(out, torch.Tensor) and out.dtype == case.q.dtype and out.device == case.q.device
    assert isinstance(lse, torch.Tensor) and lse.dtype == torch.float32 and lse.shape == case.q.shape[:2]
    out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), return_lse=False)
    assert lse is None


def test_the_same_call_twice_gives_the_same_bits(build, device):
    case = random_case(Setting(phase="mixed"), 8, device)
    kernel = build(case.spec)
    step = case.plan(kernel)
    first, first_lse = kernel(case.q, case.k_pool, case.v_pool, step)
    second, second_lse = kernel(case.q, case.k_pool, case.v_pool, step)
    assert torch.equal(first, second) and torch.equal(first_lse, second_lse)


def test_a_step_is_refilled_with_other_requests(build, device):
    setting = Setting(phase="mixed")
    cases = [random_case(setting, seed, device) for seed in (11, 12, 13)]
    kernel = build(cases[0].spec)
    capacity = lazyrope.StepCapacity(requests=8, segments=200, query_tokens=1024)
    step = cases[0].plan(kernel, capacity=capacity)
    for case in cases:
        step.update(**step_arguments(case.metadata), check=True)
        check_case(case, kernel, step)


def test_step_nbytes_equals_the_memory_of_a_step(build, device):
    case = random_case(Setting(phase="mixed"), 11, device)
    kernel = build(case.spec)
    sms = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 4  # the emulator's
    capacity = lazyrope.StepCapacity(requests=50, segments=700, query_tokens=4096)
    for whole in (capacity, replace(capacity, tokens_per_request=1)):
        step = case.plan(kernel, capacity=whole)
        assert kernel.step_nbytes(whole, sm_count=sms) == step.nbytes
        assert step.capacity == replace(whole, tokens_per_request=whole.tokens_per_request or 4096)
    with pytest.raises(lazyrope.SpecError, match=r"capacity is a int; it must be a lazyrope\.StepCapacity"):
        kernel.step_nbytes(3, sm_count=sms)
    with pytest.raises(lazyrope.SpecError, match=r"capacity\.segments = None; it must be an int of 32 bits"):
        kernel.step_nbytes(replace(capacity, segments=None), sm_count=sms)
    with pytest.raises(lazyrope.SpecError, match="sm_count = 0; it must be at least 1"):
        kernel.step_nbytes(capacity, sm_count=0)


@pytest.mark.sample(4)
@pytest.mark.parametrize("lengths", [[20] * 31, [20] * 33, [20] * 20 + [0] * 12 + [20] * 40, [0] * 5 + [100, 20] * 35])
@pytest.mark.parametrize("tokens", [1, 100])
def test_requests_with_many_documents_agree_with_fp64(build, device, lengths, tokens):
    """Requests have more than the 32 segments that a warp examines at a time, in kernels that split keys and rows."""
    case = documents_case(Setting(page_size=48), lengths, tokens, device)
    check_case(case, build(case.spec))


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("tokens", [1, 150])
def test_queries_at_extreme_positions_agree_with_fp64(build, device, group, tokens):
    setting = Setting(group=group, kv_heads=1, mask="full")
    for position in EXTREME_POSITIONS:
        check_case(case_at(setting, [position] * tokens, device), build(setting.spec()))


def test_a_temperature_is_1_until_its_first_interval_ends(build, device):
    """The offset is a whole interval, so position 0 is in the second one and -1 in the first."""
    setting = Setting(head_dim=64, kv_heads=1, mask="full")
    temperature = lazyrope.QueryTemperature(beta=0.5, interval=8, offset=8)
    spec = lazyrope.AttentionSpec(
        head_dim=64, num_q_heads=4, num_kv_heads=1, rope=lazyrope.rope.neox(), mask="full", temperature=temperature
    )
    for position in (-9, -8, -1, 0, 7, 8, 2**31 - 1):
        case = replace(case_at(setting, [position], device), spec=spec)
        check_case(case, build(spec))
    assert reference.temperature_of(temperature, torch.tensor([-9, -1, 0])).tolist()[:2] == [1.0, 1.0]


def test_a_step_planned_for_another_mask_is_refused(build, device):
    case = random_case(Setting(phase="chunk"), 14, device)
    step = case.plan(build(case.spec))
    full = build(Setting(mask="full").spec())
    with pytest.raises(lazyrope.SpecError, match=r'mask = "causal".* mask = "full"'):
        full(case.q, case.k_pool, case.v_pool, step)


def test_requests_longer_than_tokens_per_request_are_served(build, device):
    case = random_case(Setting(phase="chunk"), 15, device)
    kernel = build(case.spec)
    check_case(case, kernel, case.plan(kernel, capacity=capacity_of(case.metadata, tokens_per_request=1)))


def test_a_step_without_requests_has_empty_outputs(build, device):
    kernel = build(Setting().spec())
    none = torch.zeros(0, dtype=torch.int32, device=device)
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    step = kernel.plan(zero, none, lazyrope.Segments(zero, none, none, none, none), none, check=True)
    q = torch.zeros((0, 8, 128), dtype=torch.bfloat16, device=device)
    pool = torch.zeros((1, 16, 2, 128), dtype=torch.bfloat16, device=device)
    out, lse = kernel(q, pool, pool, step)
    assert out.shape == (0, 8, 128) and lse.shape == (0, 8)


@pytest.mark.parametrize("sink", [torch.inf, -torch.inf])
def test_infinite_sinks_give_finite_results(build, device, sink):
    """A sink of inf takes all of a head's weight, and one of -inf takes none. Both results are finite."""
    case = random_case(Setting(phase="decode", scores="sinks"), 3, device)
    case.call_arguments["sinks"][0] = sink
    out, lse = build(case.spec)(case.q, case.k_pool, case.v_pool, case.plan(build(case.spec)), **case.call_arguments)
    expected, expected_lse = case.reference()
    if sink > 0:
        assert not out[:, 0].any() and (lse[:, 0] > 1e29).all()
        out, lse, expected, expected_lse = out[:, 1:], lse[:, 1:], expected[:, 1:], expected_lse[:, 1:]
    assert_close(out.cpu(), expected.cpu(), eager.attention(case).cpu()[:, -out.shape[1] :])
    assert_lse_close(lse.cpu(), expected_lse.cpu(), case.q.dtype)


def test_out_may_be_interleaved_with_q_but_not_overlap_it(build, device):
    """Interleaved views of one tensor, by rows or by heads, share no element. Overlapping views are refused."""
    case = random_case(Setting(phase="chunk", layout="NHD"), 5, device)
    kernel = build(case.spec)
    step, (tokens, heads, dim) = case.plan(kernel), case.q.shape

    def attend(q: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        q.copy_(case.q)
        return kernel(q, case.k_pool, case.v_pool, step, out=out, **case.call_arguments)[0]

    expected = attend(case.q.clone(), torch.empty_like(case.q))
    rows = torch.empty((tokens, 2 * heads, dim), dtype=case.q.dtype, device=device)
    pairs = torch.empty((tokens, heads, 2, dim), dtype=case.q.dtype, device=device)
    for q, out in ((rows[:, :heads], rows[:, heads:]), (rows[:, heads:], rows[:, :heads]), pairs.unbind(2)):
        assert torch.equal(attend(q, out), expected)
    line = torch.empty((tokens + 1, heads, dim), dtype=case.q.dtype, device=device)
    for q, out in ((line[1:], line[:-1]), (line[:-1], line[1:]), (rows[:, :heads], rows[:, 1 : heads + 1])):
        with pytest.raises(lazyrope.SpecError, match="out and q share memory; a written tensor must have its own"):
            attend(q, out)
    with pytest.raises(lazyrope.SpecError, match="memory of its own for every element"):
        attend(case.q.clone(), line.as_strided((tokens, heads, dim), (dim, dim, 1)))


@pytest.mark.parametrize("tokens", [[1], [64], [64, 1], [1, 64], [1, 1]], ids=str)
@pytest.mark.parametrize("keys", ["none", "an empty segment", "the second request's"])
def test_requests_without_visible_keys_have_zero_output(build, device, tokens, keys):
    """With one KV head, a phase may consist of a single tile that sees no key."""
    setting = Setting(kv_heads=1, group=2, mask="full", head_dim=64)
    generator = torch.Generator().manual_seed(1)
    pool = PoolBuilder(setting, 5, random.Random(1), torch.device(device))
    empty = [Slice(pool.add(16, 0, generator), 0, 0, 0)] if keys == "an empty segment" else []
    requests = [Request(list(range(n)), empty) for n in tokens]
    if keys == "the second request's":
        requests[-1] = Request(list(range(40, 40 + tokens[-1])), [Slice(pool.add(40, 0, generator), 0, 0, 40)])
    check_case(assemble(setting, pool, requests, generator), build(setting.spec()))


@pytest.mark.parametrize(
    ("phase", "head_dim"), [("chunk", 128), ("decode", 64), ("decode", 128), ("decode", 192), ("decode", 256)]
)
@pytest.mark.parametrize("shape", ["interleaved", "padded"])
def test_pools_with_any_strides_are_used_without_a_copy(build, device, shape, phase, head_dim):
    """Pools may be views: keys and values interleaved page by page, or rows with padding between them."""
    case = random_case(Setting(phase=phase, head_dim=head_dim, layout="NHD"), 21, device)
    pages, size, heads, dim = case.k_pool.shape
    if shape == "interleaved":
        both = torch.stack([case.k_pool, case.v_pool], dim=1)
        case.k_pool, case.v_pool = both[:, 0], both[:, 1]
    else:
        both = torch.full((2, pages, size + 3, heads, dim + 8), torch.nan, dtype=case.q.dtype, device=device)
        both[:, :, :size, :, :dim] = torch.stack([case.k_pool, case.v_pool])
        case.k_pool, case.v_pool = both[0, :, :size, :, :dim], both[1, :, :size, :, :dim]
    check_case(case, build(case.spec))


def test_a_scale_of_the_spec_is_used(build, device):
    case = random_case(Setting(phase="chunk"), 22, device)
    case.spec = lazyrope.AttentionSpec(
        head_dim=128, num_q_heads=8, num_kv_heads=2, rope=lazyrope.rope.neox(), scale=0.25
    )
    check_case(case, build(case.spec))


def test_a_head_dim_without_a_config_is_served_with_padding(build, device):
    """The caller pads with zero columns, and sets rotary_dim and scale, as the error message says."""
    with pytest.raises(lazyrope.SpecError, match=r"with 112, pad q, k and v with zeros.* scale = 1 / sqrt\(100\)"):
        Setting(head_dim=100).spec()
    case = documents_case(Setting(head_dim=112), [100, 33], 20, device)
    for tensor in (case.q, case.k_pool, case.v_pool):
        tensor[..., 100:] = 0
    rope = lazyrope.rope.neox(rotary_dim=100)
    case.spec = lazyrope.AttentionSpec(head_dim=112, num_q_heads=8, num_kv_heads=2, rope=rope, scale=100**-0.5)
    kernel = build(case.spec)
    out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel))
    case.q = case.q[..., :100]
    for s in case.requests[0].slices:
        s.document.keys, s.document.values = s.document.keys[..., :100], s.document.values[..., :100]
    exact, exact_lse = case.reference()
    assert_close(out[..., :100], exact, eager.attention(case))
    assert_lse_close(lse, exact_lse, out.dtype)
    assert not bool(out[..., 100:].any())
