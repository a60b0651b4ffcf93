"""append writes keys and values to their slots, rotates keys by their index, and changes nothing else."""

from __future__ import annotations

import random

import lazyrope
import pytest
import torch

from tests.conftest import assert_steps_cover_all
from tests.support.cases import DTYPES, FP8_NAN, PoolBuilder, Setting
from tests.support.metadata import append_arguments
from tests.support.reference import rotate


def ints(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


class Writes:
    """Random spans (count, first, lead), each with pages of its own."""

    def __init__(self, setting: Setting, seed: int, device: str) -> None:
        rng = random.Random(seed)
        size = setting.page_size
        self.rows, self.pages, first_pages = [], [], []
        free = list(range(80))
        rng.shuffle(free)
        for _ in range(rng.randint(1, 6)):
            count, lead = rng.choice([0, 1, 1, 5, 40]), rng.randrange(3 * size)
            first = rng.choice([lead, rng.randint(0, 5000), rng.randint(990_000, 1_000_000)])
            self.rows.append((count, first, lead))
            first_pages.append(len(self.pages))
            self.pages += [free.pop() for _ in range(-(-(lead + count) // size) or 1)]
        indptr = [0]
        for count, _, _ in self.rows:
            indptr.append(indptr[-1] + count)
        self.tokens = indptr[-1]
        self.first_pages = first_pages
        self.metadata = {
            "indptr": ints(indptr, device),
            "start": ints([r[1] for r in self.rows], device),
            "first_page": ints(first_pages, device),
            "lead": ints([r[2] for r in self.rows], device),
            "pages": ints(self.pages, device),
        }

    def slots(self, page_size: int):
        """Yields (row of k, page, slot, index) for every token."""
        row = 0
        for (count, first, lead), first_page in zip(self.rows, self.first_pages, strict=True):
            for i in range(count):
                slot = lead + i
                yield row, self.pages[first_page + slot // page_size], slot % page_size, first + i
                row += 1


@pytest.mark.usefixtures("compiled_ahead")
def test_random_appends_agree_with_fp64(numbered_setting, build, device, executed):
    seed, setting = numbered_setting
    spec = setting.spec()
    kernel = build(spec)
    writes = Writes(setting, seed, device)
    pool = PoolBuilder(setting, 80, random.Random(seed), torch.device(device))
    generator = torch.Generator().manual_seed(seed)
    shape = (writes.tokens, setting.kv_heads, setting.head_dim)
    k, v = (torch.randn(shape, generator=generator).to(DTYPES[setting.dtype]).to(device) for _ in "kv")
    step = kernel.plan_append(
        **append_arguments(writes.metadata),
        capacity=lazyrope.AppendCapacity(writes.tokens + 9),
        page_size=setting.page_size,
        layout=setting.layout,
        check=True,
    )
    kernel.append(k, v, *pool.pools(), step, check=True, **pool.scales)
    assert_stored(spec, pool, k, v, list(writes.slots(setting.page_size)))
    executed.append(setting, kernel, writes.tokens)


def assert_stored(spec, pool, k, v, written_slots):
    """Asserts that the pool has the rows of k and v in these slots (row, page, slot, index), and nothing elsewhere."""
    row, page, slot, index = (
        torch.tensor([s[i] for s in written_slots], dtype=torch.int64, device=k.device) for i in range(4)
    )
    k, v = k[row], v[row]
    result = [pool.slots(p) for p in (pool.k_pool, pool.v_pool)]
    written_k, written_v = (r[page, slot] for r in result)
    assert torch.equal(written_v, pool.stored(v, "v_scale")[0])
    if spec.append_form == "rotated" or spec.key_form == "raw" or pool.setting.rope == "none":
        assert torch.equal(written_k, pool.stored(k, "k_scale")[0])
    else:
        assert_rotated_and_rounded_once(spec, k, index, pool, written_k)
    untouched = torch.ones(result[0].shape[:2], dtype=torch.bool, device=k.device)
    untouched[page, slot] = False
    for r in result:
        left = r[untouched]
        assert bool((left == FP8_NAN if pool.fp8 else left.isnan()).all()), "a slot of no token was written"


def test_random_steps_cover_every_value_and_enough_kernels(request, executed):
    assert_steps_cover_all(request, executed, kernels=20)


# For each dtype, the bits of its fraction and the exponent of its least normal number.
FORMATS = {
    torch.bfloat16: (7, -126),
    torch.float16: (10, -14),
    torch.float8_e4m3fn: (3, -6),
    torch.float8_e5m2: (2, -14),
}


def assert_rotated_and_rounded_once(spec, k, index, pool, written):
    if len(k) == 0:
        return
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    rotated = rotate(k, index, frequencies, spec.rope.rotary_dim, spec.rope_pairing, spec.attention_factor)
    scale = pool.scales.get("k_scale", torch.ones(1, device=k.device)).double()[:, None]
    wanted = rotated / scale
    stored = written.view(pool.fp8).double() if pool.fp8 else written.double()
    bits, least = FORMATS[pool.fp8 or k.dtype]
    unit = 2.0 ** (wanted.abs().log2().floor().clamp_min(least) - bits)
    # This bounds the error of sin.approx and cos.approx (2^-20.9: PTX ISA, "sin") in two products.
    angles = 2 * 2.0**-20.9 * spec.attention_factor * k.abs().max().item()
    assert bool(((stored - wanted).abs() <= 0.5 * unit + 1e-6 * wanted.abs() + angles / scale).all())


def test_appended_keys_are_attended_to_at_their_positions(build, device):
    """Appends raw keys, attends to them as a document, and compares with attention over keys rotated in fp64."""
    setting = Setting()
    spec = setting.spec()
    kernel = build(spec)
    n = 100
    k, v, q = (torch.randn((m, h, 128)).to(torch.bfloat16).to(device) for m, h in ((n, 2), (n, 2), (3, 8)))
    k_pool, v_pool = (torch.full((9, 16, 2, 128), torch.nan, dtype=torch.bfloat16, device=device) for _ in range(2))
    pages = ints([5, 3, 8, 1, 0, 7, 2, 6, 4], device)
    spans = lazyrope.TokenSpans(ints([0, n], device), ints([0], device), ints([0], device))
    step = kernel.plan_append(spans, pages, capacity=lazyrope.AppendCapacity(n))
    kernel.append(k, v, k_pool, v_pool, step)
    segments = lazyrope.Segments(*(ints(x, device) for x in ([0, 1], [300], [0], [n], [0])))
    plan = kernel.plan(ints([0, 3], device), ints([500, 501, 502], device), segments, pages)
    out, _ = kernel(q, k_pool, v_pool, plan)
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    rotated_q = rotate(q, torch.tensor([500, 501, 502], device=device), frequencies, 128)
    rotated_k = rotate(k, torch.arange(n, device=device) + 300, frequencies, 128)
    score = torch.einsum("thd,khd->thk", rotated_q, rotated_k.repeat_interleave(4, dim=1)) * spec.scale
    exact = torch.einsum("thk,khd->thd", score.softmax(-1), v.double().repeat_interleave(4, dim=1))
    assert (out.double() - exact).norm() / exact.norm() < 1e-2


def token_slots(writes: Writes, page_size: int, device: str, skipped: tuple[int, ...] = ()) -> lazyrope.TokenSlots:
    """Returns the slot mapping of these writes. The skipped rows have negative entries."""
    slots = list(writes.slots(page_size))
    mapping = [-1 - row if row in skipped else page * page_size + slot for row, page, slot, _ in slots]
    index = [-9 if row in skipped else index for row, _, _, index in slots]
    return lazyrope.TokenSlots(*(torch.tensor(x, dtype=torch.int64, device=device) for x in (mapping, index)))


@pytest.mark.parametrize(
    "setting",
    [
        Setting(),
        Setting(head_dim=64, layout="HND", page_size=48, rope="partial gptj", dtype="float16"),
        Setting(query_form="rotated", page_size=32),
        Setting(kv_dtype="float8_e4m3fn"),
    ],
    ids=["NHD", "HND", "rotated", "fp8"],
)
def test_a_slot_mapping_stores_the_rows_that_it_does_not_skip(setting, build, device):
    """A slot for each token is an alternative to spans. One step takes both, and a captured graph may refill it."""
    spec = setting.spec()
    kernel = build(spec)
    size, capacity = setting.page_size, lazyrope.AppendCapacity(240)
    step = kernel.plan_append(
        lazyrope.TokenSlots(*(torch.empty(0, dtype=torch.int64, device=device) for _ in range(2))),
        capacity=capacity,
        page_size=size,
        layout=setting.layout,
    )
    for seed in range(4):
        writes = Writes(setting, seed, device)
        skipped = tuple(range(seed % 2, writes.tokens, 3))
        slots = [s for s in writes.slots(size) if s[0] not in skipped]
        pool = PoolBuilder(setting, 80, random.Random(seed), torch.device(device))
        shape = (writes.tokens, setting.kv_heads, setting.head_dim)
        k, v = (torch.randn(shape).to(DTYPES[setting.dtype]).to(device) for _ in "kv")
        step.update(**append_arguments(writes.metadata))  # the next update replaces all spans
        step.update(token_slots(writes, size, device, skipped), check=True)
        kernel.append(k, v, *pool.pools(), step, check=True, **pool.scales)
        assert_stored(spec, pool, k, v, slots)
        step.update(**append_arguments(writes.metadata))  # and these replace all slots
        kernel.append(k, v, *pool.pools(), step, check=True, **pool.scales)
        assert_stored(spec, pool, k, v, list(writes.slots(size)))


def test_keys_of_a_slot_mapping_are_rotated_by_the_given_index(build, device):
    """Two documents at any positions: the index counts from 0 in each, and the slots are in any order."""
    setting = Setting()
    spec = setting.spec()
    kernel = build(spec)
    slots = [(0, 2, 5, 0), (1, 0, 15, 1), (2, 2, 4, 0), (3, 1, 0, 70_000)]  # row, page, slot, index
    mapping, index = (
        torch.tensor(x, dtype=torch.int64, device=device)
        for x in ([page * 16 + slot for _, page, slot, _ in slots], [index for *_, index in slots])
    )
    pool = PoolBuilder(setting, 3, random.Random(0), torch.device(device))
    k, v = (torch.randn((4, 2, 128)).to(torch.bfloat16).to(device) for _ in "kv")
    step = kernel.plan_append(lazyrope.TokenSlots(mapping, index), capacity=lazyrope.AppendCapacity(4), check=True)
    kernel.append(k, v, *pool.pools(), step, check=True)
    assert_stored(spec, pool, k, v, slots)


def int64(*values, device):
    return torch.tensor(values, dtype=torch.int64, device=device)


@pytest.mark.parametrize(
    ("mapping", "index", "says"),
    [
        ([0, 2**35], [0, 1], "slots.slot_mapping[1] = 34359738368, on page 2147483648; a page must fit int32"),
        ([0, 1], [0, -1], "slots.index[1] = -1; it must be 0 to 2147483647"),
        ([0, 1], [2**31, 0], "slots.index[0] = 2147483648; it must be 0 to 2147483647"),
    ],
)
def test_illegal_values_of_a_slot_mapping_are_named(mapping, index, says, build, device):
    slots = lazyrope.TokenSlots(int64(*mapping, device=device), int64(*index, device=device))
    with pytest.raises(lazyrope.SpecError) as error:
        build(Setting().spec()).plan_append(slots, capacity=lazyrope.AppendCapacity(2), check=True)
    assert str(error.value) == says


def test_slots_that_do_not_fit_are_refused(build, device):
    kernel = build(Setting().spec())
    three = int64(0, 1, 2, device=device)

    def error_of(mapping, index, tokens=3):
        with pytest.raises(lazyrope.SpecError) as error:
            kernel.plan_append(lazyrope.TokenSlots(mapping, index), capacity=lazyrope.AppendCapacity(tokens))
        return str(error.value)

    assert "slots.slot_mapping is int32 [3]" in error_of(three.int(), three)
    assert "its dtype must be int64" in error_of(three, three.int())
    assert "slots.index has 2 elements; it must have 3" in error_of(three, three[:2])
    assert "slots.slot_mapping is int64 [3, 1]" in error_of(three[:, None], three)
    assert "slots.index is int64 [2] with strides [2]" in error_of(three[:2], three[::2])
    assert "3 tokens to append; the step was made for at most 2" in error_of(three, three, tokens=2)
    with pytest.raises(lazyrope.SpecError, match=r"slots is a Tensor; it must be a lazyrope\.TokenSlots"):
        kernel.plan_append(three, capacity=lazyrope.AppendCapacity(3))


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ([0, 48], "row 1 of step is on page 3; the pool has pages 0 to 2"),
        ([17, 17], "rows 0 and 1 of step are both slot 1 of page 1; no slot may be written twice"),
    ],
)
def test_append_checks_the_slots_of_a_mapping(mapping, says, build, device):
    kernel = build(Setting().spec())
    slots = lazyrope.TokenSlots(int64(*mapping, device=device), int64(0, 1, device=device))
    step = kernel.plan_append(slots, capacity=lazyrope.AppendCapacity(2), check=True)
    k, v = (torch.zeros((2, 2, 128), dtype=torch.bfloat16, device=device) for _ in "kv")
    k_pool, v_pool = (torch.zeros((3, 16, 2, 128), dtype=torch.bfloat16, device=device) for _ in "kv")
    with pytest.raises(lazyrope.SpecError) as error:
        kernel.append(k, v, k_pool, v_pool, step, check=True)
    assert str(error.value) == says
