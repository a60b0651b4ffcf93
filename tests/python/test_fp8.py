"""FP8 pools: append rounds to them, attend reads them, and tensors that do not fit are refused."""

from __future__ import annotations

import lazyrope
import pytest
import torch

from tests.support.cases import DTYPES, FP8, FP8_NAN, Setting, random_case
from tests.support.metadata import one_span, step_arguments
from tests.support.reference import rotate

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def ints(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """Returns all 65536 numbers of a 16-bit type, [256, 1, 256]."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).view(256, 1, 256)


def specification(kv_dtype: str, dtype: str = "bfloat16", **options) -> lazyrope.AttentionSpec:
    options = {"head_dim": 256, "num_q_heads": 1, "num_kv_heads": 1, "rope": lazyrope.rope.none()} | options
    return lazyrope.AttentionSpec(dtype=dtype, kv_dtype=kv_dtype, **options)


def pools(kv_dtype: str, pages: int, device: str, heads: int = 1, head_dim: int = 256):
    shape = (pages, 16, heads, head_dim)
    return [torch.full(shape, FP8_NAN, dtype=torch.uint8, device=device).view(FP8[kv_dtype]) for _ in "kv"]


def append(kernel, k, v, k_pool, v_pool, device, first=0, **scales):
    """Appends one document, whose first page is page 0."""
    pages = ints(range(len(k_pool)), device)
    step = kernel.plan_append(one_span(first, len(k), 0, device), pages, capacity=lazyrope.AppendCapacity(len(k)))
    kernel.append(k, v, k_pool, v_pool, step, **scales)


def segments(device, positions, base, length, pages):
    """Returns the arguments of plan() for one request that sees one document."""
    columns = [ints(x, device) for x in ([0, 1], [base], [0], [length], [0])]
    indptr, position, all_pages = (ints(x, device) for x in ([0, len(positions)], positions, range(pages)))
    return indptr, position, lazyrope.Segments(*columns), all_pages


def rounded(exact: torch.Tensor, kv_dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the numbers, saturated, and the distance between neighbours of the 8-bit type at each of them."""
    most = LARGEST[kv_dtype]
    wanted = exact.clamp(-most, most)
    bits, least = {"float8_e4m3fn": (3, -6), "float8_e5m2": (2, -14)}[kv_dtype]
    return wanted, 2.0 ** (wanted.abs().log2().floor().clamp_min(least) - bits)


@pytest.mark.parametrize("kv_dtype", list(FP8))
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_every_number_is_stored_with_pytorch_rounding(build, device, dtype, kv_dtype):
    """append rounds to nearest even and saturates; PyTorch does not saturate."""
    given = every_number(DTYPES[dtype]).to(device)
    kernel = build(specification(kv_dtype, dtype))
    k_pool, v_pool = pools(kv_dtype, 16, device)
    append(kernel, given, given, k_pool, v_pool, device)
    most = LARGEST[kv_dtype]
    expected = given.float().clamp(-most, most).to(FP8[kv_dtype]).view(torch.uint8).cpu()
    is_nan = given.isnan().cpu()
    for pool in (k_pool, v_pool):
        stored = pool.view(torch.uint8).reshape(given.shape).cpu()
        assert torch.equal(stored[~is_nan], expected[~is_nan])
        assert bool((stored[is_nan] == FP8_NAN).all())


@pytest.mark.sample(3)
@pytest.mark.parametrize("kv_dtype", list(FP8))
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("tokens", [1, 40], ids=["decode", "prefill"])
def test_every_number_is_read_exactly(build, device, dtype, kv_dtype, tokens):
    """A request sees one key, so the output is its value, whose column c is the number with bits c.

    Query c selects key column c, which is the lse. Scores are small: the weight's exponent is the difference of two
    rounded numbers, and with large scores the weight would not be exactly 1.
    """
    scale = 2.0**-12
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).to(device)
    exact = codes.view(FP8[kv_dtype]).double()
    finite = exact.isfinite()
    kernel = build(specification(kv_dtype, dtype, scale=scale, num_q_heads=tokens, num_kv_heads=1))
    k_pool, v_pool = pools(kv_dtype, 1, device)
    k_pool.view(torch.uint8)[0, 0, 0] = torch.where(finite, codes, 0)
    v_pool.view(torch.uint8)[0, 0, 0] = codes
    q = torch.zeros((256, tokens, 256), dtype=DTYPES[dtype], device=device)
    q[torch.arange(256), :, torch.arange(256)] = 1.0
    step = kernel.plan(*segments(device, [5] * 256, 5, 1, 1))
    out, lse = kernel(q, k_pool, v_pool, step)
    expected = exact.to(DTYPES[dtype])[None, None, :].expand_as(out)
    assert torch.equal(out[..., finite], expected[..., finite])
    scores = scale * exact[finite, None].expand(-1, tokens)
    assert torch.allclose(lse.double()[finite], scores, rtol=1e-6, atol=1e-9)


