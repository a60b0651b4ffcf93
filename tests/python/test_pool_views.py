"""Pools may be views of one tensor, with their dimensions in any order in memory."""

from __future__ import annotations

import lazyrope
import pytest
import torch

from tests.support.cases import Setting
from tests.support.reference import rotate

PAGES, SIZE, HEADS, DIM = 9, 16, 2, 64
TOKENS, BASE = 40, 300
SPEC = Setting(head_dim=DIM, kv_heads=HEADS).spec()

# Each function makes the pools [pages, slots, heads, head_dim] from filled(shape).
VIEWS = {
    "vLLM": lambda filled: filled(PAGES, HEADS, SIZE, 2 * DIM).transpose(1, 2).split(DIM, -1),
    "by element rows": lambda filled: filled(PAGES, SIZE, HEADS, 2, DIM).unbind(3),
    "by slots": lambda filled: filled(PAGES, SIZE, 2, HEADS, DIM).unbind(2),
    "by pages": lambda filled: filled(PAGES, 2, SIZE, HEADS, DIM).unbind(1),
    "heads outside pages": lambda filled: filled(HEADS, PAGES, SIZE, 2 * DIM).permute(1, 2, 0, 3).split(DIM, -1),
    "pages inside slots": lambda filled: filled(SIZE, 2, PAGES, HEADS, DIM).transpose(0, 2).unbind(1),
}

Pools = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module", params=["emu:sm_80", "emu:sm_90a"] if not torch.cuda.is_available() else [None])
def arch(request: pytest.FixtureRequest) -> str | None:
    if request.param is not None and request.param not in lazyrope.archs():
        pytest.skip("this build has no emulator")
    return request.param


