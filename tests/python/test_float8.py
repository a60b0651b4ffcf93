"""Products of 8 bits in prefill of family sm90a (AttentionSpec.compute), on a GPU of sm_90a or in the emulator."""

from __future__ import annotations

import random
from dataclasses import replace

import lazyrope
import pytest
import torch

from tests.conftest import HAS_GPU
from tests.support import checks, hopper
from tests.support.cases import ROPES, Setting, documents_case, random_case
from tests.support.float8 import check_case

ARCH = "sm_90a" if HAS_GPU else "emu:sm_90a"
DEVICE = "cuda" if HAS_GPU else "cpu"
pytestmark = [
    pytest.mark.skipif(ARCH not in lazyrope.archs(), reason="this build has no emulator"),
    pytest.mark.skipif(
        HAS_GPU and torch.cuda.get_device_capability() != (9, 0), reason="only Hopper has kernels of 8-bit products"
    ),
]

SMALL = Setting(head_dim=128, kv_heads=1, kv_dtype="float8_e4m3fn", compute="float8", phase="prefill")
FACTORS = hopper.FACTORS | {"head_dim": (64, 96, 128), "group": (1, 3, 4, 8)}


OFFSET = 3  # with it the settings of SEEDS cover every value


def random_setting(seed: int) -> Setting:
    rng = random.Random(OFFSET + seed)
    setting = replace(SMALL, **{name: rng.choice(values) for name, values in FACTORS.items()})
    return replace(setting, phase="prefill") if setting.group < 4 else setting


def build(setting: Setting) -> lazyrope.Attention:
    kernel = lazyrope.compile(setting.spec(), arch=ARCH)
    assert kernel.config.prefill.family == "sm90a"
    return kernel


SEEDS = range(12)


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_steps_agree_with_fp64(seed):
    """Documents are ragged and end inside pages whose other slots are NaN. The emulator searches some for races."""
    setting = random_setting(seed)
    with lazyrope.emulator.options(seed=seed, races=seed % 3 == 0):
        check_case(random_case(setting, seed, DEVICE), build(setting))


def test_the_settings_cover_every_value():
    settings = [random_setting(seed) for seed in SEEDS]
    assert {name: {getattr(s, name) for s in settings} for name in FACTORS} == {k: set(v) for k, v in FACTORS.items()}


@pytest.mark.sample(1)
@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_documents_of_several_blocks_agree_with_fp64(head_dim, races):
    with lazyrope.emulator.options(races=races):
        setting = replace(SMALL, head_dim=head_dim)
        check_case(documents_case(setting, [300, 70, 17, 5, 260], 40, DEVICE), build(setting))


@pytest.mark.sample(1)
@pytest.mark.parametrize("factor", [1, 5])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_totals_of_many_blocks_agree_with_fp64(head_dim, factor):
    """After every sixteenth block the accumulators are added to totals. Great scores raise the maxima between."""
    setting = replace(SMALL, head_dim=head_dim)
    case = documents_case(setting, [4100, 70, 300], 40, DEVICE)
    case.q *= factor
    check_case(case, build(setting))


@pytest.mark.sample(1)
@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize(("factor", "dtype"), [(8, "float16"), (200, "bfloat16")])
def test_scores_far_above_the_first_ones_agree_with_fp64(factor, dtype, head_dim, races):
    """Only the first scores of a row are searched for its maximum; weights of later ones exceed the range of 8 bits."""
    setting = replace(SMALL, head_dim=head_dim, dtype=dtype)
    case = documents_case(setting, [5, 300, 300, 130], 40, DEVICE)
    case.q.mul_(factor)
    with lazyrope.emulator.options(races=races):
        check_case(case, build(setting))


@pytest.mark.sample(1)
@pytest.mark.parametrize("tokens", [300, 700])
@pytest.mark.parametrize("races", [False, True])
def test_several_work_tiles_of_a_cta_agree_with_fp64(tokens, races):
    setting = replace(SMALL, kv_heads=2)
    with lazyrope.emulator.options(races=races):
        check_case(documents_case(setting, [260, 100], tokens, DEVICE), build(setting))


@pytest.mark.sample(1)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_error_is_that_of_8_bits(head_dim):
    """The tolerance of 16-bit products does not hold, so the products have 8 bits."""
    setting = replace(SMALL, head_dim=head_dim)
    case = documents_case(setting, [300, 70], 40, DEVICE)
    with_16_bits = replace(setting, compute="dtype")
    with pytest.raises(AssertionError, match="error"):
        checks.check_case(replace(case, spec=with_16_bits.spec()), build(setting))
    checks.check_case(replace(case, spec=with_16_bits.spec()), build(with_16_bits))


