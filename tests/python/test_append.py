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
    written_slots = list(writes.slots(setting.page_size))
    page, slot, index = (torch.tensor([p[i] for p in written_slots], dtype=torch.int64) for i in (1, 2, 3))
    result = [pool.slots(p) for p in (pool.k_pool, pool.v_pool)]
    written_k, written_v = (r[page.to(device), slot.to(device)] for r in result)
    assert torch.equal(written_v, pool.stored(v, "v_scale")[0])
    if setting.query_form == "rotated" or setting.rope == "none":
        assert torch.equal(written_k, pool.stored(k, "k_scale")[0])
    else:
        assert_rotated_and_rounded_once(spec, k, index.to(device), pool, written_k)
    untouched = torch.ones(result[0].shape[:2], dtype=torch.bool)
    untouched[page, slot] = False
    for r in result:
        left = r[untouched.to(device)]
        assert bool((left == FP8_NAN if pool.fp8 else left.isnan()).all()), "a slot of no token was written"
    executed.append(setting, kernel, writes.tokens)


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
