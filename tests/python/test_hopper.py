"""Runs the kernels of family sm90a (wgmma, TMA, warp specialisation) in the emulator.

On a Hopper GPU the other test files run them too.
"""

from __future__ import annotations

import random
from dataclasses import replace

import lazyrope
import pytest
import torch

from tests.support.cases import EXTREME_POSITIONS, ROPES, Case, Setting, case_at, documents_case, random_case
from tests.support.checks import check_case
from tests.support.document_fixture import DocumentFixture, in_order
from tests.support.hopper import FACTORS

ARCH = "emu:sm_90a"
pytestmark = pytest.mark.skipif(ARCH not in lazyrope.archs(), reason="this build has no emulator")


def random_setting(seed: int) -> Setting:
    rng = random.Random(seed)
    return Setting(**{name: rng.choice(values) for name, values in FACTORS.items()})


def build(setting: Setting) -> lazyrope.Attention:
    kernel = lazyrope.compile(setting.spec(), arch=ARCH)
    config = kernel.config
    has_decode = setting.head_dim % 64 == 0 and setting.kv_dtype == "as dtype"
    assert config.decode.family == ("sm90a" if has_decode else "sm80")
    assert config.prefill.family == "sm90a"
    return kernel


def prefill_setting(seed: int) -> Setting:
    """Returns a random setting in which some request has more rows than a decode tile."""
    setting = random_setting(seed)
    return replace(setting, phase="prefill") if setting.group < 4 else setting


SEEDS = range(18)


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_step(seed):
    """The emulator searches every fourth step for races."""
    setting = prefill_setting(seed)
    case = random_case(setting, seed, "cpu")
    assert max(len(request.positions) for request in case.requests) * setting.group > 16
    with lazyrope.emulator.options(seed=seed, races=seed % 4 == 0):
        check_case(case, build(setting))


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(4))
def test_random_decode_steps_agree_with_fp64(seed):
    setting = replace(random_setting(200 + seed), phase="decode", head_dim=(64, 128, 192, 256)[seed])
    with lazyrope.emulator.options(seed=seed, races=seed % 2 == 0):
        check_case(random_case(setting, seed, "cpu"), build(setting))


@pytest.mark.sample(3)  # one of each kind of scores
@pytest.mark.parametrize("head_dim", [192, 256])
@pytest.mark.parametrize(("scores", "mask"), [("sinks", "causal"), ("softcap", "full"), ("plain", "sliding_window")])
def test_scores_of_large_head_dims_agree_with_fp64(head_dim, scores, mask):
    """For these head dims the consumers rotate the queries, in bfloat16."""
    setting = Setting(head_dim=head_dim, kv_heads=1, group=2, scores=scores, mask=mask, rope="llama3")
    check_case(documents_case(setting, [90, 40, 130], 50, "cpu"), build(setting))


def test_the_settings_cover_every_value():
    settings = [prefill_setting(seed) for seed in SEEDS]
    assert {name: {getattr(s, name) for s in settings} for name in FACTORS} == {k: set(v) for k, v in FACTORS.items()}


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(6))
def test_random_steps_with_fp8_pools_agree_with_fp64(seed):
    """The rotating warps widen the keys and values, for every head_dim that supports FP8."""
    setting = replace(
        random_setting(100 + seed),
        head_dim=(64, 96, 128)[seed % 3],
        kv_dtype=("float8_e4m3fn", "float8_e5m2")[seed % 2],
        phase="prefill",
    )
    with lazyrope.emulator.options(seed=seed, races=seed % 2 == 0):
        check_case(random_case(setting, seed, "cpu"), build(setting))


SMALL = Setting(head_dim=64, kv_heads=1)


@pytest.mark.sample(1)
@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("kv_dtype", ["as dtype", "float8_e5m2"])
def test_more_blocks_than_the_block_table_has_agree_with_fp64(kv_dtype, races):
    """The block table resolves several windows of blocks of 128 keys.

    Documents end inside a run of 16 slots, and some are shorter than a block.
    """
    setting = replace(SMALL, kv_dtype=kv_dtype)
    with lazyrope.emulator.options(races=races):
        check_case(documents_case(setting, [1500, 70, 131, 1024, 5, 640, 17, 16, 900], 33, "cpu"), build(setting))


