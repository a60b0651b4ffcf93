"""A bias of keys is added to their scores, so that documents may keep some tokens alone, in any slots."""

from __future__ import annotations

from dataclasses import replace

import lazyrope
import pytest
import torch
from lazyrope import eager

from tests.support.cases import Case, Setting, documents_case, random_case
from tests.support.checks import check_case
from tests.support.page_mass import check_masses
from tests.support.page_mass import plan as plan_masses
from tests.support.shared_steps import always_shares, shared_case

SETTINGS = {
    "plain": Setting(head_dim=64, key_bias=True),
    "full": Setting(head_dim=64, key_bias=True, mask="full", group=1, kv_heads=3, page_size=48),
    "scores": Setting(head_dim=128, key_bias=True, scores="softcap and sinks", rope="gptj", group=8),
    "temperature": Setting(head_dim=64, key_bias=True, scores="temperature", layout="HND"),
    "rotated queries": Setting(head_dim=64, key_bias=True, query_form="rotated", rope="yarn", dtype="float16"),
    "fp8": Setting(head_dim=64, key_bias=True, kv_dtype="float8_e4m3fn", layout="HND", page_size=32),
    "wide group": Setting(head_dim=80, key_bias=True, group=17, kv_heads=1),
    "batch invariant": Setting(head_dim=64, key_bias=True, batch_invariant=True),
}
HOPPER = {
    "two heads": Setting(head_dim=64, key_bias=True),
    "plain": Setting(head_dim=128, key_bias=True, kv_heads=1),
    "scores": Setting(head_dim=64, key_bias=True, scores="softcap and sinks", kv_heads=1, page_size=48),
    "fp8": Setting(head_dim=128, key_bias=True, kv_dtype="float8_e5m2", page_size=64, kv_heads=1),
    "long head_dim": Setting(head_dim=256, key_bias=True, kv_heads=1, group=2),
    "padded head_dim": Setting(head_dim=72, key_bias=True, kv_heads=1, group=2),
    "float16": Setting(head_dim=192, key_bias=True, kv_heads=1, group=2, dtype="float16"),
    "temperature": Setting(head_dim=96, key_bias=True, scores="temperature", group=7, kv_heads=1),
}
PHASES = ("decode", "chunk", "mixed")
SEEING_SEEDS = (0, 4, 5)  # a step of each phase whose queries see keys


def run(case: Case, kernel: lazyrope.Attention) -> tuple[torch.Tensor, torch.Tensor]:
    return kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **case.call_arguments)


