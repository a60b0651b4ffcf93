"""Compares prefill over keys that are packed into a step's scratch with fp64, and with prefill over the pool."""

from __future__ import annotations

import random
from dataclasses import replace

import lazyrope
import pytest
import torch

from tests.conftest import HAS_GPU
from tests.support.cases import Case, Setting, documents_case, random_case
from tests.support.checks import check_case
from tests.support.metadata import capacity_of, step_arguments

ARCH = None if HAS_GPU else "emu:sm_90a"
DEVICE = "cuda" if HAS_GPU else "cpu"
pytestmark = pytest.mark.skipif(
    HAS_GPU and torch.cuda.get_device_capability() != (9, 0), reason="only Hopper's kernels pack keys"
)
PACKED = Setting(packed_prefill=True, phase="mixed")
# Documents of 5 to 70 tokens and one of 300, whose blocks would be mostly empty.
LENGTHS = [17, 5, 70, 0, 16, 33, 1, 64, 300, 29]
TOKENS = 70  # the queries of a request, which have several tiles of rows


def build(spec: lazyrope.AttentionSpec) -> lazyrope.Attention:
    return lazyrope.compile(spec, arch=ARCH)


def tokens_of_prefill(case: Case, kernel: lazyrope.Attention) -> int:
    """Returns the tokens of the segments that requests of prefill have."""
    rows = kernel.config.decode.warps_m * kernel.config.decode.warp_m
    requests = [request for request in case.requests if len(request.positions) * case.setting.group > rows]
    return sum(s.length for request in requests for s in request.slices)


def plan(case: Case, kernel: lazyrope.Attention, tokens: int) -> lazyrope.Step:
    return case.plan(kernel, capacity=capacity_of(case.metadata, rotated_tokens=tokens), check=True)


def attend(case: Case, kernel: lazyrope.Attention, step: lazyrope.Step) -> torch.Tensor:
    return kernel(case.q, case.k_pool, case.v_pool, step, **case.call_arguments)[0]


SETTINGS = {
    "plain": PACKED,
    "64 columns, HND": replace(PACKED, head_dim=64, layout="HND", page_size=48, kv_heads=3, group=5),
    "256 columns": replace(PACKED, head_dim=256, rope="llama3", kv_heads=1, dtype="float16"),
    "partial gptj": replace(PACKED, head_dim=96, rope="partial gptj", phase="prefill"),
    "rotated queries": replace(PACKED, query_form="rotated", rope="yarn"),
    "window": replace(PACKED, mask="sliding_window", page_size=128),
    "attention factor, sinks": replace(PACKED, rope="attention factor", scores="softcap and sinks"),
    "no rope, chunked": replace(PACKED, rope="none", mask="chunked", kv_heads=1),
    "temperature": replace(PACKED, scores="temperature", kv_heads=5, group=2, phase="chunk"),
    "8 bits": replace(PACKED, kv_dtype="float8_e4m3fn"),
    "8 bits, partial gptj": replace(PACKED, kv_dtype="float8_e5m2", head_dim=96, rope="partial gptj", phase="prefill"),
    "8 bits, 256 columns": replace(PACKED, kv_dtype="float8_e4m3fn", head_dim=256, kv_heads=1, dtype="float16"),
}
SAMPLE = ("plain", "rotated queries", "8 bits")


def settings(config: pytest.Config) -> list[str]:
    return [*SETTINGS] if HAS_GPU or config.getoption("soak") else [*SAMPLE]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", settings(metafunc.config))


def test_short_documents_agree_with_fp64(name):
    """Their positions follow each other, so all of them become one segment. The scratch suffices exactly."""
    case = documents_case(SETTINGS[name], LENGTHS, TOKENS, DEVICE)
    kernel = build(case.spec)
    tokens = tokens_of_prefill(case, kernel)
    assert tokens == sum(LENGTHS)
    check_case(case, kernel, plan(case, kernel, tokens))
    packed = attend(case, kernel, plan(case, kernel, tokens))
    from_pool = attend(case, kernel, plan(case, kernel, tokens - 16))
    # Packed keys are rounded once more, or the products are added in another order.
    assert not torch.equal(packed, from_pool)
    assert torch.equal(from_pool, attend(case, kernel, case.plan(kernel)))


