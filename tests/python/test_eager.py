"""The eager PyTorch attention has the interface of the kernels and meets their error bounds."""

from __future__ import annotations

import lazyrope
import pytest
import torch
from lazyrope import eager
from torch.utils._python_dispatch import TorchDispatchMode

from tests.python import test_batch, test_fp8
from tests.python.test_append import Writes, token_slots
from tests.support.cases import FP8, Setting, documents_case, random_case
from tests.support.checks import check_case
from tests.support.metadata import append_arguments, one_span, step_arguments
from tests.support.reference import rotate
from tests.support.tolerance import error


def test_random_step(numbered_setting, device):
    seed, setting = numbered_setting
    case = random_case(setting, seed, device)
    check_case(case, eager.compile(case.spec))


@pytest.mark.parametrize("setting", test_batch.SETTINGS, ids=lambda setting: setting.phase)
def test_a_batch_plans_the_same_step_as_tensors(setting, device):
    case, other = (random_case(setting, seed, device) for seed in (3, 4))
    kernel = eager.compile(case.spec)
    batch = lazyrope.batch(test_batch.requests_of(case), case.metadata["pages"])
    step = test_batch.plan(case, kernel, batch)
    check_case(case, kernel, step)
    step.update(lazyrope.batch(test_batch.requests_of(other), other.metadata["pages"]))
    check_case(other, kernel, step)


@pytest.mark.parametrize("kv_dtype", list(FP8))
def test_eager_meets_the_fp8_tests_of_the_kernels(device, kv_dtype):
    """The tests of the kernels run on the eager attention."""
    test_fp8.test_every_number_is_stored_with_pytorch_rounding(eager.compile, device, "bfloat16", kv_dtype)
    for per_head in (False, True):
        rope = lazyrope.rope.neox()
        test_fp8.test_keys_are_rotated_scaled_and_rounded_once(eager.compile, device, kv_dtype, rope, per_head)
    for rope in (lazyrope.rope.neox(), lazyrope.rope.none()):
        spec = test_fp8.specification(kv_dtype, head_dim=80, num_q_heads=3, num_kv_heads=3, rope=rope)
        test_fp8.check_moved(spec, eager.compile(spec), eager.compile_reposition(spec), device)
    test_fp8.test_appended_fp8_keys_are_attended_to_with_their_scales(eager.compile, device)


def test_tensors_that_do_not_fit_fp8_pools_are_refused(device):
    kernel = eager.compile(Setting(kv_heads=2, kv_dtype="float8_e5m2").spec())
    case = random_case(Setting(phase="decode", kv_heads=2), 3, device)
    pool, step = case.k_pool.nan_to_num(), kernel.plan(**step_arguments(case.metadata))
    with pytest.raises(lazyrope.SpecError, match=r"k_pool is torch.bfloat16; it must be torch.float8_e5m2"):
        kernel(case.q, pool, pool, step)
    narrow = pool.to(torch.float8_e5m2)
    with pytest.raises(lazyrope.SpecError, match=r"v_scale is torch.float32 \[3\].*\[kv_heads\] = \[2\]"):
        kernel(case.q, narrow, narrow, step, v_scale=torch.ones(3, device=device))
    with pytest.raises(lazyrope.SpecError, match="contiguous"):
        kernel(case.q, narrow, narrow, step, v_scale=torch.ones(4, device=device)[::2])
    wide = eager.compile(case.spec)
    with pytest.raises(lazyrope.SpecError, match="k_scale is given; a pool of bfloat16 has no scales"):
        wide(case.q, pool, pool, step, k_scale=torch.ones(1, device=device))


def test_rows_computed_in_blocks_equal_rows_computed_at_once(monkeypatch, device):
    case = documents_case(Setting(), [100, 0, 33], 70, device)
    kernel = eager.compile(case.spec)
    whole, whole_lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **case.call_arguments)
    monkeypatch.setattr(eager, "MAX_SCORES", 9 * 8 * 133)
    out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **case.call_arguments)
    assert error(out, whole.double()).norm < 2**-8 and torch.allclose(lse, whole_lse, atol=1e-5)


def test_float32_inputs_give_float32_accuracy(device):
    """The kernels do not support float32; the eager attention does."""
    case = documents_case(Setting(page_size=48), [100, 33], 7, device)
    case.q, case.k_pool, case.v_pool = (t.float() for t in (case.q, case.k_pool, case.v_pool))
    kernel = eager.compile(case.spec)
    out, _ = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **case.call_arguments)
    exact = case.reference()[0]
    assert out.dtype == torch.float32 and error(out, exact).norm < 1e-5


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("query_form", ["raw", "rotated"])
@pytest.mark.parametrize("form", ["spans", "slots"])
def test_append_equals_that_of_the_kernels(build, device, query_form, layout, form):
    setting = Setting(query_form=query_form, layout=layout, page_size=48)
    writes = Writes(setting, 3, device)
    shape = (80, 48, 2, 128) if layout == "NHD" else (80, 2, 48, 128)
    k, v = (torch.randn((writes.tokens, 2, 128)).to(torch.bfloat16).to(device) for _ in range(2))
    pools = []
    slots = token_slots(writes, 48, device, skipped=(0, 2, writes.tokens - 1))
    arguments = append_arguments(writes.metadata).values() if form == "spans" else [slots]
    for kernel in (build(setting.spec()), eager.compile(setting.spec())):
        pool = [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(2)]
        step = kernel.plan_append(
            *arguments,
            capacity=lazyrope.AppendCapacity(writes.tokens),
            page_size=48,
            layout=layout,
        )
        kernel.append(k, v, *pool, step)
        pools.append(pool)
    (k_ours, v_ours), (k_eager, v_eager) = pools
    assert torch.equal(v_ours, v_eager)
    if query_form == "rotated":
        assert torch.equal(k_ours, k_eager)
    else:
        assert (k_ours.double() - k_eager.double()).abs().max() <= 2.0**-7 * k_eager.abs().max()


