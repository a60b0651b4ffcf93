"""Compares prefill over keys that are rotated into a step's scratch with fp64, and with a pool of local keys."""

from __future__ import annotations

from dataclasses import replace

import lazyrope
import pytest
import torch

from tests.conftest import HAS_GPU
from tests.support.cases import Case, Setting, documents_case, random_case
from tests.support.checks import check_case
from tests.support.metadata import capacity_of, step_arguments

ARCH = None if HAS_GPU else "emu:sm_90a"
ROTATION = {"plan_rotation", "rotate_keys", "attend_rotated"}
pytestmark = pytest.mark.skipif(
    HAS_GPU and torch.cuda.get_device_capability() != (9, 0), reason="only Hopper has kernels for rotated keys"
)
RAW = Setting(key_form="raw", phase="mixed")


def build(spec: lazyrope.AttentionSpec) -> lazyrope.Attention:
    return lazyrope.compile(spec, arch=ARCH)


def slots_of_prefill(case: Case, kernel: lazyrope.Attention) -> int:
    """Returns the slots of all runs that the scratch needs for the requests of prefill."""
    rows = kernel.config.decode.warps_m * kernel.config.decode.warp_m
    runs = 0
    for request in case.requests:
        if len(request.positions) * case.setting.group > rows:
            for s in request.slices:
                lead = (s.document.lead + s.start) % 16
                runs += -(-(lead + s.length) // 16) if s.length else 0
    return 16 * runs


def plan(case: Case, kernel: lazyrope.Attention, rotated_tokens: int) -> lazyrope.Step:
    return case.plan(kernel, capacity=capacity_of(case.metadata, rotated_tokens=rotated_tokens), check=True)


SETTINGS = {
    "plain": RAW,
    "64 columns, HND": replace(RAW, head_dim=64, layout="HND", page_size=48, kv_heads=3, group=5),
    "96 columns, gptj": replace(RAW, head_dim=96, rope="gptj", group=1, dtype="float16"),
    "256 columns": replace(RAW, head_dim=256, rope="llama3", kv_heads=1),
    "partial": replace(RAW, rope="partial neox", page_size=64),
    "partial gptj, 96 columns": replace(RAW, head_dim=96, rope="partial gptj", phase="prefill"),
    "rotated queries": replace(RAW, query_form="rotated", rope="yarn"),
    "LongRoPE, window": replace(RAW, rope="longrope", mask="sliding_window", page_size=128),
    "attention factor, sinks": replace(RAW, rope="attention factor", scores="softcap and sinks", dtype="float16"),
    "no rope, chunked": replace(RAW, rope="none", mask="chunked", kv_heads=1),
    "temperature, 5 KV heads": replace(RAW, scores="temperature", kv_heads=5, group=2, phase="chunk"),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", SETTINGS)
def test_random_steps_with_scratch_agree_with_fp64(name, pytestconfig):
    """The scratch suffices exactly. Slots that no request sees are NaN, in the pool and in the scratch's tails."""
    for seed in (3, 4, 5, 20) if HAS_GPU or pytestconfig.getoption("soak") else (20,):
        case = random_case(SETTINGS[name], seed, "cuda" if HAS_GPU else "cpu")
        kernel = build(case.spec)
        assert set(kernel.kernels) >= ROTATION
        slots = slots_of_prefill(case, kernel)
        assert slots > 0 or seed != 20, "the step rotates no keys"
        check_case(case, kernel, plan(case, kernel, slots))


def attend(case: Case, kernel: lazyrope.Attention, step: lazyrope.Step) -> tuple[torch.Tensor, torch.Tensor]:
    return kernel(case.q, case.k_pool, case.v_pool, step, **case.call_arguments)


def as_local_keys(case: Case) -> tuple[Case, lazyrope.Attention]:
    """Returns the case with a pool of local keys, which append has rotated, and its kernel."""
    kernel = build(replace(case.setting, key_form="local").spec())
    pools = torch.full_like(case.k_pool, torch.nan), torch.full_like(case.v_pool, torch.nan)
    for s in case.requests[0].slices:
        spans = lazyrope.TokenSpans(
            *(
                torch.tensor(x, dtype=torch.int32, device=case.q.device)
                for x in ([0, s.document.length], [0], [s.document.first_page], [s.document.lead])
            )
        )
        capacity = lazyrope.AppendCapacity(s.document.length)
        writes = kernel.plan_append(spans, case.metadata["pages"], capacity=capacity)
        kernel.append(s.document.keys, s.document.values, *pools, writes)
    return replace(case, spec=kernel.spec, k_pool=pools[0], v_pool=pools[1]), kernel


@pytest.mark.sample(2)
@pytest.mark.parametrize("rope", ["neox", "gptj", "partial neox", "attention factor"])
def test_results_are_those_of_local_keys(rope):
    """The scratch has what append writes to a pool of local keys, and the attend kernel is the same.

    In the emulator both have the same bits. NVRTC may contract the rotations of the two kernels in different ways.
    """
    case = documents_case(replace(RAW, rope=rope), [100, 33, 0, 70], 70, "cuda" if HAS_GPU else "cpu")
    kernel = build(case.spec)
    local, local_kernel = as_local_keys(case)
    expected = attend(local, local_kernel, local.plan(local_kernel))
    given = attend(case, kernel, plan(case, kernel, slots_of_prefill(case, kernel)))
    if HAS_GPU:
        torch.testing.assert_close(given, expected, rtol=0.02, atol=0.02)
    else:
        assert all(map(torch.equal, given, expected))
    without = attend(case, kernel, case.plan(kernel))
    assert not torch.equal(without[0], expected[0])


def test_kernels_rotate_keys_at_each_use_where_the_scratch_does_not_suffice():
    case = documents_case(RAW, [100, 33], 70, "cuda" if HAS_GPU else "cpu")
    kernel = build(case.spec)
    needed = slots_of_prefill(case, kernel)
    without = attend(case, kernel, case.plan(kernel))
    short = plan(case, kernel, needed - 16)
    assert short.capacity.rotated_tokens == needed - 16
    assert all(map(torch.equal, attend(case, kernel, short), without))
    assert not torch.equal(attend(case, kernel, plan(case, kernel, needed))[0], without[0])


def test_a_step_is_refilled_and_the_scratch_suffices_at_times():
    """Earlier keys in the scratch, and earlier work tiles, must not show."""
    cases = [random_case(RAW, seed, "cuda" if HAS_GPU else "cpu") for seed in (11, 12, 13, 16)]
    cases.append(documents_case(RAW, [100, 33], 70, cases[0].q.device))
    kernel = build(cases[0].spec)
    tokens = 160
    assert {slots_of_prefill(case, kernel) > tokens for case in cases} == {False, True}
    capacity = lazyrope.StepCapacity(requests=8, segments=200, query_tokens=1024, rotated_tokens=tokens)
    step = cases[0].plan(kernel, capacity=capacity)
    for case in cases + cases[::-1]:
        step.update(**step_arguments(case.metadata), check=True)
        check_case(case, kernel, step)


def test_a_step_serves_layers_with_other_pools_and_other_tables():
    """Each call rotates its own pool's keys by its own table. The two kernels share a step, as those of LongRoPE."""
    case = documents_case(RAW, [100, 33], 70, "cuda" if HAS_GPU else "cpu")
    kernel, other = build(case.spec), build(replace(RAW, rope="llama3").spec())
    step = plan(case, kernel, slots_of_prefill(case, kernel))
    check_case(case, kernel, step)
    second = documents_case(replace(RAW, rope="llama3"), [100, 33], 70, case.q.device)
    check_case(second, other, step)
    check_case(case, kernel, step)


def test_decode_in_a_mixed_step_reads_the_pool():
    """The scratch has room for the request of prefill alone, and decode has the bits of a step without scratch."""
    case = random_case(RAW, 12, "cuda" if HAS_GPU else "cpu")
    kernel = build(case.spec)
    counts = [len(request.positions) for request in case.requests]
    assert min(n for n in counts if n) <= 2 and max(counts) >= 40
    out, lse = attend(case, kernel, plan(case, kernel, slots_of_prefill(case, kernel)))
    other_out, other_lse = attend(case, kernel, case.plan(kernel))
    ends = torch.tensor(counts).cumsum(0).tolist()
    for n, end in zip(counts, ends, strict=True):
        if n <= 2:
            assert torch.equal(out[end - n : end], other_out[end - n : end])
            assert torch.equal(lse[end - n : end], other_lse[end - n : end])


def batch_of(case: Case, tokens: int, documents: list[int]) -> lazyrope.Batch:
    starts = [sum(documents[:i]) for i in range(len(documents))]
    pages = [-(-n // 16) for n in documents]
    segments = [
        lazyrope.Segment(lazyrope.Document(sum(pages[:i]), n), base=start)
        for i, (n, start) in enumerate(zip(documents, starts, strict=True))
    ]
    end = sum(documents)
    return lazyrope.batch([lazyrope.Request(range(end, end + tokens), segments)], case.metadata["pages"])


def test_a_batch_has_scratch_for_its_requests_by_default():
    documents = [100, 33]
    case = documents_case(RAW, documents, 70, "cuda" if HAS_GPU else "cpu")
    kernel = build(case.spec)
    step = kernel.plan(batch_of(case, 70, documents))
    assert step.capacity.rotated_tokens == slots_of_prefill(case, kernel) == 16 * (7 + 3)
    expected = attend(case, kernel, plan(case, kernel, 160))
    assert all(map(torch.equal, attend(case, kernel, step), expected))
    assert kernel.plan(batch_of(case, 2, documents)).capacity.rotated_tokens == 0
    assert as_local_keys(case)[1].plan(batch_of(case, 70, documents)).capacity.rotated_tokens == 0


def test_the_scratch_counts_as_memory_of_the_step():
    kernel = build(RAW.spec())
    capacity = lazyrope.StepCapacity(requests=1, segments=1, query_tokens=100)
    sizes = [kernel.step_nbytes(replace(capacity, rotated_tokens=n), sm_count=132) for n in (1600, 3200)]
    assert sizes[1] - sizes[0] == pytest.approx(2 * 1600 * 2 * 128 * 2, rel=0.01)
    for tokens, why in ((-1, "at least 0"), (2**31 - 1, "at most 67108864")):
        with pytest.raises(lazyrope.SpecError, match=f"rotated_tokens = {tokens}; it must be {why}"):
            kernel.step_nbytes(replace(capacity, rotated_tokens=tokens), sm_count=132)


def test_a_step_of_local_keys_is_refused():
    """Both have the same prefill kernel, but the step of local keys has no plan for rotated keys."""
    case = documents_case(RAW, [100], 70, "cuda" if HAS_GPU else "cpu")
    kernel = build(case.spec)
    local = lazyrope.compile(replace(RAW, key_form="local").spec(), arch=ARCH, config=kernel.config, allow_spills=True)
    with pytest.raises(lazyrope.SpecError, match=r"the kernels are for .* raw keys that are rotated in scratch"):
        attend(case, kernel, case.plan(local))
    with pytest.raises(lazyrope.SpecError, match=r"the step was planned for .* raw keys that are rotated in scratch"):
        attend(case, local, case.plan(kernel))


def test_batch_invariant_kernels_rotate_keys_at_each_use():
    """Whether the scratch suffices depends on the other requests of a batch."""
    kernel = build(replace(RAW, batch_invariant=True).spec())
    assert not ROTATION & set(kernel.kernels)
    capacity = lazyrope.StepCapacity(requests=1, segments=1, query_tokens=100, rotated_tokens=1600)
    sizes = [kernel.step_nbytes(replace(capacity, rotated_tokens=n), sm_count=132) for n in (0, 1600)]
    assert sizes[0] == sizes[1]