@pytest.mark.parametrize("head_dim", [64, 256])
def test_large_queries_are_rotated_without_overflow(head_dim):
    """Queries times 2^16 give one key all the weight, so every result is the value of some key."""
    setting = replace(SMALL, head_dim=head_dim, group=4)
    case = documents_case(setting, [40, 50, 60], 70, "cpu")
    case.q *= 2.0**16
    kernel = build(setting)
    out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel))
    values = torch.cat([s.document.values for s in case.requests[0].slices]).float()
    off = (out.float()[:, :, None] - values[None, :, 0]).abs().amax(-1).amin(-1)
    assert bool(lse.isfinite().all()) and bool((off < 0.05).float().mean() > 0.9)


@pytest.mark.sample(2)
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("tokens", [1, 150])
def test_queries_at_extreme_positions_agree_with_fp64(head_dim, group, tokens):
    """Helper warps rotate the queries of head_dim 64, and the consumers those of head_dim 256."""
    setting = replace(SMALL, head_dim=head_dim, group=group, mask="full")
    for position in EXTREME_POSITIONS:
        check_case(case_at(setting, [position] * tokens, "cpu"), build(setting))


@pytest.mark.sample(1)
@pytest.mark.parametrize("group", [1, 2, 4])
def test_queries_at_both_ends_of_all_positions_agree_with_fp64(group):
    """Positions do not wrap around: the least does not follow the greatest."""
    most = 2**31 - 1
    setting = replace(SMALL, group=group, mask="full")
    for some in ([most, -most - 1], [most - 1, most, -most - 1, -most]):
        check_case(case_at(setting, some * 30, "cpu"), build(setting))


@pytest.mark.sample(1)
@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize(("head_dim", "kv_dtype"), [(64, "as dtype"), (256, "as dtype"), (128, "float8_e4m3fn")])
@pytest.mark.parametrize("tokens", [300, 700])
def test_several_work_tiles_of_a_cta_agree_with_fp64(tokens, head_dim, kv_dtype, races):
    """Warps go on to the next work tile without a barrier of the CTA.

    On four SMs, CTAs get whole tiles round-robin, or KV splits. Helper warps or the consumers rotate the queries.
    """
    setting = replace(SMALL, kv_heads=2, head_dim=head_dim, kv_dtype=kv_dtype)
    with lazyrope.emulator.options(races=races):
        check_case(documents_case(setting, [260, 100], tokens, "cpu"), build(setting))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("head_dim", "races"), [(64, True), (256, False)])
def test_work_tiles_from_the_queue_agree_with_fp64(head_dim, races):
    """Requests see 9 to 17 blocks. The planner uses the queue, because the units are many for four SMs and not alike.

    The second launch finds the queue full again. Searching for races takes most of the time, so one launch does it.
    """
    setting = replace(SMALL, kv_heads=2, head_dim=head_dim)
    fixture = DocumentFixture(setting, [128 if head_dim == 64 else 64] * 17, 1, "cpu")
    counts = [17, 9, 13, 13, 13, 13, 13, 9, 17, 13, 13]
    requests = [in_order(fixture, list(range(count)), 40) for count in counts]
    case = fixture.case(fixture.queries(40 * len(requests)), requests)
    kernel = build(setting)
    step = case.plan(kernel)
    check_case(case, kernel, step)
    with lazyrope.emulator.options(races=races):
        check_case(case, kernel, step)


@pytest.mark.sample(1)
@pytest.mark.parametrize("query_form", ["raw", "rotated"])
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("head_dim", [128, 192])
def test_repeated_bases_agree_with_fp64(head_dim, group, query_form):
    """The base of the first document, for which rotated queries are saved, repeats, and so does a distant base."""
    setting = Setting(head_dim=head_dim, group=group, kv_heads=1, query_form=query_form)
    bases = [70, 0, 70, 1_000_000, 1_000_000, 0, 70]
    with lazyrope.emulator.options(races=True):
        check_case(documents_case(setting, [130, 70, 10, 140, 5, 20, 300], 40, "cpu", bases), build(setting))


