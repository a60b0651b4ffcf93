"""reposition copies tokens to other slots, rotates keys to other indices, and changes nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass

import lazyrope
import pytest
import torch

from tests.support.cases import DTYPES, HEAD_DIMS, ROPES, Setting
from tests.support.metadata import append_arguments, step_arguments
from tests.support.reference import rotate

HAS_GPU = torch.cuda.is_available()
ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # relative error of one rounding
PAGES = 90
FARTHEST = 1_000_000


@dataclass
class Run:
    """Consecutive tokens of a document, in pages of their own."""

    count: int
    first: int
    lead: int
    pages: list[int]


@dataclass
class SlotRuns:
    """Runs of tokens: the arguments of plan_append, and the page, slot and index of each row."""

    runs: list[Run]
    page_size: int
    device: str

    def ints(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    @property
    def metadata(self) -> dict[str, torch.Tensor]:
        indptr, first_page, pages = [0], [], []
        for run in self.runs:
            indptr.append(indptr[-1] + run.count)
            first_page.append(len(pages))
            pages += run.pages
        return {
            "indptr": self.ints(indptr),
            "start": self.ints([run.first for run in self.runs]),
            "first_page": self.ints(first_page),
            "lead": self.ints([run.lead for run in self.runs]),
            "pages": self.ints(pages),
        }

    @property
    def rows(self) -> list[tuple[int, int, int]]:
        return [
            (run.pages[(run.lead + i) // self.page_size], (run.lead + i) % self.page_size, run.first + i)
            for run in self.runs
            for i in range(run.count)
        ]


def random_runs(rng: random.Random, counts: list[int], page_size: int, free: list[int]) -> list[Run]:
    runs = []
    for count in counts:
        lead = rng.randrange(2 * page_size)
        first = rng.choice([0, rng.randint(0, 5000), rng.randint(FARTHEST - 1000, FARTHEST)])
        runs.append(Run(count, first, lead, [free.pop() for _ in range(-(-(lead + count) // page_size) or 1)]))
    return runs


class Case:
    """A pool that is NaN except for the source's rows, and a kernel that moves them."""

    def __init__(self, build, device, spec, source: SlotRuns, target: SlotRuns, layout: str = "NHD") -> None:
        self.spec, self.source, self.target, self.layout = spec, source, target, layout
        self.dtype = DTYPES[spec.dtype]
        shape = (PAGES, source.page_size, spec.num_kv_heads, spec.head_dim)
        self.k, self.v = (torch.full(shape, torch.nan, dtype=self.dtype, device=device) for _ in "kv")
        page, slot, _ = self.columns(source)
        for pool in (self.k, self.v):
            pool[page, slot] = torch.randn((len(page), *shape[2:])).to(self.dtype).to(device)
        kernel = build(Setting().spec())  # the slots of rows do not depend on the spec
        capacity = lazyrope.AppendCapacity(len(page) + 5)
        options = {"capacity": capacity, "page_size": source.page_size, "layout": layout, "check": True}
        self.steps = [
            kernel.plan_append(**append_arguments(slot_runs.metadata), **options) for slot_runs in (source, target)
        ]
        self.mover = lazyrope.compile_reposition(spec, arch=kernel.arch)

    def columns(self, slot_runs: SlotRuns) -> list[torch.Tensor]:
        rows = torch.tensor(slot_runs.rows, dtype=torch.int64).reshape(-1, 3).to(self.k.device)
        return list(rows.unbind(1))

    def run(self, k: torch.Tensor, v: torch.Tensor, *steps: lazyrope.AppendStep) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs the kernel, and returns the pools as [pages, slots, heads, head_dim]."""
        hnd = self.layout == "HND"
        given = [pool.transpose(1, 2).contiguous() if hnd else pool.clone() for pool in (k, v)]
        self.mover(*given, *steps, check=True)
        k, v = (pool.transpose(1, 2) if hnd else pool for pool in given)
        return k, v

    def rotated(self, keys: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        frequencies = torch.tensor(self.spec.frequencies, dtype=torch.float64)
        return rotate(keys, by, frequencies, self.spec.rope.rotary_dim or 0, self.spec.rope_pairing)

    def angle_error(self, keys: torch.Tensor) -> float:
        """Bounds the error of sin.approx and cos.approx (2^-20.9: PTX ISA, "sin") in two products."""
        return 2 * 2.0**-20.9 * keys.abs().max().item()

    def assert_moved(self, k: torch.Tensor, v: torch.Tensor) -> None:
        (page, slot, index), (to_page, to_slot, to_index) = self.columns(self.source), self.columns(self.target)
        assert torch.equal(v[to_page, to_slot], self.v[page, slot])
        keys, moved = self.k[page, slot], k[to_page, to_slot]
        if self.spec.rope.variant == "none":
            assert torch.equal(moved, keys)
        elif len(keys) > 0:
            expected = self.rotated(keys, to_index - index)
            off = (moved.double() - expected).abs()
            assert (off <= ULP[self.dtype] * expected.abs() + self.angle_error(keys)).all()
            rotary_dim = self.spec.rope.rotary_dim or self.spec.head_dim
            assert torch.equal(moved[..., rotary_dim:], keys[..., rotary_dim:])
        self.assert_untouched(k, v, to_page, to_slot)

    def assert_untouched(self, k: torch.Tensor, v: torch.Tensor, page: torch.Tensor, slot: torch.Tensor) -> None:
        """Checks that all other slots have the same bits as before, NaN included."""
        untouched = torch.ones(k.shape[:2], dtype=torch.bool, device=k.device)
        untouched[page, slot] = False
        for after, before in ((k, self.k), (v, self.v)):
            bits = [pool[untouched].view(torch.int16) for pool in (after.contiguous(), before)]
            assert torch.equal(*bits), "a slot that no row goes to was written"


def spec_of(rng: random.Random, rope: str, dtype: str, **fields: object) -> lazyrope.AttentionSpec:
    heads = rng.choice([1, 2, 3])
    head_dim = rng.choice(HEAD_DIMS)
    return lazyrope.AttentionSpec(
        head_dim=head_dim, num_q_heads=2 * heads, num_kv_heads=heads, rope=ROPES[rope](head_dim), dtype=dtype, **fields
    )


@pytest.mark.sample(36)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rope", list(ROPES))
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_random_moves_agree_with_fp64(build, device, seed, rope, dtype, layout):
    rng = random.Random(f"{seed} {rope} {dtype} {layout}")
    page_size = rng.choice([16, 48, 128])
    counts = [rng.choice([0, 1, 5, 16, 40]) for _ in range(rng.randint(1, 6))]
    free = rng.sample(range(PAGES), PAGES)
    source, target = (SlotRuns(random_runs(rng, counts, page_size, free), page_size, device) for _ in range(2))
    case = Case(build, device, spec_of(rng, rope, dtype), source, target, layout)
    case.assert_moved(*case.run(case.k, case.v, *case.steps))


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_a_document_moved_to_its_base_and_back_is_within_two_roundings(build, device, dtype):
    """The document returns within two roundings: those of the rotations there and back."""
    count, rng = 70, random.Random(dtype)
    here = SlotRuns([Run(count, 0, 3, list(range(5)))], 16, device)
    there = SlotRuns([Run(count, FARTHEST, 20, list(range(40, 46)))], 16, device)
    case = Case(build, device, spec_of(rng, "llama3", dtype), here, there)
    k, v = case.run(case.k, case.v, *case.steps)
    case.assert_moved(k, v)
    page, slot, _ = case.columns(here)
    k[page, slot] = v[page, slot] = torch.nan
    k, v = case.run(k, v, *reversed(case.steps))
    keys = case.k[page, slot]
    assert torch.equal(v[page, slot], case.v[page, slot])
    # Each element of a rotated pair is rounded, so its error is at most the rounding error of the pair's length.
    half = case.spec.head_dim // 2
    pair = (keys[..., :half].double() ** 2 + keys[..., half:].double() ** 2).sqrt().repeat(1, 1, 2)
    off = (k[page, slot].double() - keys.double()).abs()
    assert (off <= 2.5 * ULP[case.dtype] * pair + 2 * case.angle_error(keys)).all()


def test_a_move_to_the_same_index_is_a_copy(build, device):
    rng = random.Random(1)
    here = SlotRuns([Run(33, 777, 0, [4, 5, 6])], 16, device)
    there = SlotRuns([Run(33, 777, 9, [1, 2, 3])], 16, device)
    case = Case(build, device, spec_of(rng, "llama3", "bfloat16"), here, there)
    k, _ = case.run(case.k, case.v, *case.steps)
    (page, slot, _), (to_page, to_slot, _) = case.columns(here), case.columns(there)
    assert torch.equal(k[to_page, to_slot], case.k[page, slot])


def test_the_append_form_does_not_change_the_kernel(build, device):
    """The kernel rotates keys that were appended in rotated form, too."""
    here, there = SlotRuns([Run(20, 5, 0, [4, 5])], 16, device), SlotRuns([Run(20, 905, 0, [1, 2])], 16, device)
    spec = spec_of(random.Random(2), "neox", "bfloat16", query_form="rotated")
    case = Case(build, device, spec, here, there)
    case.assert_moved(*case.run(case.k, case.v, *case.steps))
    raw = lazyrope.AttentionSpec(
        head_dim=spec.head_dim, num_q_heads=spec.num_q_heads, num_kv_heads=spec.num_kv_heads, rope=spec.rope
    )
    assert case.mover.kernel.source == lazyrope.compile_reposition(raw, case.mover.arch).kernel.source


def test_rows_that_one_side_lacks_are_not_moved(build, device):
    here, there = SlotRuns([Run(20, 0, 0, [4, 5])], 16, device), SlotRuns([Run(20, 50, 0, [1, 2])], 16, device)
    case = Case(build, device, spec_of(random.Random(3), "neox", "bfloat16"), here, there)
    shorter = SlotRuns([Run(7, 50, 0, [1, 2])], 16, device)
    case.steps[1].update(**append_arguments(shorter.metadata), check=True)
    k, v = case.run(case.k, case.v, *case.steps)
    page, slot, _ = case.columns(shorter)
    assert not k[page, slot].isnan().any()
    case.assert_untouched(k, v, page, slot)
    case.steps[0].update(**append_arguments(SlotRuns([Run(0, 0, 0, [4])], 16, device).metadata), check=True)
    k, v = case.run(case.k, case.v, *case.steps)
    case.assert_untouched(k, v, page[:0], slot[:0])


def test_moved_keys_are_attended_to_at_their_new_positions(build, device):
    """A copy that was moved to b and is read at base 0 gives the result of the document read at base b."""
    spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=4, num_kv_heads=2, rope=lazyrope.rope.neox(10000.0))
    here, there = SlotRuns([Run(40, 0, 0, [4, 5, 6])], 16, device), SlotRuns([Run(40, 300, 0, [1, 2, 3])], 16, device)
    case = Case(build, device, spec, here, there)
    k, v = case.run(case.k, case.v, *case.steps)
    kernel, ints = build(spec), here.ints
    q = torch.randn((2, 4, 64)).to(torch.bfloat16).to(device)

    def attend(pages: list[int], base: int, start: int) -> torch.Tensor:
        segments = {"base": [base], "start": [start], "length": [40], "first_page": [0], "pages": pages}
        requests = {"q_indptr": [0, 2], "q_position": [400, 401], "segment_indptr": [0, 1]}
        tensors = {name: ints(values) for name, values in (requests | segments).items()}
        step = kernel.plan(**step_arguments(tensors))
        return kernel(q, k, v, step)[0].double()

    lazy, moved = attend([4, 5, 6], 300, 0), attend([1, 2, 3], 0, 300)
    assert (lazy - moved).norm() / lazy.norm() < 1e-2


def test_a_reposition_exposes_its_spec_and_kernel(build, device):
    spec = spec_of(random.Random(4), "llama3", "float16")
    mover = lazyrope.compile_reposition(spec, None if HAS_GPU else "emu:sm_80")
    assert mover.spec == spec and mover.kernel.name == "reposition" and mover.kernel.arch == mover.arch
    assert mover.kernel.spill_bytes == 0 and "lazyrope_reposition" in mover.kernel.source
    assert repr(mover).startswith(f"Reposition({spec!r}, ") and f"arch='{mover.arch}'" in repr(mover)
    assert "reposition" not in build(spec).kernels


def test_a_cubin_is_compiled_for_an_absent_gpu():
    mover = lazyrope.compile_reposition(spec_of(random.Random(5), "llama3", "bfloat16"), "sm_90a")
    assert mover.kernel.cubin[:4] == b"\x7fELF" and mover.kernel.spill_bytes == 0
    with pytest.raises(lazyrope.SpecError, match='arch "sm_75" is unknown'):
        lazyrope.compile_reposition(mover.spec, "sm_75")
