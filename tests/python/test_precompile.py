"""``lazyrope precompile`` fills a directory without a GPU. The directory serves kernels without a compiler."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lazyrope
import pytest

from tests.support import hf_changes
from tests.support.command import (
    KERNELS,
    MISSING_NVRTC,
    environment,
    flip_last_byte,
    run_command,
    run_on_terminal,
    write_config,
)

ARCHS = ("sm_80", "sm_90a")
MODELS = ("grouped", "plain")
# Models with different group sizes and frequencies share plan_append and append.
DISTINCT = len(ARCHS) * (len(MODELS) * len(KERNELS) - 2)
# An image may set these before it is filled.
IMAGE = {"LAZYROPE_POLICY": "cache_only", "LAZYROPE_CACHE_MAX_BYTES": "1K"}
NO_COMPILER = {"LAZYROPE_NVRTC": MISSING_NVRTC, "CUDA_VISIBLE_DEVICES": ""}

Result = subprocess.CompletedProcess
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Returns two models, a directory and a file."""
    root = tmp_path_factory.mktemp("models")
    write_config(root / "grouped")
    file = write_config(root / "other", num_attention_heads=4, hidden_size=256, num_key_value_heads=4, rope_theta=5e3)
    return [root / "grouped", file.rename(root / "plain.json")]


@pytest.fixture(scope="module")
def selection(models: list[Path]) -> list[object]:
    return ["--model", *models, "--arch", ",".join(ARCHS)]


