"""The subcommands of ``lazyrope``: their output, their exit codes and their error messages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lazyrope
import pytest

from tests.support.command import (
    ARCH,
    KERNELS,
    MISSING_NVRTC,
    SPEC,
    environment,
    flip_last_byte,
    nvidia_packages,
    put_irregular,
    run_command,
    run_on_terminal,
    write_config,
)

Run = Callable[..., subprocess.CompletedProcess]


def entry_file(cache: Path, run: Run, entry: str) -> Path:
    listed = json.loads(run("cache", "list", "--json").stdout)["entries"]
    return cache / (next(row["key"] for row in listed if row["entry"] == entry) + ".lzr")


class TestHelp:
    @pytest.mark.parametrize(
        "name",
        [
            "render",
            "compile",
            "precompile",
            "autotune",
            "profile",
            "doctor",
            "cache",
            "cache list",
            "cache verify",
            "cache prune",
            "cache clear",
            "cache path",
            "completion",
        ],
    )
    def test_every_subcommand_explains_itself(self, run, name):
        result = run(*name.split(), "--help")
        assert f"Usage: lazyrope {name} [OPTIONS]" in result.stdout
        assert "\nExample:\n  " in result.stdout
        assert result.stderr == ""

    def test_help_lists_the_subcommands(self, run):
        text = run("--help").stdout
        for line in (
            "render                    Print the CUDA source of a kernel",
            "compile                   Compile the kernels of models into the cache",
            "precompile                Fill a directory with all kernels that a deployment needs",
            "autotune                  Choose the fastest kernels for models on this GPU",
            "cache                     List, verify or remove the kernels on disk",
            "doctor                    Show which NVRTC, driver, GPUs and cache are found",
            "bench                     Time the kernels beside PyTorch's",
            "assess                    Compare the levels of recovery on questions",
            "completion                Print a script with which a shell completes commands",
            "profile                   Count bank conflicts and sectors of each source line",
        ):
            assert line in text

    def test_help_names_the_entries_of_the_registries(self, run):
        text = run("render", "--help").stdout
        for name in (
            *KERNELS,
            "reposition",
            *lazyrope.archs(),
            "none, neox, gptj, linear, llama3, llama3_gptj, yarn, longrope",
            "original_max_position_embeddings",
            "causal, full",
        ):
            assert name in text

    def test_version_is_that_of_the_package(self, run):
        for option in ("--version", "-V"):
            assert run(option).stdout == f"lazyrope {lazyrope.__version__}\n"


class TestRender:
    def test_render_prints_the_source_that_compile_compiles(self, run, compiled):
        (dumped,) = compiled[2].glob(f"lazyrope_attend_decode.{ARCH}.*.cu")
        source = run("render", *SPEC, "--arch", ARCH).stdout
        assert source == dumped.read_text()
        assert "lazyrope_attend_decode" in source

    @pytest.mark.parametrize("kernel", [*KERNELS, "reposition"])
    def test_json_has_the_facts_of_every_kernel(self, run, kernel):
        facts = json.loads(run("render", *SPEC, "--arch", "sm_80", "--kernel", kernel, "--json").stdout)
        keys = "name spec config kernel arch entry threads ctas_per_sm shared_bytes source"
        assert sorted(facts) == sorted(keys.split())
        assert (facts["name"], facts["kernel"], facts["arch"]) == ("d64-g3-neox-bfloat16", kernel, "sm_80")
        assert facts["entry"] == f"lazyrope_{kernel}"
        assert facts["entry"] in facts["source"]
        assert facts["threads"] % 32 == 0

    def test_the_output_file_has_the_printed_source(self, run, tmp_path):
        file = tmp_path / "kernel.cu"
        assert run("render", *SPEC, "--arch", "sm_80", "-o", file).stdout == ""
        assert file.read_text() == run("render", *SPEC, "--arch", "sm_80").stdout

    def test_a_config_file_gives_the_same_source_as_options(self, run, tmp_path):
        file = write_config(tmp_path / "tiny", torch_dtype="float16")
        by_parts = run("render", *SPEC, "--arch", "sm_80", "--dtype", "float16").stdout
        assert run("render", "--model", file, "--arch", "sm_80").stdout == by_parts
        assert run("render", "--model", file.parent, "--arch", "sm_80").stdout == by_parts
        facts = json.loads(run("render", "--model", file, "--arch", "sm_80", "--dtype", "bfloat16", "--json").stdout)
        assert facts["name"] == "tiny"
        assert facts["spec"] == "head_dim 64, group 3, bfloat16, rope neox, causal, raw queries"

    @pytest.mark.parametrize(
        ("variant", "required"),
        [
            ("neox", {}),
            ("gptj", {}),
            ("linear", {"factor": 4}),
            ("llama3", {}),
            ("yarn", {"factor": 4, "original_max_position_embeddings": 4096}),
        ],
    )
    def test_the_parameters_of_rope_have_the_defaults_of_python(self, run, variant, required):
        fields = [*SPEC[:6], "--arch", "sm_80", "--rope", variant]
        given = [f"{name}={value}" for name, value in required.items()]
        parameters = getattr(lazyrope.rope, variant)(**required).parameters
        every = [f"{name}={value}" for name, value in parameters.items()]
        source = run("render", *fields, *(["--rope-param", *given] if given else [])).stdout
        assert source == run("render", *fields, "--rope-param", *every).stdout

    def test_a_parameter_of_rope_may_be_a_list(self, run, tmp_path):
        fields = [*SPEC[:6], "--arch", "sm_80", "--kernel", "append", "--rope", "longrope"]
        head_dim = int(SPEC[SPEC.index("--head-dim") + 1])
        short, long = [1.5] * (head_dim // 2), [2.0 + i for i in range(head_dim // 2)]
        rope = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "attention_factor": 1.0}
        contexts = {"max_position_embeddings": 512, "original_max_position_embeddings": 128}
        file = write_config(tmp_path / "tiny", rope_scaling=rope, **contexts)
        model = ["--model", file, "--arch", "sm_80", "--kernel", "append"]
        for factors, options in ((long, []), (long, ["--max-model-len", 129]), (short, ["--max-model-len", 128])):
            given = ["--rope-param", "factors=" + ",".join(map(str, factors))]
            assert run("render", *fields, *given).stdout == run("render", *model, *options).stdout

    @pytest.mark.parametrize("given", ["factors=", "factors=1,", "factors=1,a", "theta=1,2"])
    def test_a_list_that_is_none_is_refused(self, run, given):
        done = run("render", *SPEC[:6], "--arch", "sm_80", "--rope", "longrope", "--rope-param", given, code=2)
        assert f'--rope-param: "{given}" is not KEY=NUMBER' in done.stderr

    def test_options_reach_the_source(self, run):
        def source(kernel: str, *options: object) -> str:
            return run("render", *SPEC, "--arch", "sm_80", "--kernel", kernel, *options).stdout

        attend, append = source("attend_decode"), source("append")
        texts = (
            "query-form rotated,mask full,mask sliding_window --window 64,softcap 30,sinks,rotary-dim 32,dtype float16"
        )
        for text in texts.split(","):
            options = f"--{text}".split()
            assert source("attend_decode", *options) != attend, options
        assert source("append", "--append-form", "rotated") != append
        # The append form defaults to the query form.
        assert source("append", "--query-form", "rotated") == source("append", "--append-form", "rotated")
        assert source("append", "--query-form", "rotated", "--append-form", "raw") == append
        assert source("attend_decode", "--scale", 0.5) == attend


class TestCompile:
    def test_json_has_the_facts_of_each_kernel(self, compiled):
        cache, printed, _ = compiled
        assert sorted(printed) == ["cache", "kernels", "seconds"]
        assert printed["cache"] == str(cache)
        keys = (
            "model spec config kernel arch entry compiler threads registers spill_bytes shared_bytes cubin_bytes "
            "compile_ms ms from_cache shared"
        )
        assert [kernel["kernel"] for kernel in printed["kernels"]] == KERNELS
        for kernel in printed["kernels"]:
            assert sorted(kernel) == sorted(keys.split())
            assert (kernel["arch"], kernel["from_cache"], kernel["shared"]) == (ARCH, False, False)
            assert kernel["registers"] > 0 and kernel["spill_bytes"] == 0 and kernel["cubin_bytes"] > 1000
            assert 0 < kernel["compile_ms"] <= kernel["ms"]
            assert kernel["compiler"].startswith("nvrtc 1")

    def test_a_second_compilation_comes_from_the_cache(self, run, warm, compiled):
        # NVRTC is not needed for cached kernels.
        printed = json.loads(run("compile", *SPEC, "--arch", ARCH, "--json", LAZYROPE_NVRTC=MISSING_NVRTC).stdout)
        for kernel, cold in zip(printed["kernels"], compiled[1]["kernels"], strict=True):
            assert kernel["from_cache"]
            assert kernel["ms"] < cold["ms"]
            same = "kernel entry compiler registers shared_bytes cubin_bytes compile_ms"
            assert [kernel[name] for name in same.split()] == [cold[name] for name in same.split()]

    def test_the_table_has_a_row_for_each_kernel(self, run, warm):
        result = run("compile", *SPEC, "--arch", ARCH, "--threads", 1, "--allow-spills")
        lines = result.stdout.splitlines()
        assert lines[0] == "d64-g3-neox-bfloat16: head_dim 64, group 3, bfloat16, rope neox, causal, raw queries"
        head = "model kernel arch registers spill bytes shared bytes cubin bytes ms from cache"
        assert lines[2].split() == head.split()
        rows = [line.split() for line in lines[3:8]]
        assert [row[:3] for row in rows] == [["d64-g3-neox-bfloat16", kernel, ARCH] for kernel in KERNELS]
        assert all(row[-1] == "yes" for row in rows)
        assert len({len(line) for line in lines[3:8]}) == 1
        assert lines[-1].startswith("5 kernels in ") and lines[-1].endswith(f" s; cache: {warm}")
        assert result.stderr == ""

    def test_several_models_and_archs_share_equal_kernels(self, run, tmp_path, cache):
        models = [
            write_config(tmp_path / "a" / "tiny", rope_theta=5000.0),
            write_config(tmp_path / "b" / "tiny", num_attention_heads=4, hidden_size=256),
        ]
        out = tmp_path / "out"
        arguments = ["compile", "--model", *models, "--arch", "sm_80,sm_86", "--json"]
        printed = json.loads(run(*arguments, "--cubin", out / "cubin").stdout)
        kernels = {(k["model"], k["arch"], k["kernel"]): k for k in printed["kernels"]}
        names = [(m, a, k) for m in ("tiny", "tiny-2") for a in ("sm_80", "sm_86") for k in KERNELS]
        assert list(kernels) == names
        # Models with different group sizes and frequencies share only these kernels.
        assert {name for name, kernel in kernels.items() if kernel["shared"]} == {
            ("tiny-2", arch, kernel) for arch in ("sm_80", "sm_86") for kernel in ("plan_append", "append")
        }
        for model, arch, kernel in names:
            cubin = (out / "cubin" / f"{model}.{arch}.{kernel}.cubin").read_bytes()
            assert cubin[:4] == b"\x7fELF" and len(cubin) == kernels[model, arch, kernel]["cubin_bytes"]
        assert len(list(cache.glob("*.lzr"))) == len(names) - 4
        repeated = ["--model", models[0], "--model", models[1], "--arch", "sm_80", "--arch", "sm_86"]
        again = json.loads(run("compile", *repeated, "--json").stdout)["kernels"]
        assert [(k["model"], k["arch"], k["kernel"]) for k in again] == names
        assert all(kernel["from_cache"] for kernel in again)

    def test_ptx_is_written(self, run, tmp_path):
        folder = tmp_path / "ptx"
        run("compile", *SPEC, "--arch", ARCH, "--ptx", folder)
        names = {path.name.removesuffix(".ptx").rpartition(".") for path in folder.iterdir()}
        assert {kernel for _, _, kernel in names} == set(KERNELS)
        for path in folder.iterdir():
            text = path.read_text()
            assert f".entry lazyrope_{path.suffixes[-2][1:]}(" in text and f".target {ARCH}" in text

    def test_models_of_one_shape_share_their_entries(self, run, warm):
        entries = len(list(warm.glob("*.lzr")))
        printed = run("compile", *SPEC[:-1], "theta=20000", "--arch", ARCH, "--json", LAZYROPE_POLICY="cache_only")
        assert all(kernel["from_cache"] for kernel in json.loads(printed.stdout)["kernels"])
        assert len(list(warm.glob("*.lzr"))) == entries

    def test_reposition_is_compiled_only_with_its_option(self, run, warm):
        def from_cache() -> dict[str, bool]:
            printed = run("compile", *SPEC, "--arch", ARCH, "--reposition", "--json").stdout
            return {kernel["kernel"]: kernel["from_cache"] for kernel in json.loads(printed)["kernels"]}

        assert from_cache() == dict.fromkeys(KERNELS, True) | {"reposition": False}
        assert from_cache() == dict.fromkeys([*KERNELS, "reposition"], True)

    def test_the_cache_option_overrides_the_environment(self, run, warm, tmp_path):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        assert (
            f"cache: {warm}\n"
            in run("compile", *SPEC, "--arch", ARCH, "--cache", warm, LAZYROPE_CACHE_DIR=elsewhere).stdout
        )
        assert list(elsewhere.iterdir()) == []

    def test_a_terminal_sees_progress(self, command, warm):
        flip_last_byte(sorted(warm.glob("*.lzr"))[0])
        text = run_on_terminal(command, "compile", *SPEC, "--arch", ARCH, LAZYROPE_CACHE_DIR=warm)
        bar = "\r\x1b[K[{:-<30}] {}/5 "
        assert text.startswith(bar.format("", 0))
        for done in range(1, 6):
            assert bar.format("#" * 6 * done, done) + "d64-g3-neox-bfloat16: " in text
        assert re.search(rf" for {ARCH[0]}\w*\r\x1b\[K$", text)  # the line is cut at the width of the terminal
        # A warning replaces the bar, which is drawn again below it.
        assert "\r\x1b[Klazyrope: warning: cache entry " in text
        assert "checksum mismatch\r\n\r\x1b[K[" in text


class TestCache:
    def test_list_has_every_entry_with_its_size(self, run, warm):
        listed = json.loads(run("cache", "list", "--json").stdout)
        assert sorted(listed) == ["bytes", "directory", "entries"]
        assert listed["directory"] == str(warm)
        assert listed["bytes"] == sum(file.stat().st_size for file in warm.glob("*.lzr"))
        text = run("cache", "list").stdout
        assert text.splitlines()[0].split() == "key entry arch bytes last use compiler".split()
        assert {entry["entry"] for entry in listed["entries"]} == {f"lazyrope_{kernel}" for kernel in KERNELS}
        for entry in listed["entries"]:
            assert sorted(entry) == sorted("key entry arch bytes last_use compiler error".split())
            assert entry["arch"] == ARCH and entry["error"] is None and entry["last_use"].endswith("Z")
            assert entry["bytes"] == (warm / f"{entry['key']}.lzr").stat().st_size
            assert f"{entry['key'][:12]}  {entry['entry']} " in text
        assert f"5 kernels, {listed['bytes'] / 1024:.1f} KiB of at most 1.0 GiB, in {warm}" in text

    def test_list_of_an_absent_cache_is_empty(self, run, cache):
        assert run("cache", "list").stdout == f"0 kernels, 0 B of at most 1.0 GiB, in {cache}\n"
        assert json.loads(run("cache", "list", "--json").stdout)["entries"] == []
        assert not cache.exists()

    def test_verify_counts_bad_entries(self, run, warm):
        assert run("cache", "verify").stdout == f"0 of 5 entries are bad, in {warm}\n"
        listed = json.loads(run("cache", "verify", "--json").stdout)
        assert listed == {"directory": str(warm), "entries": 5, "other_compilers": 0, "bad": []}

    def test_a_corrupted_kernel_is_reported_and_recompiled(self, run, warm):
        file = entry_file(warm, run, "lazyrope_plan_append")
        flip_last_byte(file)
        assert run("cache", "verify", code=1).stdout == (
            f"{file.stem}: checksum mismatch\n1 of 5 entries are bad, in {warm}\n"
        )
        bad = json.loads(run("cache", "verify", "--json", code=1).stdout)["bad"]
        assert bad == [{"key": file.stem, "bytes": file.stat().st_size, "error": "checksum mismatch"}]
        assert f"{file.stem[:12]}  (bad) " in run("cache", "list").stdout
        listed = json.loads(run("cache", "list", "--json").stdout)["entries"]
        (entry,) = [entry for entry in listed if entry["error"] is not None]
        assert (entry["key"], entry["entry"], entry["arch"], entry["compiler"]) == (file.stem, None, None, None)

        result = run("compile", *SPEC, "--arch", ARCH, "--json")
        made = [kernel["kernel"] for kernel in json.loads(result.stdout)["kernels"] if not kernel["from_cache"]]
        assert made == ["plan_append"]
        assert f"lazyrope: warning: cache entry {file.stem} is not used" in result.stderr
        run("cache", "verify")

    def test_prune_removes_the_least_recently_used(self, run, warm):
        files = sorted(warm.glob("*.lzr"))
        for age, file in enumerate(files):
            os.utime(file, (1.7e9 - 1000 * age,) * 2)
        kept = files[:2]
        allowed = sum(file.stat().st_size for file in kept)
        gone = sum(file.stat().st_size for file in files[2:])
        printed = json.loads(run("cache", "prune", "--max-bytes", allowed, "--json").stdout)
        assert printed == {
            "directory": str(warm),
            "removed": {"entries": 3, "bytes": gone},
            "left_bytes": allowed,
            "remaining_folders": [],
        }
        assert sorted(warm.glob("*.lzr")) == kept

    def test_prune_understands_sizes(self, run, warm):
        size = sum(file.stat().st_size for file in warm.glob("*.lzr")) / 1024
        assert run("cache", "prune", "--max-bytes", "500M").stdout == (
            f"removed 0 entries, 0 B; {size:.1f} KiB left in {warm}\n"
        )
        assert "removed 0 entries" in run("cache", "prune").stdout
        assert "removed 5 entries" in run("cache", "prune", LAZYROPE_CACHE_MAX_BYTES="1K").stdout

    def test_clear_requires_yes(self, run, warm):
        result = run("cache", "clear", code=2)
        assert "this would remove all kernels" in result.stderr and "give --yes" in result.stderr
        assert len(list(warm.glob("*.lzr"))) == 5
        removed = json.loads(run("cache", "clear", "--yes", "--json").stdout)
        assert removed["removed"]["entries"] == 5 and removed["left_bytes"] == 0
        assert list(warm.iterdir()) == []
        assert run("cache", "clear", "--yes").stdout == f"removed 0 entries, 0 B; 0 B left in {warm}\n"

    def test_whatever_is_no_regular_file_is_reported_and_removed(self, run, cache, tmp_path):
        full = put_irregular(cache, tmp_path / "victim")
        result = run("cache", "verify", code=1)
        for reason in "a FIFO, not|a socket, not|a folder, not|the symbolic link|4 of 4 entries are bad".split("|"):
            assert reason in result.stdout
        for leave in (("prune",), ("clear", "--yes")):
            (full / "file").touch()
            result = run("cache", *leave, code=1)
            assert f"a folder that is not empty: {full}; remove it by hand" in result.stderr
            assert list(cache.iterdir()) == [full] and (tmp_path / "victim").read_text() == "precious"
            (full / "file").unlink()
            full.rmdir()
            full = put_irregular(cache, tmp_path / "victim")
        assert json.loads(run("cache", "clear", "--yes", "--json").stdout)["removed"]["entries"] == 4
        assert list(cache.iterdir()) == []

    def test_links_are_followed_with_trusted_owners(self, run, warm, tmp_path):
        warm.rename(tmp_path / "..2026")
        warm.mkdir()
        (warm / "..data").symlink_to(tmp_path / "..2026")
        for file in (tmp_path / "..2026").iterdir():
            (warm / file.name).symlink_to(Path("..data") / file.name)
        result = run("cache", "verify", code=1)
        assert f"set LAZYROPE_CACHE_TRUST={os.geteuid()} if you trust its owner" in result.stdout
        trust = {"LAZYROPE_CACHE_TRUST": str(os.geteuid())}
        assert run("cache", "verify", **trust).stdout.startswith("0 of 5 entries are bad")
        run("compile", *SPEC, "--arch", ARCH, LAZYROPE_POLICY="cache_only", LAZYROPE_NVRTC=MISSING_NVRTC, **trust)
        assert "removed 0 entries" in run("cache", "prune", **trust).stdout

    def test_a_limit_below_the_kernels_is_one_warning(self, run, warm):
        def compile_a_small_one(limit: str) -> str:
            entry_file(warm, run, "lazyrope_plan_append").unlink()
            return run("compile", *SPEC, "--arch", ARCH, LAZYROPE_CACHE_MAX_BYTES=limit).stderr

        assert "too small" not in compile_a_small_one("1M")
        error = compile_a_small_one("30K")
        assert error.count("the cache's limit is too small: LAZYROPE_CACHE_MAX_BYTES=30720") == 1
        assert "Set LAZYROPE_CACHE_MAX_BYTES=1M or more" in error

    def test_a_limit_on_the_size_of_files_costs_a_warning(self, command, warm, tmp_path):
        limited = ["bash", "-c", 'ulimit -f 1 && exec "$@"', "bash", command]  # 1 KiB
        env = environment(LAZYROPE_CACHE_DIR=warm, LAZYROPE_DUMP_DIR=tmp_path / "sources")
        arguments = [*limited, "compile", *SPEC, "--arch", ARCH]
        result = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
        assert "cannot write " in result.stderr and "File too large; see LAZYROPE_DUMP_DIR" in result.stderr

    def test_path_is_the_directory_of_the_cache(self, run, cache, tmp_path):
        assert run("cache", "path").stdout == f"{cache}\n"
        assert run("cache", "path", "--cache", tmp_path / "other").stdout == f"{tmp_path}/other\n"
        result = run("cache", "path", "--cache", "none", code=1)
        assert result.stdout == "" and "cached in memory only" in result.stderr


def write_script(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.fixture
def installed(command: str, tmp_path: Path) -> Path:
    """Returns a copy of the command where pip installs it, in an environment with NVIDIA's packages."""
    root = tmp_path / "environment"
    packages = root / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "nvidia").symlink_to(nvidia_packages())
    (root / "bin").mkdir()
    write_script(root / "bin" / "python3", f'exec {sys.executable} "$@"')
    return Path(shutil.copy(command, root / "bin"))