@pytest.mark.parametrize("races", [False, True])
def test_a_tile_with_the_most_fixed_splits_agrees_with_fp64(races):
    setting = Setting(head_dim=64)
    default = build(setting).config
    config = lazyrope.KernelConfig(decode=default.decode, prefill=default.prefill, fixed_split_blocks=1)
    fixture = DocumentFixture(setting, [2000], 8, "cpu")  # 16 blocks
    case = fixture.case(fixture.queries(8), [in_order(fixture, [0], 8)])
    with lazyrope.emulator.options(seed=1, races=races):
        check_case(case, lazyrope.compile(setting.spec(), arch=ARCH, config=config))


def test_decode_of_32_rows_agrees_with_fp64():
    """Eight query tokens of four heads each are 32 rows, which the default config computes in prefill."""
    setting = Setting(head_dim=64, kv_heads=1)
    case = documents_case(setting, [150, 70], 8, "cpu")
    default = lazyrope.configs(case.spec, ARCH)[0]
    decode = lazyrope.TileConfig(
        warps_m=1, warps_n=4, warp_m=32, warp_n=16, mma_n=16, stages=3, ctas_per_sm=1, family="sm90a"
    )
    config = lazyrope.KernelConfig(decode=decode, prefill=default.prefill)
    check_case(case, lazyrope.compile(case.spec, arch=ARCH, config=config))


def build_pairs(setting: Setting, own_warps: bool) -> lazyrope.Attention:
    """Compiles kernels whose decode work tiles have two KV heads.

    All warps compute both heads, or each head has its own warps, which is the default for 16 rows.
    """
    default = build(setting).config
    assert default.decode.heads == 2
    assert default.decode.warps_m == (1 if setting.group <= 8 else 2)
    decode = lazyrope.TileConfig(
        warps_m=2 if own_warps else 1,
        warps_n=4,
        warp_m=16 if own_warps or setting.group <= 8 else 32,
        warp_n=16,
        mma_n=16,
        stages=3,
        ctas_per_sm=2,
        family="sm90a",
        heads=2,
    )
    config = lazyrope.KernelConfig(decode=decode, prefill=default.prefill)
    return lazyrope.compile(setting.spec(), arch=ARCH, config=config)


@pytest.mark.sample(2)
@pytest.mark.parametrize("scores", ["plain", "sinks"])
@pytest.mark.parametrize(
    ("group", "own_warps", "tokens"),
    [(4, False, 1), (4, False, 2), (7, False, 1), (9, False, 1), (16, False, 1), (9, True, 1), (16, True, 1)],
)
def test_two_heads_in_a_work_tile_agree_with_fp64(group, own_warps, tokens, scores):
    """Each of the two heads has its own rows, keys and values."""
    setting = Setting(head_dim=64, kv_heads=4, group=group, scores=scores)
    kernel = build_pairs(setting, own_warps)
    with lazyrope.emulator.options(seed=group, races=True):
        check_case(documents_case(setting, [300, 70, 16, 5, 640], tokens, "cpu"), kernel)


@pytest.mark.sample(1)
@pytest.mark.parametrize("rope", ["none", "llama3"])
@pytest.mark.parametrize(("group", "own_warps"), [(8, False), (16, False), (16, True)])
def test_consecutive_work_tiles_of_two_heads_agree_with_fp64(group, own_warps, rope):
    """30 requests run on eight CTAs, and some see no key.

    With 16 rows per head there is one buffer of queries: those of the next work tile are loaded after the consumers
    have used the present ones.
    """
    setting = Setting(head_dim=64, kv_heads=2, group=group, rope=rope)
    fixture = DocumentFixture(setting, [130, 40, 70], 3, "cpu")
    requests = [in_order(fixture, list(range(count % 4)), 1) for count in range(30)]
    case = fixture.case(fixture.queries(len(requests)), requests)
    kernel = build_pairs(setting, own_warps)
    step = case.plan(kernel)
    with lazyrope.emulator.options(seed=group, races=True):
        for _ in range(2):
            check_case(case, kernel, step)