def assert_same(ours: tuple[torch.Tensor, torch.Tensor], theirs: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Compares two results whose scores differ by roundings of fp32, and whose weights are rounded once."""
    torch.testing.assert_close(ours[0], theirs[0], atol=4e-3, rtol=2e-2)
    torch.testing.assert_close(ours[1], theirs[1], atol=2e-5, rtol=2e-6)


def check_random_step(kernel: lazyrope.Attention, setting: Setting, seed: int, device: str) -> bool:
    """Checks a random step. Returns whether some query sees a key."""
    case = random_case(replace(setting, phase=PHASES[seed % 3]), seed, device)
    check_case(case, kernel)
    return bool(case.reference()[1].isfinite().any())


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SETTINGS)
def test_random_steps_agree_with_fp64(build, device, name, pytestconfig):
    """Every tenth key is hidden from some KV head, and slots without a token have a bias of NaN."""
    kernel = build(SETTINGS[name].spec())
    for seed in range(60 if device == "cuda" else 12 if pytestconfig.getoption("soak") else 0):
        check_random_step(kernel, SETTINGS[name], seed, device)
    for seed in SEEING_SEEDS:
        assert check_random_step(kernel, SETTINGS[name], seed, device), "the step tests too little"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs its own family; the emulator searches for races")
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", HOPPER)
def test_random_steps_of_hopper_agree_with_fp64_and_have_no_races(name, pytestconfig):
    """A chunk of 40 queries sees more blocks than a window of the block table has."""
    setting = HOPPER[name]
    kernel = lazyrope.compile(setting.spec(), arch="emu:sm_90a")
    with lazyrope.emulator.options(races=True):
        for seed in range(6 if pytestconfig.getoption("soak") else 1):
            check_random_step(kernel, replace(setting, phase="decode"), 3 * seed, "cpu")
        check_case(documents_case(setting, [70, 23, 640], 40, "cpu"), kernel)


@pytest.mark.parametrize("arch", [None, "emu:sm_90a"])
def test_kv_splits_and_hidden_documents(build, device, arch):
    """A long request is cut into KV splits, some of which see no key: their documents are hidden from a KV head."""
    if arch is not None and torch.cuda.is_available():
        pytest.skip("the GPU runs its own family")
    setting = SETTINGS["plain"]
    kernel = lazyrope.compile(setting.spec(), arch=arch) if arch else build(setting.spec())
    for tokens in (1, 20):
        case = documents_case(setting, [700, 131], tokens, device)
        hide(case, document=0, head=0)
        check_case(case, kernel)
        hide(case, document=1, head=0)
        check_case(case, kernel)
        out, lse = run(case, kernel)
        assert bool((out[:, : setting.group] == 0).all()), "a row whose keys are all hidden must be 0"
        assert bool(lse[:, : setting.group].isneginf().all() and lse[:, setting.group :].isfinite().all())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs its own family")
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["plain", "scores", "long head_dim"])
def test_a_late_bias_far_above_the_first_scores(name):
    """Prefill on Hopper then computes a block's scores again, and adds their biases again."""
    setting = HOPPER[name]
    kernel = lazyrope.compile(setting.spec(), arch="emu:sm_90a")
    case = documents_case(setting, [300, 150], 40, "cpu")
    set_bias(case, 0, torch.zeros(setting.kv_heads))
    set_bias(case, 1, torch.full((setting.kv_heads,), 60.0))
    check_case(case, kernel)


def hide(case: Case, document: int, head: int) -> None:
    """Hides all tokens of a document from a KV head."""
    set_bias(case, document, torch.where(torch.arange(2) == head, -torch.inf, 0.0))


def set_bias(case: Case, document: int, bias: torch.Tensor) -> None:
    """Sets the bias of a document's tokens: [tokens, kv_heads], or [kv_heads] for all of them."""
    of = case.requests[0].slices[document].document
    of.bias = bias.to(case.q.device, torch.float32).expand(of.length, -1)
    page, slot = slots_of(case, document)
    case.call_arguments["key_bias"][page, :, slot] = of.bias


def slots_of(case: Case, document: int) -> tuple[torch.Tensor, torch.Tensor]:
    of = case.requests[0].slices[document].document
    slot = torch.arange(of.length, device=case.q.device) + of.lead
    size = case.setting.page_size
    return case.metadata["pages"].long()[of.first_page + slot // size], slot % size


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch", [None, "emu:sm_90a"])
def test_a_bias_of_zero_changes_nothing(build, device, arch):
    if arch is not None and torch.cuda.is_available():
        pytest.skip("the GPU runs its own family")
    setting = replace(SETTINGS["plain"], layout="HND")
    make = build if arch is None else lambda spec: lazyrope.compile(spec, arch=arch)
    kernel, other = make(setting.spec()), make(replace(setting, key_bias=False).spec())
    for tokens in (1, 30):
        case = documents_case(setting, [130, 41], tokens, device)
        case.call_arguments["key_bias"].zero_()
        ours = run(case, kernel)
        case.call_arguments.clear()
        assert_same(ours, run(case, other))


def test_a_bias_of_log_n_counts_as_n_copies_of_the_key(build, device):
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    once = documents_case(setting, [40], 2, device)
    copies = documents_case(setting, [47], 2, device)
    copied = [5, 5, 17, 17, 17, 17, 30]
    counts = torch.bincount(torch.tensor([*range(40), *copied])).log()
    set_bias(once, 0, counts[:, None].expand(-1, setting.kv_heads))
    set_bias(copies, 0, torch.zeros(setting.kv_heads))
    source, target = slots_of(once, 0), slots_of(copies, 0)
    tokens = torch.tensor([*range(40), *copied], device=device)
    for pool in ("k_pool", "v_pool"):
        getattr(copies, pool)[target] = getattr(once, pool)[source[0][tokens], source[1][tokens]]
    for case in (once, copies):
        case.metadata["q_position"] = torch.tensor([50, 51], dtype=torch.int32, device=device)
    copies.q = once.q
    assert_same(run(once, kernel), run(copies, kernel))


def test_tokens_may_be_in_any_slots_another_for_each_kv_head(build, device):
    """Queries stand after the document of which a compact one keeps tokens, so they see all of its slots."""
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    case = documents_case(setting, [100, 30], 3, device)
    expected = run(case, kernel)
    page, slot = slots_of(case, 0)
    generator = torch.Generator().manual_seed(1)
    for head in range(setting.kv_heads):
        order = torch.randperm(100, generator=generator).to(device)
        for pool in (case.k_pool, case.v_pool):
            pool[page, slot, head] = pool[page, slot, head][order]
        bias = case.call_arguments["key_bias"]
        bias[page, head, slot] = bias[page, head, slot][order]
    assert_same(run(case, kernel), expected)
    check_case(case, kernel)


def test_a_cascade_adds_the_bias_of_shared_segments(build, device):
    setting = replace(SETTINGS["plain"], cascade=True)
    alone = build(setting.spec())  # its default config shares nothing in small steps
    kernel = build(setting.spec(), config=always_shares(alone.config))
    cases = [shared_case(setting, seed, device) for seed in range(3)]
    for case in cases:
        check_case(case, kernel)
    equal = [torch.equal(run(case, kernel)[0], run(case, alone)[0]) for case in cases]
    assert not all(equal), "no step shares anything"


def test_masses_of_pages_are_those_of_biased_scores(build, device):
    setting = replace(SETTINGS["plain"], page_mass=True)
    kernel = build(setting.spec())
    case = documents_case(setting, [70, 41], 3, device)
    assert float(check_masses(case, kernel, plan_masses(case, kernel)).sum()) > 10


def test_the_bias_may_be_a_part_of_a_larger_tensor(build, device):
    """Its strides differ from those of the pools: here it is one layer of a tensor of all layers."""
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    case = documents_case(setting, [70], 2, device)
    expected = run(case, kernel)
    bias = case.call_arguments["key_bias"]
    layers = torch.full((len(bias), 3, setting.kv_heads, setting.page_size), torch.nan, device=device)
    layers[:, 1] = bias
    case.call_arguments["key_bias"] = layers[:, 1]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run(case, kernel), expected, strict=True))


