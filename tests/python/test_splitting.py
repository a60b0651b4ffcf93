"""The planner divides requests into KV splits and into work tiles of several heads."""

from __future__ import annotations

import random
from dataclasses import replace

import lazyrope
import pytest
import torch

from tests.support.cases import Setting, documents_case, random_case
from tests.support.checks import check_case
from tests.support.document_fixture import DocumentFixture, in_order

# Query tokens of a request. Many tokens give few splits or none; the emulator is too slow for them.
TOKENS = [1, 4, 30, *([200, 600, 1500] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module")
def divided(build):
    """Returns a function that compiles the default config with another division of work."""

    def compile_divided(setting: Setting, **divides: int) -> lazyrope.Attention:
        default = build(setting.spec()).config
        config = lazyrope.KernelConfig(decode=default.decode, prefill=default.prefill, **divides)
        return build(setting.spec(), config=config)

    return compile_divided


@pytest.mark.sample(3)
@pytest.mark.parametrize("phase", ["decode", "mixed"])
@pytest.mark.parametrize(
    "divides",
    [{"heads_per_work_tile": 4}, {"min_split_blocks": 1}, {"fixed_split_blocks": 1}, {"equal_splits": False}],
    ids=str,
)
def test_any_division_of_work_agrees_with_fp64(divided, device, divides, phase, pytestconfig):
    setting = Setting(phase=phase, kv_heads=4, head_dim=64)
    kernel = divided(setting, **divides)
    # The step of mixed with seed 0, and that of decode with seed 3, have requests that see several splits.
    for seed in range(4) if device == "cuda" or pytestconfig.getoption("soak") else (0, 3):
        case = random_case(setting, seed, device, longest=1500)
        if seed == (0 if phase == "mixed" else 3):
            assert max(sum(s.length for s in request.slices) for request in case.requests) > 500
        check_case(case, kernel)


def test_metadata_may_be_unaligned(build, device):
    """The planner loads four segments at a time if all arrays are aligned to 16 bytes."""
    setting = Setting(phase="mixed", head_dim=64)
    case = random_case(setting, 3, device, longest=1500)
    assert case.metadata["base"].numel() > 4
    shifted = {name: torch.cat([array[:1], array])[1:] for name, array in case.metadata.items()}
    assert {array.data_ptr() % 16 for array in shifted.values()} == {4}
    check_case(replace(case, metadata=shifted), build(setting.spec()))


def test_a_work_tile_of_several_heads_may_have_more_pages_than_a_window(divided, device):
    """Each warp computes one head over all blocks of the work tile."""
    setting = Setting(kv_heads=4, head_dim=64)
    kernel = divided(setting, heads_per_work_tile=4)
    requests = 8
    for length in (520, 600, 660, 700):
        fixture = DocumentFixture(setting, [length], length, device)
        check_case(fixture.case(fixture.queries(requests), [in_order(fixture, [0], 1)] * requests), kernel)


@pytest.mark.parametrize("tokens", [1, 30])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_tile_split_among_all_ctas_agrees_with_fp64(divided, device, head_dim, tokens):
    """On a GPU there are more CTAs than lanes of a warp."""
    setting = Setting(head_dim=head_dim, kv_heads=1)
    kernel = divided(setting, min_split_blocks=1)
    fixture = DocumentFixture(setting, [1300, 3400], tokens, device)
    check_case(fixture.case(fixture.queries(tokens), [in_order(fixture, [0, 1], tokens)]), kernel)


@pytest.mark.sample(2)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("asked", ["spec", "config"])
def test_a_batch_invariant_answer_does_not_depend_on_its_batch(build, divided, device, tokens, asked):
    """The bits are equal for any requests before and after this one: in 4 batches, and in 50 on a GPU."""
    setting = Setting(head_dim=64, batch_invariant=asked == "spec")
    fixture = DocumentFixture(setting, [900, 130, 1400, 17, 600], tokens, device)
    kernel = build(setting.spec()) if asked == "spec" else divided(setting, fixed_split_blocks=1)
    request, q = in_order(fixture, [2, 0, 3], tokens), fixture.queries(tokens)
    rng = random.Random(tokens)

    def answer(before: int, after: int) -> tuple[torch.Tensor, torch.Tensor]:
        counts = [rng.choice([1, 1, 3, 40]) for _ in range(before + after)]
        others = [in_order(fixture, rng.choices(range(5), k=rng.randint(0, 4)), n) for n in counts]
        first = sum(counts[:before])
        queries = torch.cat([fixture.queries(first), q, fixture.queries(sum(counts[before:]))])
        case = fixture.case(queries, [*others[:before], request, *others[before:]])
        out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel, check=True))
        return out[first : first + tokens], lse[first : first + tokens]

    alone, alone_lse = answer(0, 0)
    batches = [(0, 1), (1, 0), (2, 3), (6, 0)]
    if device == "cuda":
        batches += [(rng.randint(0, 40), rng.randint(0, 40)) for _ in range(46)]
    for before, after in batches:
        out, lse = answer(before, after)
        assert torch.equal(out, alone)
        assert torch.equal(lse, alone_lse)


def test_a_batch_invariant_attention_requires_fixed_splits(build):
    setting = Setting(head_dim=64, batch_invariant=True)
    config = build(setting.spec()).config
    assert config.fixed_split_blocks > 0
    default = lazyrope.KernelConfig(decode=config.decode, prefill=config.prefill)
    with pytest.raises(lazyrope.SpecError, match="fixed_split_blocks = 0; with batch_invariant"):
        build(setting.spec(), config=default)


@pytest.mark.parametrize(
    ("arch", "length", "tokens"), [("emu:sm_80", 900, 1), ("emu:sm_80", 900, 40), ("emu:sm_90a", 2000, 1)]
)
def test_combiners_that_give_up_waiting_do_not_change_results(arch, length, tokens):
    """A combiner that waits too long for the other splits leaves its rows to the last CTA of the tile.

    The combiner sets a mark in memory, which the next launches find.
    """
    if arch not in lazyrope.archs():
        pytest.skip("this build has no emulator")
    setting = Setting(kv_heads=1, head_dim=64)
    kernel = lazyrope.compile(setting.spec(), arch=arch)
    case = documents_case(setting, [length], tokens, "cpu")
    check_case(case, kernel)
    step = case.plan(kernel)
    first = kernel(case.q, case.k_pool, case.v_pool, step)
    rows_left = set()
    for seed in range(16):
        resident = random.Random(seed).choice([1, 1024, 4096])
        with lazyrope.emulator.options(seed=seed, resident_threads=resident), lazyrope.emulator.profile() as profile:
            again = kernel(case.q, case.k_pool, case.v_pool, step)
        assert all(map(torch.equal, again, first)), seed
        lines = [line for line in profile.lines if "mark_of(split_.index), kAbandoned" in line.text]
        rows_left.add(sum(line.lanes for line in lines))
    assert len(rows_left) > 1