def test_segments_whose_positions_do_not_follow_each_other_agree_with_fp64(name):
    """Gaps, overlaps, negative bases, and groups of some segments."""
    rng = random.Random(3)
    bases, at = [], -200
    for length in LENGTHS:
        bases.append(at)
        at += length + rng.choice([0, 0, 1, -3, 500])
    case = documents_case(SETTINGS[name], LENGTHS, TOKENS, DEVICE, bases)
    kernel = build(case.spec)
    check_case(case, kernel, plan(case, kernel, sum(LENGTHS)))


def test_random_steps_agree_with_fp64(name, pytestconfig):
    """Slices, requests of all phases, and slots that no request sees, which are NaN."""
    for seed in (3, 4, 5, 20) if HAS_GPU or pytestconfig.getoption("soak") else (20,):
        case = random_case(SETTINGS[name], seed, DEVICE)
        kernel = build(case.spec)
        check_case(case, kernel, plan(case, kernel, tokens_of_prefill(case, kernel)))


def test_long_documents_are_read_from_the_pool():
    """Packing them would save less time than it takes."""
    case = documents_case(PACKED, [2048, 2048], 40, DEVICE)
    kernel = build(case.spec)
    given = attend(case, kernel, plan(case, kernel, 4096))
    assert torch.equal(given, attend(case, kernel, case.plan(kernel)))


@pytest.mark.parametrize(("tokens", "packs"), [(40, False), (300, True)])
def test_keys_of_8_bits_are_packed_where_many_rows_would_widen_them(tokens, packs):
    case = documents_case(replace(PACKED, kv_dtype="float8_e4m3fn"), [512, 512], tokens, DEVICE)
    kernel = build(case.spec)
    given = attend(case, kernel, plan(case, kernel, 1024))
    assert torch.equal(given, attend(case, kernel, case.plan(kernel))) != packs


def test_a_step_may_be_filled_again_with_and_without_packing():
    """An update that packs, one whose segments are too many tokens, and the first one again."""
    short, long = (documents_case(PACKED, lengths, TOKENS, DEVICE) for lengths in (LENGTHS, [400, 300]))
    kernel = build(short.spec)
    step = plan(short, kernel, sum(LENGTHS))
    first = attend(short, kernel, step)
    step.update(**step_arguments(long.metadata))
    assert torch.equal(attend(long, kernel, step), attend(long, kernel, long.plan(kernel)))
    step.update(**step_arguments(short.metadata))
    assert torch.equal(attend(short, kernel, step), first)


def test_other_archs_have_the_same_kernels_with_and_without_packing():
    plain = replace(PACKED, packed_prefill=False)
    kernels = [lazyrope.compile(s.spec(), arch="emu:sm_80").kernels for s in (PACKED, plain)]
    assert [*kernels[0]] == [*kernels[1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_form": "raw"}, "steps of raw keys have scratch anyway"),
        ({"dtype": "float16", "kv_dtype": "float8_e5m2"}, "rotated keys may exceed float16"),
        ({"batch_invariant": True}, "packed_prefill with batch_invariant; the other requests of a step decide"),
        ({"cascade": True}, "packed_prefill with cascade; .*: choose one of them"),
        ({"page_mass": True}, "packed_prefill with page_mass"),
        ({"key_bias": True}, "packed_prefill with key_bias"),
    ],
)
def test_what_does_not_fit_together_is_refused(options, message):
    with pytest.raises(lazyrope.SpecError, match=message):
        replace(PACKED, **options).spec()