@pytest.mark.sample(3)
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("kv_dtype", list(FP8))
@pytest.mark.parametrize("rope", [lazyrope.rope.neox(), lazyrope.rope.gptj(rotary_dim=20), lazyrope.rope.none()])
def test_keys_are_rotated_scaled_and_rounded_once(build, device, kv_dtype, rope, per_head):
    spec = specification(kv_dtype, head_dim=80, num_q_heads=3, num_kv_heads=3, rope=rope)
    kernel = build(spec)
    k, v = (torch.randn(50, 3, 80).to(torch.bfloat16).to(device) for _ in "kv")
    k_scale = torch.tensor([0.03, 0.7, 1.9] if per_head else [0.37], device=device)
    v_scale = torch.tensor([1.3, 0.01, 0.2] if per_head else [0.11], device=device)
    k_pool, v_pool = pools(kv_dtype, 4, device, heads=3, head_dim=80)
    append(kernel, k, v, k_pool, v_pool, device, first=1000, k_scale=k_scale, v_scale=v_scale)
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    rotated = rotate(k, torch.arange(50, device=device) + 1000, frequencies, spec.rope.rotary_dim, spec.rope_pairing)
    # This bounds the error of sin.approx and cos.approx (2^-20.9: PTX ISA, "sin") in two products.
    angles = 2 * 2.0**-20.9 * k.abs().max().item()
    for pool, exact, scale in ((k_pool, rotated, k_scale), (v_pool, v.double(), v_scale)):
        # Larger values saturate: 4.5 with the scale 0.01, for example.
        wanted, step = rounded(exact / scale.double()[:, None], kv_dtype)
        stored = pool.float().double().reshape(-1, 3, 80)[:50]
        off = 1e-6 * wanted.abs() + angles / scale.double()[:, None]
        assert bool(((stored - wanted).abs() <= 0.5 * step + off).all())


def test_appended_fp8_keys_are_attended_to_with_their_scales(build, device):
    spec = specification("float8_e4m3fn", head_dim=128, num_q_heads=8, num_kv_heads=2, rope=lazyrope.rope.neox())
    kernel = build(spec)
    k, v, q = (torch.randn((n, h, 128)).to(torch.bfloat16).to(device) for n, h in ((100, 2), (100, 2), (3, 8)))
    scales = {"k_scale": torch.tensor([0.013, 0.021], device=device), "v_scale": torch.tensor(0.017, device=device)}
    k_pool, v_pool = pools("float8_e4m3fn", 7, device, heads=2, head_dim=128)
    append(kernel, k, v, k_pool, v_pool, device, **scales)
    step = kernel.plan(*segments(device, [500, 501, 502], 300, 100, 7))
    out, _ = kernel(q, k_pool, v_pool, step, **scales)
    stored_k, stored_v = (p.float().double().reshape(-1, 2, 128)[:100] for p in (k_pool, v_pool))
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    rotated = rotate(q, torch.tensor([200, 201, 202], device=device), frequencies, 128)
    keys = (stored_k * scales["k_scale"].double()[:, None]).repeat_interleave(4, dim=1)
    values = (stored_v * scales["v_scale"].double()).repeat_interleave(4, dim=1)
    score = torch.einsum("thd,khd->thk", rotated, keys) * spec.scale
    exact = torch.einsum("thk,khd->thd", score.softmax(-1), values)
    assert (out.double() - exact).norm() / exact.norm() < 4e-3
    whole_k = rotate(k, torch.arange(100, device=device), frequencies, 128)
    assert (stored_k * scales["k_scale"].double()[:, None] - whole_k).norm() / whole_k.norm() < 0.04


