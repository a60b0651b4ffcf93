"""Each wait, fence and barrier of the kernels is needed, and the emulator finds a missing one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import lazyrope
import pytest

from tests.mutation import table
from tests.mutation.compiler import with_mutants
from tests.mutation.mutants import Mutant, mutants, overlay
from tests.mutation.sites import FOR_SPEED, LEVELS, Instructions, every_site, sites
from tests.mutation.text import Text, templates

ROOT = Path(__file__).parents[2]
TEXTS = templates(ROOT / "templates")
NEEDS_EMULATOR = pytest.mark.skipif("emu:sm_80" not in lazyrope.archs(), reason="this build has no emulator")


def mutate(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.mutation", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@NEEDS_EMULATOR
def test_every_mutant_is_caught(pytestconfig):
    """`make test` runs a sample of the mutants, `make soak` all."""
    sample = 3
    done = mutate() if pytestconfig.getoption("soak") else mutate("--sample", sample)
    assert done.returncode == 0, done.stdout + done.stderr
    caught = re.search(r"(\d+) of (\d+) mutants of \d+ sites: 0 survived", done.stdout)
    assert caught and caught[1] == (caught[2] if pytestconfig.getoption("soak") else str(sample))


@NEEDS_EMULATOR
def test_a_superfluous_barrier_survives(tmp_path):
    """The test can fail: it finds a barrier that is not needed, and only that one."""
    shutil.copytree(ROOT / "templates", tmp_path, dirs_exist_ok=True)
    planner = tmp_path / "planner/planner.cuh"
    text = planner.read_text()
    after = "      if (!is_shared) return;"
    assert text.count(f"      bar_sync();\n{after}") == 1
    planner.write_text(text.replace(after, f"    bar_sync();{after}"))
    line = 1 + text[: text.index(after)].count("\n")
    chosen = ["--only", "removed", "--only", f"planner.cuh:{line}", "--trial", "prefill", "--seeds", 5]
    done = mutate("--templates", tmp_path, *chosen)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"planner/planner.cuh:{line} bar_sync(): removed: SURVIVED\n" in done.stdout


def test_the_table_has_a_verdict_on_every_mutant():
    """The table has no other entry. `make mutate` writes it."""
    instructions = Instructions(TEXTS)
    known = table.read()
    assert set(known) == set(table.keys(mutants(sites(TEXTS, instructions), instructions)))
    assert [key for key, verdict in known.items() if not verdict.caught_by] == []


def test_every_instruction_is_classified():
    """A new instruction must be added to tests/mutation/sites.py."""
    assert Instructions(TEXTS).unclassified() == set()


def test_every_call_that_synchronizes_is_a_site():
    """The test counts the calls in the text of the templates."""
    instructions = Instructions(TEXTS)
    assert {"bar_sync", "bar_warp_sync", "cp_async_wait_group", "ld_acquire_gpu"} <= instructions.synchronizing
    found = every_site(TEXTS, instructions)
    assert {(site.path, site.name) for site in found} >= FOR_SPEED
    for name in instructions.synchronizing:
        in_text = sum(
            len(re.findall(rf"\b{name}\b\s*[<(]", text.code)) for path, text in TEXTS.items() if path.startswith(LEVELS)
        )
        assert sum(site.call.name == name for site in found) == in_text, name


EMULATED = """
inline void bar_sync(Site site = here()) { emulator->bar_sync(site); }
inline void cp_async_commit_group() { emulator->cp_async_commit_group(); }
template <int kPending>
inline void cp_async_wait_group() { emulator->cp_async_wait_group(kPending); }
inline bool mbarrier_try_wait(SharedPtr p, Site site = here()) { return emulator->try_wait(p.address, site); }
inline void st_shared(SharedPtr p, int x, Site site = here()) { emulator->st_shared(p.address, x, site); }
inline void cp_async_ca_4(SharedPtr p) { emulator->cp_async(p.address); }
inline uint32 atom_release_gpu_add(uint32* p, Site site = here()) {
  return emulator->atom(EmulatedAtomic::kAdd, EmulatedOrder::kRelease, p, 1, site);
}
"""


def mutants_of(body: str) -> tuple[list[Mutant], str]:
    """Returns the mutants of a function, and its text with all of them."""
    device = re.sub(r"Site site = here\(\)|, Site site = here\(\)", "", EMULATED).replace("inline", "LAZYROPE_DEVICE")
    texts = {
        "isa/ptx/x.cuh": Text("isa/ptx/x.cuh", device),
        "isa/emu/x.cuh": Text("isa/emu/x.cuh", EMULATED),
        "ops/x.cuh": Text("ops/x.cuh", body),
    }
    instructions = Instructions(texts)
    every = mutants(sites(texts, instructions), instructions)
    lines = overlay(texts, every, instructions)
    written = {path: {str(n): line for n, line in own.items()} for path, own in lines.items()}
    return every, with_mutants('#line 1 "ops/x.cuh"\n' + body, written, "")


def kinds(body: str) -> list[tuple[int, str]]:
    return [(mutant.site.line, mutant.kind) for mutant in mutants_of(body)[0]]


def test_a_call_moves_past_the_next_statement_that_matters():
    body = """LAZYROPE_DEVICE void f(SharedPtr p) {
  st_shared(p, 1);
  const int x = 2;  // st_shared(p, 3)
  bar_sync();
  const int y = x + 1;
  if (y > x) {
    st_shared(p, y);
  }
  st_shared(p, 4);
}
"""
    assert kinds(body) == [(4, "removed"), (4, "earlier"), (4, "later")]
    lines = mutants_of(body)[1].split("\n")[2:]
    assert lines[0].endswith("{ if (lazyrope_mutant == 2) bar_sync();")
    assert (
        lines[3].strip()
        == "{ if (!(lazyrope_mutant == 1 || lazyrope_mutant == 2 || lazyrope_mutant == 3)) bar_sync(); }"
    )
    assert lines[7].strip() == "} if (lazyrope_mutant == 3) bar_sync();"


def test_a_call_does_not_move_past_a_jump_or_out_of_its_block():
    assert kinds("LAZYROPE_DEVICE int f() {\n  bar_sync();\n  return 1;\n}\n") == [(2, "removed")]
    body = (
        "LAZYROPE_DEVICE void f(SharedPtr p) {\n  st_shared(p, 1);\n  {\n    bar_sync();\n  }\n  st_shared(p, 2);\n}\n"
    )
    assert kinds(body) == [(4, "removed")]


def test_neighbouring_calls_are_exchanged_once():
    body = "LAZYROPE_DEVICE void f() {\n  cp_async_wait_group<1>();\n  bar_sync();\n}\n"
    assert kinds(body)[:3] == [(2, "removed"), (2, "pending + 1"), (2, "later")]
    assert (3, "earlier") not in kinds(body)
    assert "cp_async_wait_group<(1) + 1>()" in mutants_of(body)[1]


def test_a_commit_moves_past_copies():
    body = "LAZYROPE_DEVICE void f() {\n  cp_async_ca_4(p);\n  st_shared(p, 1);\n  cp_async_commit_group();\n}\n"
    commit = mutants_of(body)[0][1]
    assert commit.kind == "earlier" and commit.site.text.of(commit.crosses) == "cp_async_ca_4(p);"


def test_calls_of_functions_that_only_synchronize_are_sites():
    body = """LAZYROPE_DEVICE void wait() {
  cp_async_wait_group<0>();
  bar_sync();
}
LAZYROPE_DEVICE void f(SharedPtr p) {
  ring.wait();
  st_shared(p, 1);
}
"""
    assert kinds(body)[-2:] == [(6, "removed"), (6, "later")]


def test_a_wait_in_a_condition_is_removed_by_a_true_result():
    every, text = mutants_of("LAZYROPE_DEVICE void f(SharedPtr p) {\n  while (!mbarrier_try_wait(p)) {\n  }\n}\n")
    assert [mutant.kind for mutant in every] == ["removed"]
    assert "while (!(lazyrope_mutant == 1 ? true : mbarrier_try_wait(p)))" in text


def test_memory_orders_are_relaxed():
    every, text = mutants_of("LAZYROPE_DEVICE void f(uint32* p) {\n  const uint32 x = atom_release_gpu_add(p);\n}\n")
    assert [mutant.kind for mutant in every] == ["relaxed"]
    assert "(lazyrope_mutant == 1 ? mutant_relaxed_atom_release_gpu_add(p) : atom_release_gpu_add(p))" in text


@pytest.mark.parametrize(
    "wrapper", ["fence_proxy_async", "barrier_cluster_arrive", "wgmma_commit_group", "mbarrier_init"]
)
def test_new_synchronizing_instructions_are_found(wrapper):
    device = f"LAZYROPE_DEVICE void {wrapper}() {{}}"
    emulated = f"inline void {wrapper}() {{ emulator->{wrapper}(); }}"
    texts = {"isa/ptx/y.cuh": Text("isa/ptx/y.cuh", device), "isa/emu/y.cuh": Text("isa/emu/y.cuh", emulated)}
    assert Instructions(texts).synchronizing == {wrapper}
