"""lazyrope.emulator: its options, its profiles, and the error of a kernel that breaks a rule."""

from __future__ import annotations

import dataclasses
import pickle
import re

import lazyrope
import pytest
import torch
from lazyrope import _core

from tests.support.cases import Case, Setting, documents_case
from tests.support.metadata import step_arguments

ARCH = "emu:sm_80"
pytestmark = pytest.mark.skipif(ARCH not in lazyrope.archs(), reason="built without the emulator")


@pytest.fixture(autouse=True)
def restored():
    """Checks that each test restores the options of the emulator."""
    before = _core.emulator_options()
    yield
    assert _core.emulator_options() == before


def case_of(**setting: object) -> tuple[Case, lazyrope.Attention]:
    case = documents_case(Setting(**setting), [40, 70], 5, "cpu")
    return case, lazyrope.compile(case.spec, arch=ARCH)


def attend(case: Case, kernel: lazyrope.Attention) -> torch.Tensor:
    out, _ = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **case.call_arguments)
    return out


def counts(profile: lazyrope.emulator.Profile) -> list[tuple]:
    """Returns the counts of each line. Cache lines are left out, because host tensors may begin inside one."""
    return [(line.file, line.line, line.executions, line.wavefronts, line.sectors) for line in profile.lines]


def test_a_profile_counts_by_line():
    case, kernel = case_of(head_dim=64)
    with lazyrope.emulator.profile() as profile:
        attend(case, kernel)
    lines = profile.lines
    assert {line.kernel for line in lines} <= {made.entry for made in kernel.kernels.values()}
    assert {"lazyrope_plan", "lazyrope_attend_prefill"} <= {line.kernel for line in lines}
    for line in lines:
        assert 0 < line.executions <= line.lanes <= 32 * line.executions
        assert line.lanes * 4 <= line.bytes <= line.lanes * 16
        assert line.executions * (line.wavefronts > 0) <= line.ideal_wavefronts <= line.wavefronts
        assert line.ideal_sectors <= line.sectors and line.cache_lines <= line.sectors <= 4 * line.cache_lines
        assert line.wavefronts > 0 or line.sectors > 0
    # The planner loads the positions of the five queries to copy them, and to find the keys that they see.
    (store,) = (line for line in lines if "st_global(step_.positions + copy.index," in line.text)
    (load,) = (line for line in lines if "ld_global_nc(in_.q_position + token)" in line.text)
    assert (load.file, load.instruction, store.instruction) == (store.file, "ld.global.nc.b32", "st.global.b32")
    assert (store.executions, store.lanes, store.bytes, store.sectors, store.wavefronts) == (1, 5, 20, 1, 0)
    assert (load.executions, load.lanes, load.bytes, load.sectors, load.wavefronts) == (4, 14, 56, 4, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        load.line = 1


def test_a_profile_prints_a_table_sorted_by_excess():
    case, kernel = case_of(head_dim=64)
    with lazyrope.emulator.profile() as profile:
        attend(case, kernel)
    heading, *rows = str(profile).splitlines()
    assert heading.split() == "kernel line instruction executions wavefronts/ideal sectors/ideal text".split()
    assert len(rows) == len(profile.lines)
    excess = [sum(int(a) - int(b) for a, b in re.findall(r" (\d+)/(\d+) ", row)) for row in rows]
    assert excess[0] > 0 and excess == sorted(excess, reverse=True)


def test_a_profile_counts_only_launches_inside_the_with():
    case, kernel = case_of(head_dim=64)
    attend(case, kernel)
    with lazyrope.emulator.profile() as outer:
        with lazyrope.emulator.profile() as inner:
            attend(case, kernel)
        assert inner.lines and not outer.lines
        attend(case, kernel)
    first = counts(inner)
    attend(case, kernel)
    assert counts(outer) == first == counts(inner)


def test_a_profile_sums_its_launches():
    case, kernel = case_of(head_dim=64)
    with lazyrope.emulator.profile() as profile:
        attend(case, kernel)
        once = profile.lines
        attend(case, kernel)
    assert [line.executions for line in profile.lines] == [2 * line.executions for line in once]
    assert [line.wavefronts for line in profile.lines] == [2 * line.wavefronts for line in once]


@pytest.mark.parametrize(
    "setting",
    [
        {"head_dim": 64, "phase": "decode"},
        {"head_dim": 80, "group": 3, "dtype": "float16"},
        {"head_dim": 128, "kv_dtype": "float8_e4m3fn"},
    ],
    ids=lambda setting: "-".join(map(str, setting.values())),
)
def test_tiles_are_read_without_bank_conflicts(setting):
    """ldmatrix reads without conflicts, however a tile swizzles or pads its rows."""
    case, kernel = case_of(**setting)
    with lazyrope.emulator.profile() as profile:
        attend(case, kernel)
    reads = [line for line in profile.lines if line.instruction == "ldmatrix.x4"]
    assert len(reads) >= 2
    for line in reads:
        assert line.wavefronts == line.ideal_wavefronts == 4 * line.executions, f"{line.file}:{line.line}"


def test_options_are_restored_after_the_with():
    with lazyrope.emulator.options(seed=2**64 - 1, races=True):
        baseline = {"seed": 2**64 - 1, "races": True, "resident_threads": 1024, "profile": None}
        assert _core.emulator_options() == baseline
        with lazyrope.emulator.options(races=False, resident_threads=1):
            assert _core.emulator_options() == baseline | {"races": False, "resident_threads": 1}
    with pytest.raises(KeyError), lazyrope.emulator.options(seed=5):
        raise KeyError("the fixture checks that options are restored")


def test_results_do_not_depend_on_the_order_of_threads():
    case, kernel = case_of(head_dim=64)
    baseline = attend(case, kernel)
    with lazyrope.emulator.options(seed=7, races=True):
        assert torch.equal(attend(case, kernel), baseline)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_64_bits_is_refused(seed):
    with pytest.raises(lazyrope.SpecError, match=f"seed = {seed}; it must be at least 0 and less than"):
        with lazyrope.emulator.options(seed=seed):
            pass


@pytest.mark.parametrize("threads", [-1, 0, 2**31])
def test_resident_threads_out_of_range_are_refused(threads):
    with pytest.raises(lazyrope.SpecError, match=f"resident_threads = {threads}; it must be at least 1 and less than"):
        with lazyrope.emulator.options(resident_threads=threads):
            pass


def test_a_kernel_that_breaks_a_rule_raises_a_fault():
    case, kernel = case_of(head_dim=64)
    case.metadata["pages"] = case.metadata["pages"] + 1000
    with pytest.raises(lazyrope.KernelFault) as raised:
        attend(case, kernel)
    fault = raised.value
    assert isinstance(fault, lazyrope.DriverError)
    assert fault.rule == fault.call == "global access out of bounds"
    assert re.search(
        r"at pipeline/kv_ring\.cuh:\d+, lazyrope_attend_prefill, block \d+, warp \d+, lane \d+", str(fault)
    )
    again = pickle.loads(pickle.dumps(fault))
    assert type(again) is lazyrope.KernelFault and str(again) == str(fault) and vars(again) == vars(fault)


def test_a_step_is_refused_after_a_fault_until_it_is_updated():
    """Some CTAs may have stored partial results, which the next call would take for its own."""
    case, kernel = case_of(head_dim=64)
    baseline = attend(case, kernel)
    step = case.plan(kernel)
    pages = case.metadata["pages"].clone()
    wrong = pages.clone()
    wrong[-1] += 1000
    step.update(**step_arguments(case.metadata | {"pages": wrong}))

    def again() -> torch.Tensor:
        return kernel(case.q, case.k_pool, case.v_pool, step, **case.call_arguments)[0]

    with pytest.raises(lazyrope.KernelFault):
        again()
    with pytest.raises(lazyrope.SpecError, match="a kernel ended early"):
        again()
    step.update(**step_arguments(case.metadata | {"pages": pages}))
    assert torch.equal(again(), baseline)