@pytest.mark.sample(2)
@pytest.mark.parametrize("head_dim", [128, 256])
@pytest.mark.parametrize(("tokens", "others", "other_tokens"), [(1, 16, 4), (30, 5, 33)])
def test_rows_of_earlier_requests_change_no_bit(tokens, others, other_tokens, head_dim):
    """The greater scores of these rows would raise the maxima of rows in the same tile."""
    setting = Setting(head_dim=head_dim, kv_heads=1, batch_invariant=True)
    fixture = DocumentFixture(setting, [900], 1, "cpu")
    kernel = lazyrope.compile(setting.spec(), arch=ARCH)
    request, q = in_order(fixture, [0], tokens), fixture.queries(tokens)

    def answer(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        before = 8 * fixture.queries(count * other_tokens)
        requests = [in_order(fixture, [0], other_tokens)] * count
        case = fixture.case(torch.cat([before.to(q.dtype), q]), [*requests, request])
        out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel))
        return out[-tokens:], lse[-tokens:]

    for alone, among_others in zip(answer(0), answer(others), strict=True):
        assert torch.equal(alone, among_others)


@pytest.mark.sample(2)
@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("head_dim", [64, 72, 80, 96, 112, 128, 160, 192, 256])
@pytest.mark.parametrize(("factor", "dtype"), [(8, "float16"), (200, "bfloat16")])
def test_scores_far_above_the_first_ones_agree_with_fp64(factor, dtype, head_dim, races):
    """Only the first scores of a row are searched for its maximum.

    Later scores are so much greater that weights exceed the range of fp16, or of fp32.
    """
    setting = Setting(head_dim=head_dim, dtype=dtype, kv_heads=1)
    case = documents_case(setting, [5, 300, 300, 130], 40, "cpu")
    case.q.mul_(factor)
    with lazyrope.emulator.options(races=races):
        check_case(case, build(setting))


@pytest.mark.sample(2)
@pytest.mark.parametrize("rope", ["none", "partial neox"])
@pytest.mark.parametrize("head_dim", [64, 72, 128, 192, 256])
def test_columns_beyond_rotary_dim_are_not_rotated(head_dim, rope):
    """Unrotated columns are multiplied by the score scale, as rotated ones are, for later documents too."""
    setting = Setting(head_dim=head_dim, kv_heads=1, rope=rope)
    check_case(documents_case(setting, [140, 70, 10], 70, "cpu"), build(setting))