@pytest.fixture(scope="module")
def filled(command: str, selection: list[object], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Returns a directory with the kernels of MODELS for ARCHS, and the run that filled it."""
    out = tmp_path_factory.mktemp("filled") / "new" / "kernels"
    return out, run_command(command, "precompile", *selection, "--out", out, "--json", **IMAGE)


@pytest.fixture
def out(filled: tuple[Path, Result], tmp_path: Path) -> Path:
    """Returns the test's own copy of the filled directory."""
    return Path(shutil.copytree(filled[0], tmp_path / "kernels"))


@pytest.fixture
def precompile(command: str, selection: list[object]) -> Run:
    """Returns a function that runs precompile for MODELS and ARCHS, or for `selection`."""

    def run(out: Path, *arguments: object, selection: list[object] = selection, **options: object) -> Result:
        return run_command(command, "precompile", *selection, "--out", out, *arguments, **options)

    return run


def kernels(result: Result) -> dict[tuple[str, str, str], str]:
    """Returns the state of each kernel by model, arch and kernel."""
    return {(k["model"], k["arch"], k["kernel"]): k["state"] for k in json.loads(result.stdout)["kernels"]}


def entry(out: Path, printed: Result, model: str, arch: str, kernel: str) -> Path:
    rows = json.loads(printed.stdout)["kernels"]
    (key,) = {k["key"] for k in rows if (k["model"], k["arch"], k["kernel"]) == (model, arch, kernel)}
    return out / f"{key}.lzr"


def names(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


class TestFilling:
    def test_every_kernel_of_every_model_and_arch_is_compiled(self, filled):
        out, result = filled
        printed = json.loads(result.stdout)
        assert list(printed) == ["directory", "seconds", "entries", "bytes", "kernels"]
        assert printed["directory"] == str(out)
        assert list(kernels(result)) == [(m, a, k) for m in MODELS for a in ARCHS for k in KERNELS]
        assert set(kernels(result).values()) == {"compiled"}
        for kernel in printed["kernels"]:
            assert list(kernel) == "model spec config arch kernel key state problem".split()
            assert kernel["problem"] is None and kernel["config"].startswith("decode ")
            assert kernel["spec"].startswith("head_dim 64, group ")
        # There are no other files, and the limit of the environment removed none.
        assert names(out) == {f"{kernel['key']}.lzr" for kernel in printed["kernels"]}
        assert printed["entries"] == DISTINCT
        assert printed["bytes"] == sum(file.stat().st_size for file in out.iterdir())

    def test_the_log_has_a_line_for_each_kernel(self, filled):
        lines = filled[1].stderr.splitlines()
        assert len(lines) == DISTINCT
        for i, line in enumerate(lines, 1):
            assert re.fullmatch(rf"\[{i}/{DISTINCT}\] (grouped|plain): \w+ for sm_(80|90a), \d+\.\d s", line)

    def test_a_second_run_compiles_nothing(self, precompile, out, filled):
        result = precompile(out, "--json", **NO_COMPILER)
        assert set(kernels(result).values()) == {"found"}
        assert json.loads(result.stdout)["seconds"] < 1
        assert result.stderr == "" and names(out) == names(filled[0])

    def test_only_what_is_new_is_compiled(self, precompile, out):
        added = {key: state for key, state in kernels(precompile(out, "--reposition", "--json")).items()}
        assert {key for key, state in added.items() if state == "compiled"} == {
            (model, arch, "reposition") for model in MODELS for arch in ARCHS
        }
        assert len(names(out)) == DISTINCT + len(ARCHS)

    def test_raw_keys_have_kernels_that_rotate_them_on_hopper(self, precompile, tmp_path, models):
        """A process without a compiler loads all of them."""
        selection = ["--model", models[0], "--key-form", "raw", "--arch", ",".join(ARCHS)]
        filled = kernels(precompile(tmp_path, "--json", selection=selection))
        rotation = ["plan_rotation", "rotate_keys", "attend_rotated"]
        assert [key[1:] for key in filled] == [
            *(("sm_80", name) for name in KERNELS),
            *(("sm_90a", name) for name in [*KERNELS, *rotation]),
        ]
        program = (
            "import lazyrope, pathlib, sys; config = pathlib.Path(sys.argv[1]) / 'config.json'\n"
            "spec = lazyrope.AttentionSpec.from_hf(config, key_form='raw')\n"
            "kernels = lazyrope.compile(spec, arch='sm_90a').kernels\n"
            "print(len(kernels), all(kernel.from_cache for kernel in kernels.values()))"
        )
        cache = environment(LAZYROPE_CACHE_DIR=tmp_path, **(NO_COMPILER | {"LAZYROPE_POLICY": "cache_only"}))
        command = [sys.executable, "-c", program, str(models[0])]
        done = subprocess.run(command, env=cache, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["8", "True"]

    def test_the_table_counts_kernels_by_state(self, precompile, out, filled):
        entry(out, filled[1], "grouped", "sm_80", "append").unlink()
        lines = precompile(out).stdout.splitlines()
        assert lines[0].split() == "model arch kernels compiled missing size".split()
        assert [line.split()[:5] for line in lines[1:5]] == [
            ["grouped", "sm_80", "5", "1", "0"],
            ["grouped", "sm_90a", "5", "0", "0"],
            ["plain", "sm_80", "5", "1", "0"],
            ["plain", "sm_90a", "5", "0", "0"],
        ]
        found = DISTINCT - 1
        assert re.fullmatch(rf"{DISTINCT} kernels in \d\.\d\d s: {found} found, 1 compiled, 0 missing", lines[-2])
        assert re.fullmatch(rf"{out}: {DISTINCT} kernels, \d+\.\d [KM]iB", lines[-1])

    def test_a_terminal_sees_a_bar(self, command, selection, out, filled):
        entry(out, filled[1], "plain", "sm_90a", "plan_append").unlink()
        text = run_on_terminal(command, "precompile", *selection, "--out", out)
        assert text.startswith(f"\r\x1b[K[{'-' * 30}] 0/{DISTINCT} ")
        assert f"\r\x1b[K[{'#' * 30}] {DISTINCT}/{DISTINCT} grouped: plan_append for " in text
        assert text.endswith("\r\x1b[K")

    def test_every_kind_of_layer_is_compiled(self, command, tmp_path):
        file = write_config(tmp_path / "mixed", model_type="qwen2", num_hidden_layers=4, max_window_layers=2,
                            sliding_window=64, use_sliding_window=True)  # fmt: skip
        arguments = ["--model", file, "--arch", "sm_80", "--out", tmp_path / "out", "--check", "--json"]
        rows = json.loads(run_command(command, "precompile", *arguments, code=1).stdout)["kernels"]
        specs = {row["model"]: row["spec"] for row in rows}
        assert list(specs) == ["mixed", "mixed-2"] and "sliding_window" in specs["mixed-2"]

    def test_arch_all_means_every_gpu_arch(self, command, models, tmp_path):
        arguments = ["--model", models[0], "--arch", "all", "--out", tmp_path / "out", "--check", "--json"]
        rows = json.loads(run_command(command, "precompile", *arguments, code=1).stdout)["kernels"]
        assert list(dict.fromkeys(row["arch"] for row in rows)) == [a for a in lazyrope.archs() if "emu" not in a]


class TestCheck:
    def test_an_absent_directory_lacks_every_kernel(self, precompile, tmp_path):
        result = precompile(tmp_path / "out", "--check", "--json", code=1, **NO_COMPILER)
        assert set(kernels(result).values()) == {"missing"}
        assert {kernel["problem"] for kernel in json.loads(result.stdout)["kernels"]} == {"absent"}
        assert result.stderr == f"lazyrope: {DISTINCT} of {DISTINCT} kernels are missing\n"
        assert not (tmp_path / "out").exists()

    def test_a_filled_directory_lacks_no_kernel(self, precompile, out):
        result = precompile(out, "--check", "--json", **NO_COMPILER)
        assert set(kernels(result).values()) == {"found"} and result.stderr == ""

    def test_missing_and_damaged_kernels_are_named_and_then_compiled(self, precompile, out, filled):
        lost = entry(out, filled[1], "grouped", "sm_90a", "append")  # both models use it
        damaged = entry(out, filled[1], "plain", "sm_80", "plan_append")
        lost.unlink()
        flip_last_byte(damaged)
        before = names(out)
        result = precompile(out, "--check", code=1)
        rows = [line.split(maxsplit=3) for line in result.stdout.splitlines()]
        at = rows.index("model arch kernel missing because".split(maxsplit=3))
        assert rows[at + 1 : at + 5] == [
            ["grouped", "sm_80", "plan_append", f"{damaged}: checksum mismatch"],
            ["grouped", "sm_90a", "append", "absent"],
            ["plain", "sm_80", "plan_append", f"{damaged}: checksum mismatch"],
            ["plain", "sm_90a", "append", "absent"],
        ]
        assert result.stderr == f"lazyrope: 2 of {DISTINCT} kernels are missing\n"
        assert names(out) == before

        states = kernels(precompile(out, "--json"))
        assert {key for key, state in states.items() if state == "compiled"} == {
            (row[0], row[1], row[2]) for row in rows[at + 1 : at + 5]
        }
        precompile(out, "--check")

    def test_other_options_are_other_kernels(self, precompile, out):
        states = kernels(precompile(out, "--check", "--query-form", "rotated", "--json", code=1))
        missing = {kernel for (_, _, kernel), state in states.items() if state == "missing"}
        assert missing == {"attend_decode", "attend_prefill", "append"}


SERVE = """
import json, sys, lazyrope
config, arch, form = sys.argv[1:]
groups = lazyrope.AttentionSpec.groups_from_hf(config, query_form=form)
compiled = [lazyrope.compile(group.spec, arch=arch) for group in groups]
if form == "rotated":
    compiled += [lazyrope.compile_reposition(group.spec, arch=arch).kernel for group in groups]
print(json.dumps([one.from_cache for one in compiled]))
"""

# All values of the document are 1, so the output is 1.
ANSWER = """
import sys, lazyrope, torch
config, device, arch = sys.argv[1:]
kernel = lazyrope.compile(lazyrope.AttentionSpec.from_hf(config), arch=arch)
ints = lambda *values: torch.tensor(values, dtype=torch.int32, device=device)
k_pool = torch.randn(1, 16, 2, 64, device=device).bfloat16()
segments = lazyrope.Segments(indptr=ints(0, 1), base=ints(0), start=ints(0), length=ints(3), first_page=ints(0))
step = kernel.plan(q_indptr=ints(0, 1), q_position=ints(3), segments=segments, pages=ints(0))
out, _ = kernel(torch.randn(1, 6, 64, device=device).bfloat16(), k_pool, torch.ones_like(k_pool), step)
assert kernel.from_cache and bool((out == 1).all()), out
"""


def serve(out: Path, config: Path, arch: str, form: str = "raw", code: int = 0) -> Result:
    """Compiles the model's kernels in a new process that has no compiler."""
    result = subprocess.run(
        [sys.executable, "-c", SERVE, config, arch, form],
        env=environment(LAZYROPE_CACHE_DIR=out, LAZYROPE_POLICY="cache_only", **NO_COMPILER),
        capture_output=True,
        text=True,
    )
    assert result.returncode == code, result.stderr
    return result


class TestServing:
    @pytest.mark.parametrize("arch", ARCHS)
    def test_kernels_are_served_without_a_compiler(self, filled, models, arch):
        before = names(filled[0])
        for config in models:
            assert json.loads(serve(filled[0], config, arch).stdout) == [True]
        assert names(filled[0]) == before

    def test_kernels_of_the_transformers_engine_are_served(self, command, models, tmp_path):
        arguments = ["--model", models[0], "--arch", "sm_80", "--query-form", "rotated", "--reposition"]
        run_command(command, "precompile", *arguments, "--out", tmp_path / "out")
        assert json.loads(serve(tmp_path / "out", models[0], "sm_80", "rotated").stdout) == [True, True]

    def test_kernels_of_all_kinds_of_layers_are_served(self, command, tmp_path):
        """Cohere 2 has layers with RoPE and a window, and layers with neither."""
        (tmp_path / "config.json").write_text(json.dumps(hf_changes.changed("cohere2")))
        arguments = ["--model", tmp_path, "--arch", "sm_80", "--query-form", "rotated", "--reposition"]
        run_command(command, "precompile", *arguments, "--out", tmp_path / "out")
        assert json.loads(serve(tmp_path / "out", tmp_path, "sm_80", "rotated").stdout) == [True] * 4

    def test_precompiled_kernels_run(self, command, models, device, tmp_path):
        """Kernels run on the GPU, whose arch is precompile's default, or in the emulator."""
        out, on_gpu = tmp_path / "out", device == "cuda"
        for_arch = [] if on_gpu else ["--arch", "emu:sm_80"]
        printed = run_command(command, "precompile", "--model", models[0], *for_arch, "--out", out, "--json").stdout
        arch = json.loads(printed)["kernels"][0]["arch"]
        changes = {"LAZYROPE_CACHE_DIR": out, "LAZYROPE_POLICY": "cache_only", "LAZYROPE_NVRTC": MISSING_NVRTC}
        run_command(sys.executable, "-c", ANSWER, models[0], device, arch, **changes, LAZYROPE_CXX="/nonexistent/c++")

    def test_a_missing_kernel_is_refused(self, out, models, filled):
        entry(out, filled[1], "grouped", "sm_80", "plan").unlink()
        error = serve(out, models[0], "sm_80", code=1).stderr
        assert "CacheError: LAZYROPE_POLICY=cache_only forbids compiling lazyrope_plan" in error
        assert "compile it beforehand with `lazyrope precompile`" in error

    def test_a_damaged_kernel_is_refused_with_the_reason(self, out, models, filled):
        path = entry(out, filled[1], "grouped", "sm_80", "plan")
        path.write_bytes(path.read_bytes()[:-1])
        error = serve(out, models[0], "sm_80", code=1).stderr
        assert "CacheError: LAZYROPE_POLICY=cache_only forbids compiling lazyrope_plan" in error
        assert "its entry in the cache" in error and "is not used: " in error

    def test_a_read_only_directory_of_root_serves_every_user(self, command, selection, filled):
        if os.geteuid() != 0:
            pytest.skip("needs root, to have files of root's and be another user")
        # Other users cannot read pytest's directories.
        public = Path("/tmp") / f"lazyrope-test-{os.getpid()}"
        try:
            out = Path(shutil.copytree(filled[0], public / "kernels"))
            shutil.copy(command, public / "lazyrope")
            for i, model in enumerate(selection[1:3]):
                (shutil.copytree if model.is_dir() else shutil.copy)(model, public / f"{i}-{model.name}")
            out.chmod(0o555)
            models = ["--model", public / "0-grouped", public / "1-plain.json", *selection[3:]]

            def as_nobody(*arguments: object) -> Result:
                return subprocess.run(
                    [public / "lazyrope", *map(str, arguments)],
                    env=environment(LAZYROPE_CACHE_DIR=out, LAZYROPE_POLICY="cache_only", **NO_COMPILER),
                    user=65534,
                    group=65534,
                    cwd="/",
                    capture_output=True,
                    text=True,
                )

            for arguments in (["--check"], []):
                result = as_nobody("precompile", *models, "--out", out, *arguments)
                assert (result.returncode, result.stderr) == (0, "")
            compiled = as_nobody("compile", *models, "--json")
            assert all(kernel["from_cache"] for kernel in json.loads(compiled.stdout)["kernels"])
            assert compiled.stderr == ""

            next(out.iterdir()).unlink()
            result = as_nobody("precompile", *models, "--out", out)
            assert result.returncode == 1 and "no usable NVRTC" in result.stderr
        finally:
            shutil.rmtree(public)


class TestFailures:
    def test_an_interrupted_run_is_resumed(self, command, precompile, models, tmp_path):
        out, selection = tmp_path / "out", ["--model", models[0], "--arch", "sm_80"]
        arguments = [command, "precompile", *selection, "--out", out, "--threads", "1"]
        # A process that a shell starts in the background ignores SIGINT by default.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        with subprocess.Popen(arguments, env=environment(), stderr=subprocess.DEVNULL, preexec_fn=heed) as process:
            while not list(out.glob("*.lzr")):
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
        assert process.returncode == -signal.SIGINT
        left = len(list(out.glob("*.lzr")))
        assert 0 < left < len(KERNELS)
        run_command(command, "cache", "verify", "--cache", out)
        states = kernels(precompile(out, "--check", "--json", selection=selection, code=1))
        assert list(states.values()).count("found") == left
        states = kernels(precompile(out, "--json", selection=selection))
        assert sorted(states.values()) == ["compiled"] * (len(KERNELS) - left) + ["found"] * left
        assert len(names(out)) == len(list(out.glob("*.lzr"))) == len(KERNELS), "temporary files remain"

    def test_a_kernel_that_fails_does_not_prevent_the_others(self, precompile, models, tmp_path):
        if "emu:sm_80" not in lazyrope.archs():
            pytest.skip("this build has no emulator")
        compiler = tmp_path / "c++"
        compiler.write_text(
            "#!/bin/sh\n"
            'for last do [ "$previous" = -o ] && out=$last; previous=$last; done\n'
            'if grep -q lazyrope_attend_decode $(dirname "$out")/*; then echo no such luck >&2; exit 1; fi\n'
            'echo code > "$out"\n'
        )
        compiler.chmod(0o755)
        selection = ["--model", models[0], "--arch", "emu:sm_80"]
        result = precompile(tmp_path / "out", "--json", selection=selection, code=1, LAZYROPE_CXX=compiler)
        states = kernels(result)
        assert states.pop(("grouped", "emu:sm_80", "attend_decode")) == "missing"
        assert set(states.values()) == {"compiled"} and len(states) == len(KERNELS) - 1
        (problem,) = {k["problem"] for k in json.loads(result.stdout)["kernels"]} - {None}
        assert "could not be compiled for the host" in problem
        assert "grouped: attend_decode for emu:sm_80, failed\n" in result.stderr
        assert "no such luck" in result.stderr
        assert result.stderr.endswith("lazyrope: 1 of 5 kernels are missing\n")

    def test_a_kernel_that_cannot_be_stored_is_missing(self, command, models, tmp_path):
        limit = 20_000  # bytes of a file; the attend kernels are larger
        result = subprocess.run(
            [command, "precompile", "--model", models[0], "--arch", "sm_80", "--out", tmp_path / "out", "--json"],
            env=environment(),
            capture_output=True,
            text=True,
            restore_signals=False,  # SIGXFSZ would end the process
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )
        assert result.returncode == 1
        states = kernels(result)
        missing = {kernel for (_, _, kernel), state in states.items() if state == "missing"}
        assert {"attend_decode", "attend_prefill"} <= missing < set(KERNELS)
        assert "lazyrope_attend_decode is not cached on disk: cannot write" in result.stderr

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["--arch", "sm_80,sm_75"], 2, ['--arch: arch "sm_75" is unknown', "sm_90a"]),
            (["--model", "/nonexistent/config.json"], 1, ["cannot read /nonexistent/config.json: No such file"]),
            (["--arch", "sm_80", "--threads", 0], 2, ["--threads"]),
            (["--query-form", "spun", "--arch", "sm_80"], 2, ['"spun"', "raw, rotated"]),
        ],
    )
    def test_mistakes_are_reported_before_anything_is_done(self, precompile, models, tmp_path, arguments, code, said):
        selection = ["--model", models[0], *arguments]
        error = precompile(tmp_path / "out", selection=selection, code=code).stderr
        assert error.startswith("lazyrope: ")
        for words in said:
            assert words in error
        assert not (tmp_path / "out").exists()

    def test_an_unsupported_model_is_refused(self, precompile, models, tmp_path):
        file = write_config(tmp_path / "odd", model_type="mamba")
        error = precompile(tmp_path / "out", selection=["--model", models[0], file, "--arch", "sm_80"], code=1).stderr
        assert f'{file}: config.json: model_type = "mamba": its layers are recurrent' in error
        assert not (tmp_path / "out").exists()

    def test_a_missing_out_option_is_refused(self, command, selection):
        error = run_command(command, "precompile", *selection, code=2).stderr
        assert "--out is missing" in error and "see `lazyrope precompile --help`" in error

    def test_an_unwritable_directory_is_refused_at_once(self, precompile, tmp_path):
        (tmp_path / "file").touch()
        begin = time.monotonic()
        error = precompile(tmp_path / "file" / "out", code=1).stderr
        assert error.startswith("lazyrope: cannot create directory") and "Not a directory" in error
        assert "cannot create" in precompile(tmp_path / "file", code=1).stderr
        assert time.monotonic() - begin < 5

    def test_without_nvrtc_nothing_is_created(self, precompile, tmp_path):
        error = precompile(tmp_path / "out", code=1, **NO_COMPILER).stderr
        assert error.startswith("lazyrope: no usable NVRTC") and MISSING_NVRTC in error
        assert not (tmp_path / "out").exists()