def test_mistakes_are_refused(build, device):
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    case = documents_case(setting, [40], 2, device)
    arguments = (case.q, case.k_pool, case.v_pool, case.plan(kernel))
    bias = case.call_arguments["key_bias"]
    pages = len(bias)
    for given, why in (
        (None, "the spec has key_bias; give key_bias="),
        (bias.double(), "key_bias .*float64"),
        (bias[0], r"\[pages, kv_heads, page_size\]"),
        (bias[:-1], f"pages, as k_pool.*{pages}|{pages}.*pages, as k_pool"),
        (torch.zeros(pages, 3, 16, device=device), "kv_heads"),
        (torch.zeros(pages, 2, 32, device=device), "page_size"),
        (torch.zeros(pages, 16, 2, device=device).mT, "key_bias"),
        (torch.zeros(pages * 32 + 1, device=device)[1:].view(pages, 2, 16), "key_bias .*16"),
        (torch.zeros(pages, 2, 18, device=device)[..., :16], "key_bias .*16"),
    ):
        with pytest.raises(lazyrope.SpecError, match=why):
            kernel(*arguments, key_bias=given)
    out = torch.empty_like(case.q)
    within_out = out.view(torch.float32).flatten()[:16].expand(pages, 2, 16)
    with pytest.raises(lazyrope.SpecError, match=r"key_bias .*out|out.*key_bias"):
        kernel(*arguments, out=out, key_bias=within_out)
    other = build(replace(setting, key_bias=False).spec())
    with pytest.raises(lazyrope.SpecError, match="key_bias is given; the spec has none"):
        other(*arguments[:3], case.plan(other), key_bias=bias)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mask": "sliding_window"}, 'key_bias with mask = "sliding_window"'),
        ({"mask": "chunked"}, 'key_bias with mask = "chunked".*causal and full'),
        ({"key_form": "raw"}, 'key_bias with key_form = "raw"'),
    ],
)
def test_specs_in_which_slots_have_an_order_are_refused(changes, why):
    with pytest.raises(lazyrope.SpecError, match=why):
        replace(SETTINGS["plain"], **changes).spec()


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "batch invariant"])
def test_plain_pytorch_adds_the_bias_too(name):
    kernel = eager.compile(SETTINGS[name].spec())
    for seed in SEEING_SEEDS:
        check_case(random_case(replace(SETTINGS[name], phase=PHASES[seed % 3]), seed, "cpu"), kernel)


def test_mistakes_are_refused_in_plain_pytorch():
    setting = SETTINGS["plain"]
    kernel = eager.compile(setting.spec())
    case = documents_case(setting, [40], 2, "cpu")
    arguments = (case.q, case.k_pool, case.v_pool, case.plan(kernel))
    bias = case.call_arguments["key_bias"]
    for given, why in (
        (None, "the spec has key_bias; give key_bias="),
        (bias.double(), "key_bias is torch.float64"),
        (bias[:, :1], r"it must be float32 \[pages, kv_heads, page_size\] = \[4, 2, 16\]"),
    ):
        with pytest.raises(lazyrope.SpecError, match=why):
            kernel(*arguments, key_bias=given)
    other = eager.compile(replace(setting, key_bias=False).spec())
    with pytest.raises(lazyrope.SpecError, match="key_bias is given; the spec has none"):
        other(*arguments, key_bias=bias)


def test_a_spec_with_a_bias_is_another_spec():
    spec, without = SETTINGS["plain"].spec(), replace(SETTINGS["plain"], key_bias=False).spec()
    assert spec.key_bias and not without.key_bias
    assert spec != without and hash(spec) != hash(without)
    assert "key_bias=True" in repr(spec)