def check_moved(spec: lazyrope.AttentionSpec, kernel, mover, device: str) -> None:
    """Moves a document by a million tokens. Its keys are large, so that some of them saturate."""
    count, distance, dtype = 40, 1_000_000, FP8[spec.kv_dtype]
    shape = (6, 16, spec.num_kv_heads, spec.head_dim)
    most = LARGEST[spec.kv_dtype]
    keys = (torch.randn(shape) * most / 2).clamp(-most, most).to(dtype).to(device)
    codes = torch.randint(0, 256, shape, dtype=torch.uint8).to(device)  # the values, NaN included
    k_pool, v_pool = keys.clone(), codes.clone().view(dtype)
    pages, capacity = ints(range(6), device), lazyrope.AppendCapacity(count)
    spans = [one_span(first, count, lead, device) for first, lead in ((7, 0), (7 + distance, 48))]
    mover(k_pool, v_pool, *(kernel.plan_append(span, pages, capacity=capacity) for span in spans))
    before, after, values = (x.reshape(2, 48, *shape[2:]) for x in (keys.double(), k_pool.double(), v_pool))
    assert torch.equal(k_pool.view(torch.uint8)[:3], keys.view(torch.uint8)[:3]), "the source has changed"
    assert torch.equal(values.view(torch.uint8)[1, :count], codes.reshape(values.shape)[0, :count])
    assert torch.equal(after[1, count:], before[1, count:])
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    rotary_dim = len(frequencies) * 2
    by = torch.full((count,), distance, device=device)
    exact = rotate(before[0, :count], by, frequencies, rotary_dim, spec.rope_pairing)
    wanted, step = rounded(exact, spec.kv_dtype)
    # This bounds the error of sin.approx and cos.approx (2^-20.9: PTX ISA, "sin") in two products.
    off = 2 * 2.0**-20.9 * most
    moved = after[1, :count]
    assert bool(((moved - wanted).abs() <= 0.5 * step + off).all())
    assert torch.equal(moved[..., rotary_dim:], before[0, :count, :, rotary_dim:])
    if rotary_dim:
        assert bool((moved.abs() == most).any()) and bool((exact.abs() > most).any())


@pytest.mark.sample(4)
@pytest.mark.parametrize("rope", [lazyrope.rope.neox(), lazyrope.rope.gptj(rotary_dim=20), lazyrope.rope.none()])
@pytest.mark.parametrize("kv_dtype", list(FP8))
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_moved_keys_are_rotated_and_rounded_once_more(build, device, dtype, kv_dtype, rope):
    spec = specification(kv_dtype, dtype, head_dim=80, num_q_heads=3, num_kv_heads=3, rope=rope)
    kernel = build(spec)
    check_moved(spec, kernel, lazyrope.compile_reposition(spec, kernel.arch), device)


class TestRefused:
    """A call with the wrong pool or the wrong scales is refused."""

    @pytest.fixture
    def call(self, build, device):
        def run(kv_dtype="float8_e4m3fn", pool_dtype=None, **scales):
            kernel = build(Setting(kv_heads=2, kv_dtype=kv_dtype).spec())
            case = random_case(Setting(phase="decode", kv_heads=2), 3, device)
            pool = case.k_pool.nan_to_num().to(pool_dtype or FP8.get(kv_dtype, torch.bfloat16))
            step = kernel.plan(**step_arguments(case.metadata))
            return kernel(case.q, pool, pool, step, **scales)

        return run

    def test_scales_of_a_16_bit_pool_are_refused(self, call, device):
        with pytest.raises(lazyrope.SpecError, match="k_scale is given; a pool of bfloat16 has no scales"):
            call("as dtype", k_scale=torch.ones(1, device=device))

    def test_scales_of_the_wrong_length_are_refused(self, call, device):
        with pytest.raises(lazyrope.SpecError, match=r"v_scale is float32 \[3\].*\[kv_heads\] = \[2\]"):
            call(v_scale=torch.ones(3, device=device))

    def test_scales_of_another_dtype_are_refused(self, call, device):
        with pytest.raises(lazyrope.SpecError, match=r"k_scale is bfloat16.*must be float32"):
            call(k_scale=torch.ones(2, device=device, dtype=torch.bfloat16))

    def test_scales_that_are_not_contiguous_are_refused(self, call, device):
        with pytest.raises(lazyrope.SpecError, match="contiguous"):
            call(k_scale=torch.ones(4, device=device)[::2])

    def test_a_pool_of_another_dtype_is_refused(self, call):
        with pytest.raises(lazyrope.SpecError, match=r"k_pool is float8_e5m2.*must be float8_e4m3fn"):
            call(pool_dtype=torch.float8_e5m2)
        with pytest.raises(lazyrope.SpecError, match=r"k_pool is bfloat16.*must be float8_e4m3fn"):
            call(pool_dtype=torch.bfloat16)
        with pytest.raises(lazyrope.SpecError, match=r"k_pool is uint8.*must be bfloat16"):
            call("as dtype", pool_dtype=torch.uint8)

    def test_reposition_of_a_pool_of_another_dtype_is_refused(self, build, device):
        spec = specification("float8_e5m2")
        kernel = build(spec)
        pool = torch.zeros((2, 16, 1, 256), dtype=torch.bfloat16, device=device)
        step = kernel.plan_append(one_span(0, 3, 0, device), ints([0, 1], device), capacity=lazyrope.AppendCapacity(3))
        with pytest.raises(lazyrope.SpecError, match=r"k_pool is bfloat16.*must be float8_e5m2"):
            lazyrope.compile_reposition(spec, kernel.arch)(pool, pool.clone(), step, step)