def doctor_without_variables(command: Path) -> dict:
    """Returns what doctor says about NVRTC if the environment names neither a library nor a cache."""
    changes = {"LAZYROPE_NVRTC": None, "LAZYROPE_CACHE_DIR": "none"}
    result = subprocess.run([command, "doctor", "--json"], env=environment(**changes), capture_output=True, text=True)
    return json.loads(result.stdout)["nvrtc"]  # the exit code depends on whether the system has an NVRTC


class TestInstalled:
    def test_finds_the_nvrtc_of_its_environment(self, installed):
        facts = doctor_without_variables(installed)
        assert Path(facts["path"]).is_relative_to(installed.parents[1] / "lib")
        assert facts["tried"][-1]["location"] == "Python package"
        changes = {"LAZYROPE_NVRTC": None, "LAZYROPE_CACHE_DIR": "none"}
        run_command(installed, "compile", *SPEC, "--arch", "sm_80", **changes)

    def test_without_nvidias_packages_only_the_system_is_searched_for_nvrtc(self, installed):
        next(installed.parents[1].glob("lib/*/site-packages/nvidia")).unlink()
        locations = {attempt["location"] for attempt in doctor_without_variables(installed)["tried"]}
        assert "system" in locations and "Python package" not in locations

    @pytest.mark.parametrize("name", ["bench", "assess"])
    def test_commands_of_the_package_run_the_python_of_its_environment(self, installed, tmp_path, name):
        write_script(installed.parent / "python3", 'echo "$0 $@"; exit 7')
        arguments = ["decode", "--json", "figures.json", "--rounds=3", "--help"]
        assert run_command(installed, name, *arguments, PATH=tmp_path, code=7).stdout == (
            f"{installed.parent}/python3 -m lazyrope.{name} {' '.join(arguments)}\n"
        )

    def test_bench_without_the_package_names_the_missing_module(self, installed):
        write_script(installed.parent / "python3", f'exec {sys.executable} -S "$@"')
        result = run_command(installed, "bench", "all", PYTHONPATH=None, code=1)
        assert "No module named 'lazyrope'" in result.stderr

    def test_bench_without_python_says_so(self, installed):
        (installed.parent / "python3").unlink()
        result = run_command(installed, "bench", "all", code=1)
        assert result.stderr.startswith("lazyrope: this command is not in a Python environment")
        assert "run `PYTHON -m lazyrope.bench`" in result.stderr

    def test_bench_names_a_python_that_cannot_run(self, installed):
        (installed.parent / "python3").chmod(0o644)
        result = run_command(installed, "bench", "all", code=1)
        assert result.stderr == f"lazyrope: cannot run {installed.parent}/python3: Permission denied\n"

    def test_bench_help_comes_from_the_python_package(self, installed):
        text = run_command(installed, "bench", "--help").stdout
        assert text.startswith("usage: lazyrope bench ") and "--rounds" in text
