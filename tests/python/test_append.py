"""append: new keys and values go to their slots, keys rotated by their index, and nothing else changes."""

from __future__ import annotations

import random

import pytest
import torch

from tests.support import covering
from tests.support.cases import DTYPES, Setting
from tests.support.reference import rotate


def ints(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


class Writes:
    """Random requests: (count, first, lead) each with pages of their own."""

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
            "first": ints([r[1] for r in self.rows], device),
            "first_page": ints(first_pages, device),
            "lead": ints([r[2] for r in self.rows], device),
            "pages": ints(self.pages, device),
        }

    def slots(self, page_size: int):
        """(row of k, page, slot, index) of every token."""
        row = 0
        for (count, first, lead), first_page in zip(self.rows, self.first_pages, strict=True):
            for i in range(count):
                slot = lead + i
                yield row, self.pages[first_page + slot // page_size], slot % page_size, first + i
                row += 1


FACTORS = ("head_dim", "dtype", "layout", "page_size", "rope", "query_form", "kv_heads")
SETTINGS = covering.covering_settings(32, 0, FACTORS)


def test_the_sample_has_every_value_of_every_factor():
    for name in FACTORS:
        assert {getattr(setting, name) for setting in SETTINGS} == set(covering.FACTORS[name]), name


@pytest.mark.parametrize("seed", range(len(SETTINGS)))
def test_random_appends(build, device, seed):
    setting = SETTINGS[seed]
    dtype = DTYPES[setting.dtype]
    spec = setting.spec()
    kernel = build(spec)
    writes = Writes(setting, seed, device)
    shape = (80, setting.page_size, setting.kv_heads, setting.head_dim)
    pools = [torch.full(shape, torch.nan, dtype=dtype, device=device) for _ in range(2)]
    given = [p.transpose(1, 2).contiguous() if setting.layout == "HND" else p for p in pools]
    k, v = (torch.randn((writes.tokens, setting.kv_heads, setting.head_dim)).to(dtype).to(device) for _ in range(2))
    step = kernel.plan_append(
        **writes.metadata, tokens=writes.tokens + 9, page_size=setting.page_size, layout=setting.layout, check=True
    )
    kernel.append(k, v, *given, step, check=True)
    result = [p.transpose(1, 2) if setting.layout == "HND" else p for p in given]
    places = list(writes.slots(setting.page_size))
    page, slot, index = (torch.tensor([p[i] for p in places], dtype=torch.int64) for i in (1, 2, 3))
    expected_k = k
    if setting.query_form == "raw":
        frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
        expected_k = rotate(
            k, index.to(device), frequencies, spec.rope.rotary_dim, spec.rope_pairing, spec.attention_factor
        )
    written_k, written_v = (r[page.to(device), slot.to(device)] for r in result)
    assert torch.equal(written_v, v)
    if setting.query_form == "rotated" or setting.rope == "none":
        assert torch.equal(written_k, k)
    elif writes.tokens > 0:
        # One rounding, and what sin.approx and cos.approx are off by (2^-20.9: PTX ISA, "sin"), in two products.
        ulp = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
        angles = 2 * 2.0**-20.9 * spec.attention_factor * k.abs().max().item()
        assert ((written_k.double() - expected_k).abs() <= ulp * expected_k.abs() + angles).all()
    untouched = torch.ones(shape[:2], dtype=torch.bool)
    untouched[page, slot] = False
    for r in result:
        assert bool(r[untouched.to(device)].isnan().all()), "a slot that no token belongs to was written"


def test_what_is_appended_is_what_attend_reads(build, device):
    """Raw keys appended, then attended to as a document: equals attention over those keys rotated in fp64."""
    setting = Setting()
    spec = setting.spec()
    kernel = build(spec)
    n = 100
    k, v, q = (torch.randn((m, h, 128)).to(torch.bfloat16).to(device) for m, h in ((n, 2), (n, 2), (3, 8)))
    k_pool, v_pool = (torch.full((9, 16, 2, 128), torch.nan, dtype=torch.bfloat16, device=device) for _ in range(2))
    pages = ints([5, 3, 8, 1, 0, 7, 2, 6, 4], device)
    step = kernel.plan_append(
        ints([0, n], device), ints([0], device), ints([0], device), ints([0], device), pages, tokens=n
    )
    kernel.append(k, v, k_pool, v_pool, step)
    plan = kernel.plan(
        ints([0, 3], device),
        ints([500, 501, 502], device),
        ints([0, 1], device),
        ints([300], device),
        ints([0], device),
        ints([n], device),
        ints([0], device),
        pages,
    )
    out, _ = kernel(q, k_pool, v_pool, plan)
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    turned_q = rotate(q, torch.tensor([500, 501, 502], device=device), frequencies, 128)
    turned_k = rotate(k, torch.arange(n, device=device) + 300, frequencies, 128)
    score = torch.einsum("thd,khd->thk", turned_q, turned_k.repeat_interleave(4, dim=1)) * spec.scale
    exact = torch.einsum("thk,khd->thd", score.softmax(-1), v.double().repeat_interleave(4, dim=1))
    assert (out.double() - exact).norm() / exact.norm() < 1e-2