@pytest.mark.sample(1)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_decode_has_products_of_the_dtype(head_dim):
    setting = replace(SMALL, head_dim=head_dim, phase="decode")
    checks.check_case(documents_case(setting, [300, 70], 2, DEVICE), build(setting))


def test_the_only_key_of_a_row_gives_its_value_exactly():
    setting = replace(SMALL, mask="causal")
    case = documents_case(setting, [200], 40, DEVICE)
    case.metadata["q_position"][:] = 0
    kernel = build(setting)
    out, _ = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **case.call_arguments)
    value = case.requests[0].slices[0].document.values[0, 0]
    assert torch.equal(out, value.expand_as(out))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_rows_with_an_infinity_or_nan_are_nan_alone(value):
    case = documents_case(SMALL, [200], 40, DEVICE)
    case.q[3, 2, 5] = value
    kernel = build(SMALL)
    out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **case.call_arguments)
    assert bool(out[3, 2].isnan().all()) and bool(lse[3, 2].isnan())
    assert int(out.isnan().sum()) == out.shape[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"kv_dtype": "as dtype"},
            r'compute = "float8" with kv_dtype = "bfloat16"; .* kv_dtype = "float8_e4m3fn"',
        ),
        ({"kv_dtype": "float8_e5m2"}, r'compute = "float8" with kv_dtype = "float8_e5m2"'),
        ({"rope": "odd"}, r'compute = "float8" with rotary_dim = 36; .* the nearest are 32 and 40'),
        ({"head_dim": 256}, r'compute = "float8" with head_dim = 256; .* head_dim = 64, 96, 128'),
        ({"cascade": True}, 'compute = "float8" with cascade; .*: choose one of them'),
        ({"packed_prefill": True}, 'compute = "float8" with packed_prefill'),
        ({"states": True}, 'compute = "float8" with states'),
        ({"compute": "fp8"}, r'compute = "fp8".*; allowed are: dtype, float8'),
    ],
)
def test_specs_without_such_products_are_refused(monkeypatch, change, message):
    monkeypatch.setitem(ROPES, "odd", lambda _: lazyrope.rope.neox(10000.0, rotary_dim=36))
    with pytest.raises(lazyrope.SpecError, match=message):
        replace(SMALL, **change).spec()


@pytest.mark.parametrize("arch", [arch for arch in ("sm_80", "sm_100", "emu:sm_80") if arch in lazyrope.archs()])
def test_other_archs_are_refused(arch):
    with pytest.raises(lazyrope.SpecError, match=f'compute = "float8" on {arch}; products of 8 bits need a GPU of'):
        lazyrope.configs(SMALL.spec(), arch)


def test_a_config_of_family_sm80_is_refused():
    config = lazyrope.configs(replace(SMALL, compute="dtype").spec(), "sm_80")[0]
    with pytest.raises(lazyrope.SpecError, match=r"prefill.family = sm80 with compute = \"float8\""):
        lazyrope.compile(SMALL.spec(), arch=ARCH, config=config)


@pytest.mark.sample(1)
@pytest.mark.parametrize("option", [{"page_mass": True}, {"key_bias": True}, {"batch_invariant": True}])
def test_other_options_agree_with_fp64(option):
    setting = replace(SMALL, **option)
    check_case(documents_case(setting, [300, 70], 40, DEVICE), build(setting))


@pytest.mark.parametrize("of_values", [False, True])
@pytest.mark.parametrize("token", [7, 150])
def test_a_nan_in_a_valid_slot_makes_rows_nan(token, of_values):
    """A NaN key makes rows NaN, and a NaN element of a value its column, in the first block and in a later one."""
    setting = replace(SMALL, mask="full")
    case = documents_case(setting, [200], 40, DEVICE)
    kernel = build(setting)
    first, lead = (int(case.metadata[name][0]) if name in case.metadata else 0 for name in ("first_page", "lead"))
    page, slot = divmod(token + lead, setting.page_size)
    number = int(case.metadata["pages"][first + page])
    pool = (case.v_pool if of_values else case.k_pool).view(torch.uint8)
    pool_slot = pool[number, slot] if setting.layout == "NHD" else pool[number, :, slot]
    pool_slot[..., 5] = 0x7F
    out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **case.call_arguments)
    assert bool(out[..., 5].isnan().all())
    assert int(out.isnan().sum()) == (out[..., 5].numel() if of_values else out.numel())
    assert bool(lse.isnan().all()) != of_values