@pytest.mark.sample(2)
@pytest.mark.parametrize("rope", ["none", "llama3"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("of_values", [False, True])
def test_the_padding_of_a_row_of_72_columns_is_not_the_next_head(of_values, layout, rope):
    """Tiles in shared memory have 80 columns of keys and 128 of values. Head 1 begins at column 72 of head 0."""
    setting = Setting(head_dim=72, kv_heads=2, group=4, layout=layout, rope=rope)
    kernel = build(setting)
    case = documents_case(setting, [200, 37, 90], 40, "cpu")
    step = case.plan(kernel)
    with lazyrope.emulator.options(races=True):
        before, _ = kernel(case.q, case.k_pool, case.v_pool, step)
    pool = case.v_pool if of_values else case.k_pool
    (pool[:, :, 1] if layout == "NHD" else pool[:, 1]).fill_(torch.nan)
    after, _ = kernel(case.q, case.k_pool, case.v_pool, step)
    assert torch.equal(before[:, :4], after[:, :4])
    assert after[:, 4:].isnan().all()


def with_shorter_blocks(setting: Setting, keys: int) -> lazyrope.KernelConfig:
    default = lazyrope.configs(setting.spec(), ARCH)[0]
    state = default.prefill.__getstate__() | {"warp_n": keys, "mma_n": keys, "stages": 3}
    return lazyrope.KernelConfig(decode=default.decode, prefill=lazyrope.TileConfig(**state))


@pytest.mark.parametrize("keys", [64, 96])
def test_shorter_blocks_of_padded_rows_agree_with_fp64(keys):
    setting = Setting(head_dim=72, kv_heads=1, group=4)
    case = documents_case(setting, [5, 300, 130], 40, "cpu")
    with lazyrope.emulator.options(races=True):
        check_case(case, lazyrope.compile(case.spec, arch=ARCH, config=with_shorter_blocks(setting, keys)))


def test_blocks_of_padded_rows_that_are_no_whole_swizzle_atoms_are_refused():
    setting = Setting(head_dim=72, kv_heads=1, group=4)
    with pytest.raises(lazyrope.SpecError, match=r"prefill\.warp_n = 112; allowed are 64, 96, 128"):
        lazyrope.compile(setting.spec(), arch=ARCH, config=with_shorter_blocks(setting, 112))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("document", "least", "most"), [(0, 0.9, 1.1), (1, 1.6, 1.9)])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_rotated_queries_have_the_error_of_one_or_two_roundings(head_dim, document, least, most):
    """Limits the RMS error of rotated queries, in units of one rounding, for a work tile's first and second document.

    Each document has one key. One key is zero, with the weight 1. The other has a single nonzero column, so the lse
    reveals that column of the query.
    """
    setting = Setting(head_dim=head_dim, group=4, kv_heads=4)
    bases = [70, 5000]
    case = documents_case(setting, [1, 1], 64, "cpu", bases)
    kernel = build(setting)
    step = case.plan(kernel)
    frequencies = torch.tensor(case.spec.frequencies, dtype=torch.float64)
    angles = (torch.tensor(case.requests[0].positions) - bases[document])[:, None, None] * frequencies
    a, b = case.q.double().chunk(2, dim=-1)
    rotated = torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)
    heads = torch.arange(setting.kv_heads)
    off = once = 0.0
    for columns in torch.arange(head_dim).view(-1, setting.kv_heads)[:: head_dim // 32]:
        case.k_pool.zero_()
        case.k_pool[case.metadata["pages"][document], 0, heads, columns] = 16.0
        _, lse = kernel(case.q, case.k_pool, case.v_pool, step)
        found = torch.expm1(lse.double()).log() * head_dim**0.5 / 16
        exact = rotated.gather(-1, columns.repeat_interleave(setting.group)[:, None].expand(64, -1, 1))[..., 0]
        off += (found - exact).square().sum().item()
        once += (exact.bfloat16().double() - exact).square().sum().item()
    assert least < (off / once) ** 0.5 < most


@pytest.mark.sample(2)
@pytest.mark.parametrize("query_form", ["raw", "rotated"])
@pytest.mark.parametrize(
    ("head_dim", "rope", "rotary_dim"),
    [(64, "neox", 36), (64, "gptj", 8), (128, "neox", 48), (128, "gptj", 24), (192, "neox", 20), (256, "gptj", 248)],
)
def test_rotary_dims_that_are_not_whole_chunks_agree_with_fp64(monkeypatch, head_dim, rope, rotary_dim, query_form):
    """Units of a pairing have runs of two columns, or are odd in number.

    In others, the two chunks of a unit are an odd number of chunks apart.
    """
    monkeypatch.setitem(ROPES, "odd", lambda _: getattr(lazyrope.rope, rope)(10000.0, rotary_dim=rotary_dim))
    setting = Setting(head_dim=head_dim, kv_heads=1, rope="odd", query_form=query_form)
    check_case(documents_case(setting, [140, 70, 10], 70, "cpu"), build(setting))


@pytest.mark.sample(1)
@pytest.mark.parametrize("scores", ["plain", "sinks", "softcap and sinks"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_rows_with_scores_far_from_zero_agree_with_fp64(head_dim, scores):
    """A warp whose row maxima are all near zero subtracts nothing; the other rows have such maxima.

    The same holds with sinks, some of which exceed all keys.
    """
    setting = Setting(head_dim=head_dim, kv_heads=1, rope="none", scores=scores)
    case = documents_case(setting, [200, 150], 70, "cpu")
    case.k_pool.abs_()
    for part in case.requests[0].slices:
        part.document.keys.abs_()
    case.q.abs_()
    for token, factor in ((0, 1), (1, -1), (2, 4), (3, -4), (4, 16), (5, -16)):
        case.q[token::16].mul_(factor)
    case.q[64:].mul_(0.01)  # the maxima of these rows are all near zero
    if "sinks" in case.call_arguments:
        case.call_arguments["sinks"].mul_(20)
    check_case(case, build(setting))


def test_the_decision_about_a_work_tile_is_read_before_the_next():
    """A CTA computes two short KV splits in sequence, in which no warp waits for another warp's products."""
    setting = Setting(head_dim=64, kv_heads=2, batch_invariant=True)
    with lazyrope.emulator.options(races=True):
        check_case(documents_case(setting, [4208], 64, "cpu"), build(setting))


def with_pools(case: Case, change) -> Case:
    return replace(case, k_pool=change(case.k_pool), v_pool=change(case.v_pool))


def spread(pool: torch.Tensor, elements: int) -> torch.Tensor:
    """Returns a copy of the pool whose pages are `elements` further apart."""
    size = pool[0].numel()
    wide = torch.full((pool.shape[0], size + elements), torch.nan, dtype=pool.dtype)
    wide[:, :size] = pool.reshape(pool.shape[0], size)
    return wide.as_strided(pool.shape, (size + elements, *pool.stride()[1:]))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("heads", "tokens"), [(1, 20), (16, 20), (3, 20), (1, 1), (16, 1), (3, 1)])
def test_page_strides_may_be_multiples_of_8_slots_or_of_a_head(layout, heads, tokens):
    """A pool that interleaves the keys and values of each page has such strides."""
    setting = replace(SMALL, layout=layout, kv_heads=2)
    of_a_head = setting.head_dim * (1 if layout == "NHD" else setting.page_size)
    case = documents_case(setting, [200, 33], tokens, "cpu")
    check_case(with_pools(case, lambda pool: spread(pool, heads * of_a_head)), build(setting))


@pytest.mark.parametrize(("dimension", "name"), [(1, "slots"), (2, "heads")])
@pytest.mark.parametrize("tokens", [1, 20])
def test_a_pool_whose_slots_or_heads_share_memory_is_refused(dimension, name, tokens):
    setting = replace(SMALL, kv_heads=2)
    case = documents_case(setting, [40], tokens, "cpu")
    one = with_pools(case, lambda pool: pool.narrow(dimension, 0, 1).expand_as(pool))
    with pytest.raises(lazyrope.SpecError, match=f"the pool's {name} are 0 bytes apart"):
        check_case(one, build(setting))


def test_pages_with_other_strides_are_refused():
    setting = replace(SMALL, kv_heads=2)
    case = documents_case(setting, [40], 20, "cpu")
    kernel = build(setting)
    with pytest.raises(lazyrope.SpecError, match=r"pages are 4112 bytes apart; .* a multiple of 8 slots \(256 bytes"):
        check_case(with_pools(case, lambda pool: spread(pool, 8)), kernel)


def test_a_refused_pool_leaves_the_step_unchanged():
    case = documents_case(replace(SMALL, kv_heads=2), [40], 20, "cpu")
    kernel = build(replace(SMALL, kv_heads=2))
    step = case.plan(kernel)
    default, _ = kernel(case.q, case.k_pool, case.v_pool, step)
    with pytest.raises(lazyrope.SpecError, match="pages are 4112 bytes apart"):
        kernel(case.q, spread(case.k_pool, 8), spread(case.v_pool, 8), step)
    assert torch.equal(kernel(case.q, case.k_pool, case.v_pool, step)[0], default)


@pytest.mark.parametrize("tokens", [1, 20])
def test_pages_of_a_single_head_may_have_any_stride(tokens):
    case = documents_case(SMALL, [40, 70], tokens, "cpu")
    check_case(with_pools(case, lambda pool: spread(pool, 8)), build(SMALL))


@pytest.mark.parametrize("tokens", [1, 20])
def test_an_empty_pool_gives_zero_output(tokens):
    """No query sees a key of the pool."""
    case = documents_case(SMALL, [40], tokens, "cpu")
    kernel = build(SMALL)
    empty = replace(case, k_pool=case.k_pool[:0].clone(), v_pool=case.v_pool[:0].clone())
    none = torch.zeros(0, dtype=torch.int32)
    for name in ("base", "start", "length", "first_page", "lead", "pages"):
        empty.metadata[name] = none
    empty.metadata["segment_indptr"] = torch.zeros_like(case.metadata["segment_indptr"])
    out, lse = kernel(empty.q, empty.k_pool, empty.v_pool, empty.plan(kernel))
    assert bool((out == 0).all()) and bool((lse == -torch.inf).all())


def test_a_pool_of_one_page_agrees_with_fp64():
    case = documents_case(SMALL, [9], 20, "cpu")
    page = case.metadata["pages"][0]
    one = replace(case, k_pool=case.k_pool[page : page + 1], v_pool=case.v_pool[page : page + 1])
    one.metadata["pages"] = torch.zeros_like(case.metadata["pages"])
    check_case(one, build(SMALL))