def test_reposition_rotates_keys_by_the_difference(device):
    setting = Setting()
    spec = setting.spec()
    kernel, move = eager.compile(spec), eager.compile_reposition(spec)
    pool_k, pool_v = (torch.randn((8, 16, 2, 128), device=device) for _ in range(2))
    before = pool_k.clone()

    def ints(*values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    pages = ints(3, 1, 6, 2)
    capacity = lazyrope.AppendCapacity(20)
    source = kernel.plan_append(one_span(0, 20, 0, device), pages, capacity=capacity)
    target = kernel.plan_append(
        lazyrope.TokenSpans(ints(0, 20), ints(1000), ints(2), ints(5)), pages, capacity=capacity
    )
    move(pool_k, pool_v, source, target)
    flat = before[[3, 1]].flatten(0, 1)[:20]
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    expected = rotate(flat, torch.full((20,), 1000, device=device), frequencies, 128)
    moved = pool_k[[6, 2]].flatten(0, 1)[5:25]
    assert (moved.double() - expected).abs().max() < 1e-5
    assert torch.equal(pool_k[[3, 1]], before[[3, 1]])


def test_bad_tensors_are_refused_with_the_expected_shape(device):
    case = documents_case(Setting(), [33], 2, device)
    kernel = eager.compile(case.spec)
    step = case.plan(kernel)
    with pytest.raises(lazyrope.SpecError, match=r"q is \[1, 8, 128\]; it must be \[2 or more, 8, 128\]"):
        kernel(case.q[:1], case.k_pool, case.v_pool, step)
    with pytest.raises(lazyrope.SpecError, match="page_size = 10; it must be a positive multiple of 16"):
        kernel.plan(**step_arguments(case.metadata), page_size=10)
    with pytest.raises(lazyrope.SpecError, match=r"segments.base is torch.int64 \[1\]; it must be int32"):
        step.update(**step_arguments(case.metadata | {"base": case.metadata["base"].long()}))


def test_keywords_are_those_of_the_compiled_api(device):
    pages = torch.zeros(1, dtype=torch.int32, device=device)
    kernel = eager.compile(Setting().spec())
    batch = lazyrope.batch([], pages)
    step = kernel.plan(batch=batch)
    step.update(batch=batch)
    empty = torch.zeros(0, dtype=torch.int64, device=device)
    slots = lazyrope.TokenSlots(empty, empty)
    writes = kernel.plan_append(slots=slots, capacity=lazyrope.AppendCapacity(tokens=1))
    writes.update(slots=slots)
    spans = lazyrope.TokenSpans(pages, *[empty.int()] * 2)
    with pytest.raises(TypeError, match="TokenSpans and pages"):
        writes.update(spans)
    with pytest.raises(TypeError, match=r"or a lazyrope\.Batch"):
        step.update(pages)


class Operations(TorchDispatchMode):
    """Counts PyTorch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **(kwargs or {}))


def test_a_document_more_takes_few_operations(device):
    """Decoding over many documents takes the time of its operations' overhead on a CPU."""
    counts = []
    for documents in (4, 20):
        case = documents_case(Setting(query_form="rotated"), [20] * documents, 1, device)
        kernel = eager.compile(case.spec)
        step = case.plan(kernel)
        with Operations() as operations:
            kernel(case.q, case.k_pool, case.v_pool, step, return_lse=False)
        counts.append(operations.count)
    assert counts[0] <= 100 and counts[1] - counts[0] <= 8 * 16


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_pools_whose_pages_are_apart_are_read_and_written(device, layout):
    """The pages of some engines' pools alternate with other data, so no view joins them."""
    case = documents_case(Setting(layout=layout), [100, 33], 3, device)
    kernel = eager.compile(case.spec)
    expected, _ = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **case.call_arguments)
    apart = [torch.stack([pool, pool], dim=1)[:, 0] for pool in (case.k_pool, case.v_pool)]
    out, _ = kernel(case.q, *apart, case.plan(kernel), **case.call_arguments)
    assert torch.equal(out, expected)
    rows = torch.randn((5, 2, 128), device=device).to(torch.bfloat16)
    pools = [torch.zeros_like(pool) for pool in (case.k_pool, case.v_pool)]
    gaps = [torch.zeros_like(torch.stack([pool, pool], dim=1))[:, 0] for pool in pools]
    step = kernel.plan_append(
        one_span(0, 5, 0, device),
        case.metadata["pages"],
        capacity=lazyrope.AppendCapacity(5),
        page_size=case.setting.page_size,
        layout=layout,
    )
    for given in (pools, gaps):
        kernel.append(rows, rows, *given, step)
    assert pools[0].any() and all(torch.equal(a, b) for a, b in zip(pools, gaps, strict=True))