class Pass:
    """Appends a document, moves it to other pages and to index BASE, and attends to it there."""

    def __init__(self, arch: str | None, device: str) -> None:
        self.device = device
        self.kernel = lazyrope.compile(SPEC, arch=arch)
        self.mover = lazyrope.compile_reposition(SPEC, arch=arch)
        random = torch.Generator().manual_seed(5)
        shapes = [(TOKENS, HEADS, DIM), (TOKENS, HEADS, DIM), (3, SPEC.num_q_heads, DIM)]
        self.k, self.v, self.q = (torch.randn(x, generator=random).to(torch.bfloat16).to(device) for x in shapes)
        self.pages = self.ints(5, 1, 7, 0, 8, 3)
        self.source, self.target = (self.writes(first_page, start) for first_page, start in ((0, 0), (3, BASE)))
        segments = lazyrope.Segments(*(self.ints(*x) for x in ([0, 1], [0], [BASE], [TOKENS], [3])))
        positions = self.ints(*(BASE + TOKENS + i for i in range(3)))
        self.step = self.kernel.plan(self.ints(0, 3), positions, segments, self.pages)

    def ints(self, *values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def writes(self, first_page: int, start: int) -> lazyrope.AppendStep:
        spans = lazyrope.TokenSpans(self.ints(0, TOKENS), self.ints(start), self.ints(first_page), self.ints(0))
        return self.kernel.plan_append(spans, self.pages, capacity=lazyrope.AppendCapacity(TOKENS))

    def filled(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, torch.nan, dtype=torch.bfloat16, device=self.device)

    def run(self, pools: Pools) -> tuple[torch.Tensor, torch.Tensor]:
        self.kernel.append(self.k, self.v, *pools, self.source, check=True)
        self.mover(*pools, self.source, self.target, check=True)
        return self.kernel(self.q, *pools, self.step, check=True)

    def exact(self) -> torch.Tensor:
        frequencies = torch.tensor(SPEC.frequencies, dtype=torch.float64)
        positions = torch.arange(BASE, BASE + TOKENS + 3, device=self.device)
        keys = rotate(self.k, positions[:TOKENS], frequencies, DIM)
        queries = rotate(self.q, positions[TOKENS:], frequencies, DIM)
        score = torch.einsum("thd,khd->thk", queries, keys.repeat_interleave(SPEC.group_size, dim=1)) * SPEC.scale
        values = self.v.double().repeat_interleave(SPEC.group_size, dim=1)
        return torch.einsum("thk,khd->thd", score.softmax(-1), values)


@pytest.fixture(scope="module")
def one(arch: str | None, device: str) -> Pass:
    return Pass(arch, device)


@pytest.mark.parametrize("view", VIEWS)
def test_pools_that_alternate_in_one_tensor_hold_what_separate_pools_hold(one, view):
    separate = one.filled(PAGES, SIZE, HEADS, DIM), one.filled(PAGES, SIZE, HEADS, DIM)
    expected, expected_lse = one.run(separate)
    assert (expected.double() - one.exact()).norm() / one.exact().norm() < 1e-2
    pools = VIEWS[view](one.filled)
    assert pools[0].shape == separate[0].shape
    out, lse = one.run(pools)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    for pool, same in zip(pools, separate, strict=True):
        assert torch.equal(pool.contiguous().view(torch.int16), same.view(torch.int16))


def test_pools_that_overlap_in_one_tensor_are_refused(one):
    tokens = one.filled(PAGES, HEADS, SIZE, 3 * DIM).transpose(1, 2)
    for pools in (
        (tokens[..., :DIM], tokens[..., 8 : DIM + 8]),
        (tokens[..., DIM:-DIM], tokens[..., DIM + 8 : 8 - DIM]),
    ):
        with pytest.raises(lazyrope.SpecError, match="k_pool and v_pool share memory"):
            one.run(pools)
    expanded = one.filled(PAGES, SIZE, 1, DIM).expand(-1, -1, HEADS, -1)
    with pytest.raises(lazyrope.SpecError, match=r"k_pool is .* memory of its own for every element"):
        one.run((expanded, expanded.clone()))


def test_new_keys_and_values_may_not_be_in_the_pools(one):
    pools = one.filled(PAGES, SIZE, HEADS, DIM), one.filled(PAGES, SIZE, HEADS, DIM)
    rows = pools[1].view(-1, HEADS, DIM)[:TOKENS]
    for k, v, named in ((rows, one.v, "v_pool and k"), (one.k, rows, "v_pool and v")):
        with pytest.raises(lazyrope.SpecError, match=f"{named} share memory"):
            one.kernel.append(k, v, *pools, one.source)


def test_results_may_not_be_in_any_input(one):
    pools = tuple(pool.zero_() for pool in VIEWS["vLLM"](one.filled))
    memory = torch.zeros(1 << 12, dtype=torch.float32, device=one.device)
    lse, out = memory.as_strided((3, SPEC.num_q_heads), (SPEC.num_q_heads, 1)), torch.empty_like(one.q)
    step = one.kernel.plan(
        one.ints(0, 3),
        one.ints(0, 1, 2),
        lazyrope.Segments(*(one.ints(*x) for x in ([0, 0], [], [], [], []))),
        memory.view(torch.int32)[4:6],
    )
    with pytest.raises(lazyrope.SpecError, match="lse and the step's pages share memory"):
        one.kernel(one.q, *pools, step, out=out, lse=lse)
    lse = memory.as_strided((3, SPEC.num_q_heads), (SPEC.num_q_heads, 1), 6)
    one.kernel(one.q, *pools, step, out=out, lse=lse)
    between = pools[0].new_empty((3, SPEC.num_q_heads, 2, DIM))
    one.kernel(between[:, :, 0], *pools, step, out=between[:, :, 1], lse=lse)
    in_pool = pools[1].permute(0, 2, 1, 3).flatten(1, 2)[:3, : SPEC.num_q_heads]
    with pytest.raises(lazyrope.SpecError, match="out and v_pool share memory"):
        one.kernel(one.q, *pools, step, out=in_pool, lse=lse)


def test_results_and_pools_may_not_hold_scales_or_sinks(build, device):
    setting = Setting(head_dim=DIM, kv_heads=HEADS, kv_dtype="float8_e4m3fn", scores="sinks")
    kernel, spec = build(setting.spec()), setting.spec()
    ints = lambda *values: torch.tensor(values, dtype=torch.int32, device=device)  # noqa: E731
    step = kernel.plan(ints(0, 0), ints(), lazyrope.Segments(ints(0, 0), *(ints() for _ in range(4))), ints())
    q = torch.zeros((3, spec.num_q_heads, DIM), dtype=torch.bfloat16, device=device)
    lse = torch.zeros((3, spec.num_q_heads), dtype=torch.float32, device=device)
    pools = [torch.zeros((PAGES, SIZE, HEADS, DIM), dtype=torch.uint8, device=device) for _ in "kv"]
    for name in ("k_scale", "v_scale", "sinks"):
        given = {"sinks": torch.zeros(spec.num_q_heads, device=device)} | {name: lse[1]}
        given |= {name: lse[1, :HEADS]} if "scale" in name else {}
        with pytest.raises(lazyrope.SpecError, match=f"lse and {name} share memory"):
            kernel(q, *pools, step, out=torch.empty_like(q), lse=lse, **given)
    spans = lazyrope.TokenSpans(ints(0, 3), ints(0), ints(0))
    writes = kernel.plan_append(spans, ints(0), capacity=lazyrope.AppendCapacity(3))
    rows = q[:, :HEADS]
    for name in ("k_scale", "v_scale"):
        for pool, which in zip(pools, ("k_pool", "v_pool"), strict=True):
            with pytest.raises(lazyrope.SpecError, match=f"{which} and {name} share memory"):
                kernel.append(rows, rows, *pools, writes, **{name: pool.view(torch.float32)[0, 0, 0, :1]})
