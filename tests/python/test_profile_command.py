"""``lazyrope profile`` counts the accesses of each line of the kernels in the emulator."""

from __future__ import annotations

import json
from pathlib import Path

import lazyrope
import pytest

from tests.support.command import KERNELS, run_command, write_config

SPEC = "--head-dim 64 --q-heads 6 --kv-heads 2 --rope neox --rope-param theta=10000".split()
SMALL = "--batch 1 --context 40 --doc-tokens 24".split()

pytestmark = pytest.mark.skipif("emu:sm_80" not in lazyrope.archs(), reason="built without the emulator")


@pytest.fixture(scope="session")
def run(command, tmp_path_factory):
    """Returns a function that runs the command with a cache that this file's tests share."""
    cache = tmp_path_factory.mktemp("profile") / "cache"
    return lambda *arguments, **options: run_command(
        command, "profile", *arguments, **{"LAZYROPE_CACHE_DIR": cache} | options
    )


def entries(*names: str) -> set[str]:
    return {f"lazyrope_{name}" for name in names}


def profile(run, *arguments: object) -> dict:
    return json.loads(run(*SPEC, *SMALL, "--json", *arguments).stdout)


def test_json_has_the_counts_of_each_line(run):
    found = profile(run)
    assert list(found) == "name spec arch config workloads lines".split()
    assert found["workloads"] == ["1 x 1 over 40", "1 x 64 over 40"]
    assert found["arch"] == "emu:sm_80"
    lines = found["lines"]
    assert {line["kernel"] for line in lines} == entries(*KERNELS)
    fields = "kernel file line text instruction executions lanes wavefronts ideal_wavefronts sectors ideal_sectors"
    assert list(lines[0]) == [*fields.split(), "cache_lines", "bytes"]
    templates = Path(__file__).parents[2] / "templates"
    for line in lines:
        assert line["text"] == (templates / line["file"]).read_text().splitlines()[line["line"] - 1].strip()
        assert line["wavefronts"] >= line["ideal_wavefronts"] and line["sectors"] >= line["ideal_sectors"]
    excess = [line["wavefronts"] - line["ideal_wavefronts"] + line["sectors"] - line["ideal_sectors"] for line in lines]
    assert excess[0] > 0 and excess == sorted(excess, reverse=True)


def test_the_table_has_a_row_for_each_line(run):
    heading, empty, columns, *rows = run(*SPEC, *SMALL, "--sort", "location").stdout.splitlines()
    assert heading.startswith("d64-g3-neox-bfloat16: head_dim 64, group 3, bfloat16, rope neox")
    assert heading.endswith("emu:sm_80; 1 x 1 over 40, 1 x 64 over 40") and not empty
    assert columns.split() == "kernel line instruction executions wavefronts/ideal sectors/ideal text".split()
    kernels = [row.split()[0] for row in rows]
    assert set(kernels) == entries(*KERNELS) and kernels == sorted(kernels)
    (row,) = (row for row in rows if "const AppendRecord record = ld_global_nc(params.records + token);" in row)
    assert row.split()[0] == "lazyrope_append"
    assert row.split()[1].startswith("kernel/append.cu.in:") and row.split()[2] == "ld.global.nc.b128"


@pytest.mark.parametrize("sort", ["executions", "wavefronts", "sectors"])
def test_sort_orders_lines_by_the_column(run, sort):
    numbers = [line[sort] for line in profile(run, "--sort", sort)["lines"]]
    assert numbers == sorted(numbers, reverse=True) and numbers[0] > numbers[-1]


def test_the_kernel_option_selects_kernels(run):
    found = profile(run, "--kernel", "attend_decode,plan_append")
    assert {line["kernel"] for line in found["lines"]} == entries("attend_decode", "plan_append")


def test_the_number_of_queries_decides_which_kernel_attends(run):
    few = profile(run, "--query-tokens", 2)
    assert few["workloads"] == ["1 x 2 over 40"]
    assert {line["kernel"] for line in few["lines"]} == entries("plan", "attend_decode", "plan_append", "append")
    error = run(*SPEC, *SMALL, "--query-tokens", 2, "--kernel", "attend_prefill", code=1).stderr
    assert "attend_prefill had nothing to do" in error and "--query-tokens 1,64" in error


def test_the_options_decide_the_workload(run):
    workload = "--batch 3 --context 16 --doc-tokens 8 --query-tokens 5".split()
    lines = json.loads(run(*SPEC, *workload, "--kernel", "append", "--json").stdout)["lines"]
    token = 2 * 2 * 2 * 64 * 2  # read and write, K and V, 2 heads, 64 elements, 2 bytes
    moved = sum(line["bytes"] for line in lines if line["file"] == "ops/token_rows.cuh")
    assert moved == 3 * (16 + 5) * token


def test_a_model_is_profiled(run, tmp_path):
    file = write_config(tmp_path / "tiny")
    found = json.loads(run("--model", file, *SMALL, "--kernel", "plan_append", "--json").stdout)
    assert found["name"] == "tiny" and found["lines"]


MISTAKES = [
    ([*SPEC, "--arch", "sm_90a"], 2, ["--arch: sm_90a is the arch of a GPU", "give emu:sm_80"]),
    ([*SPEC, "--arch", "emu:sm_1"], 2, ['arch "emu:sm_1" is unknown']),
    ([*SPEC, "--kernel", "attend"], 2, ["--kernel", "attend", "attend_decode"]),
    (
        [*SPEC, "--kernel", "attend_shared"],
        2,
        ["attend_shared needs a step whose requests share documents", "profile()"],
    ),
    ([*SPEC, "--kernel", "rotate_keys"], 2, ["rotate_keys needs a step with scratch for rotated keys", "profile()"]),
    ([*SPEC, "--kernel", "reposition"], 2, ["reposition needs stored documents that move", "profile()"]),
    ([*SPEC, "--sort", "size"], 2, ["--sort", "size", "excess"]),
    ([*SPEC, "--batch", 0], 2, ["--batch", "0"]),
    ([*SPEC, "--query-tokens", "1,0"], 2, ["--query-tokens", "0"]),
    ([*SPEC, "--context", "many"], 2, ["--context", "many"]),
]


@pytest.mark.parametrize(
    ("arguments", "code", "said"), MISTAKES, ids=[" ".join(map(str, row[0][-2:])) for row in MISTAKES]
)
def test_a_mistake_is_explained(run, arguments, code, said):
    result = run(*arguments, code=code)
    assert result.stdout == "" and result.stderr.startswith("lazyrope: ")
    for words in said:
        assert words in result.stderr


def test_several_models_are_refused(run, tmp_path):
    files = [write_config(tmp_path / name) for name in "ab"]
    assert "these models have 2 attentions (the first are a and b); give one" in run("--model", *files, code=2).stderr


def test_a_missing_compiler_is_an_error(run):
    error = run(*SPEC, "--dtype", "float16", LAZYROPE_CXX="/nonexistent/c++", code=1).stderr
    assert 'needs a C++20 compiler; tried "/nonexistent/c++"' in error
