"""Wrong usage of ``lazyrope`` and what fails: the messages and exit codes."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.command import ARCH, MISSING_NVRTC, SPEC, write_config

# Each row has the arguments, the exit code and the words that the message must have.
MISTAKES = [
    ([], 2, ["a subcommand is required", "see `lazyrope --help`"]),
    (["frobnicate"], 2, ["no subcommand or option is called frobnicate\n", "see `lazyrope --help`"]),
    (["complie"], 2, ["no subcommand or option is called complie (did you mean compile?)"]),
    (["--versoin"], 2, ["no subcommand or option is called --versoin (did you mean --version?)"]),
    (["cache", "lsit"], 2, ["called lsit (did you mean list?)", "see `lazyrope cache --help`"]),
    (["render", "--head_dim", 64], 2, ["called --head_dim (did you mean --head-dim?)", "see `lazyrope render --help`"]),
    (["render", "--arhc=sm_80"], 2, ["called --arhc (did you mean --arch?)"]),
    (["render", "kernel.cu"], 2, ["the argument kernel.cu was not expected", "see `lazyrope render --help`"]),
    (["render", "compile"], 2, ["compile"]),
    (["completion"], 2, ["SHELL is missing: give bash, zsh or fish"]),
    (["completion", "zhs"], 2, ['SHELL: "zhs" is unknown (did you mean zsh?); there are: bash, zsh, fish']),
    (["cache"], 2, ["a subcommand is required", "see `lazyrope cache --help`"]),
    (["cache", "empty"], 2, ["no subcommand or option is called empty", "see `lazyrope cache --help`"]),
    (["render", "--frobnicate"], 2, ["--frobnicate", "see `lazyrope render --help`"]),
    (["render", "--head-dim", "many"], 2, ["--head-dim = many"]),
    (["render", "--head-dim", 64, "--arch", "sm_80"], 2, ["missing: --q-heads, --kv-heads, --rope"]),
    (["render", *SPEC, "--model", "x"], 2, ["--model excludes"]),
    (["render", *SPEC, "--kernel", "attend"], 2, ['"attend" is unknown', "attend_decode, attend_prefill"]),
    (["render", *SPEC, "--kernel", "apend"], 2, ['"apend" is unknown (did you mean append?); there are: plan']),
    (["render", *SPEC, "--arch", "sm_90"], 2, ['arch "sm_90" is unknown (did you mean sm_90a?)']),
    (["render", *SPEC[:6], "--rope", "noex"], 2, ['"noex" is unknown (did you mean neox?)']),
    (["render", *SPEC, "--dtype", "bloat16"], 2, ['dtype = "bloat16" (did you mean bfloat16?)']),
    (["render", *SPEC[:6], "--rope", "linear"], 2, ['rope "linear" needs factor']),
    (["render", *SPEC, "--rope-param", "theta"], 2, ['"theta" is not KEY=NUMBER']),
    (["render", *SPEC, "--rope-param", "theta=1e4x"], 2, ['"theta=1e4x" is not KEY=NUMBER']),
    (["render", *SPEC, "--rope-param", "theta=5"], 2, ["theta is given twice"]),
    (["compile", *SPEC, "--threads", 0], 2, ["--threads", "1024"]),
    (["cache", "prune", "--max-bytes", "5Q"], 2, ["--max-bytes = 5Q; it must be a number of bytes", "K, M, G or T"]),
    (["cache", "prune", "--max-bytes", "-5"], 2, ["--max-bytes = -5; it must be"]),
    (["render", *SPEC, "--arch", "sm_75"], 2, ['--arch: arch "sm_75" is unknown', "sm_80", "sm_90a"]),
    (["compile", *SPEC, "--arch", "sm_80,sm_75"], 2, ['--arch: arch "sm_75" is unknown']),
    (["render", *SPEC[2:], "--head-dim", 88, "--arch", "sm_80"], 2, ["head_dim = 88", "64, 72, 80"]),
    (["render", *SPEC, "--q-heads", 7], 2, ["--q-heads"]),
    (["render", *SPEC, "--rope-param", "factor=2", "--arch", "sm_80"], 2, ['rope "neox" has no parameter factor']),
    (["render", *SPEC, "--dtype", "fp8", "--arch", "sm_80"], 2, ['dtype = "fp8"', "bfloat16, float16"]),
    (["render", *SPEC, "--mask", "tree", "--arch", "sm_80"], 2, ['mask "tree" is unknown', "causal, full"]),
    (["render", *SPEC, "--query-form", "spun", "--arch", "sm_80"], 2, ['"spun"', "raw, rotated"]),
    (["render", *SPEC, "--rotary-dim", 22, "--arch", "sm_80"], 2, ["rotary_dim = 22", "multiples of 4"]),
    (["render", *SPEC, "--scale", -1, "--arch", "sm_80"], 2, ["scale = -1"]),
    (
        ["render", *SPEC, "--arch", "sm_80", "-o", "/nonexistent/k.cu"],
        1,
        ["cannot write /nonexistent/k.cu: No such file"],
    ),
    (["render", "--model", "/nonexistent/config.json"], 1, ["cannot read /nonexistent/config.json: No such file"]),
    (["compile", "--model", "/nonexistent"], 1, ["cannot read /nonexistent: No such file"]),
]


class TestMistakes:
    @pytest.mark.parametrize(("arguments", "code", "said"), MISTAKES, ids=[row[2][0][:40] for row in MISTAKES])
    def test_a_mistake_gets_its_message_and_exit_code(self, run, cache, arguments, code, said):
        result = run(*arguments, code=code)
        assert result.stdout == "" and result.stderr.startswith("lazyrope: ")
        for words in said:
            assert words in result.stderr
        assert ("--help`" in result.stderr) == (code == 2)
        assert not cache.exists()

    def test_query_heads_not_divisible_by_kv_heads_are_refused(self, run):
        arguments = "--head-dim 64 --q-heads 7 --kv-heads 2 --rope none --arch sm_80".split()
        assert "num_q_heads = 7 with num_kv_heads = 2" in run("render", *arguments, code=2).stderr

    def test_a_config_key_that_would_change_the_result_is_refused(self, run, tmp_path):
        file = write_config(tmp_path / "tiny", sliding_window=4096)
        for arguments in (["render"], ["compile", "--json"]):
            error = run(*arguments, "--model", file, "--arch", "sm_80", code=1).stderr
            assert str(file) in error and "sliding_window = 4096 would change the result" in error

    def test_an_option_that_does_not_fit_a_model_is_wrong_usage(self, run, tmp_path):
        model = ["--model", write_config(tmp_path / "tiny"), "--arch", "sm_80"]
        for option, said in (("--window=64", "has no parameter window"), ("--dtype=fp8", 'dtype = "fp8"')):
            for subcommand in ("render", "compile"):
                assert said in run(subcommand, *model, option, code=2).stderr

    def test_a_model_without_a_kernel_is_a_failure(self, run, tmp_path):
        file = write_config(tmp_path / "tiny", head_dim=88)
        for subcommand in ("render", "compile"):
            error = run(subcommand, "--model", file, "--arch", "sm_80", code=1).stderr
            assert "head_dim = 88" in error

    def test_a_misspelt_model_type_is_named(self, run, tmp_path):
        file = write_config(tmp_path / "tiny", model_type="lama")
        assert 'model_type = "lama" (did you mean llama?)' in run("render", "--model", file, code=1).stderr

    @pytest.mark.parametrize("option", ["--cubin", "--ptx"])
    def test_a_folder_that_cannot_be_made_is_refused_before_compiling(self, run, cache, tmp_path, option):
        (tmp_path / "file").touch()
        error = run("compile", *SPEC, "--arch", ARCH, option, tmp_path / "file" / "out", code=1).stderr
        assert f"cannot make the directory {tmp_path}/file/out: Not a directory" in error
        assert not cache.exists()

    def test_a_pack_in_no_folder_is_refused_before_the_cache_is_read(self, run, cache):
        error = run("pack", "--out", "/nonexistent/k.lzp", code=1).stderr
        assert "/nonexistent" in error and "no entry to pack" not in error

    def test_a_folder_is_no_output_file(self, run, tmp_path):
        error = run("render", *SPEC, "--arch", "sm_80", "-o", tmp_path, code=1).stderr
        assert f"cannot write {tmp_path}: Is a directory" in error

    def test_a_config_file_that_is_not_an_object_is_refused(self, run, tmp_path):
        (tmp_path / "model.json").write_text("[]")
        error = run("render", "--model", tmp_path / "model.json", "--arch", "sm_80", code=1).stderr
        assert f"{tmp_path}/model.json: " in error and "not a JSON object" in error

    def test_render_of_several_models_is_refused(self, run, tmp_path):
        files = [write_config(tmp_path / name) for name in "ab"]
        error = run("render", "--model", *files, "--arch", "sm_80", code=2).stderr
        assert "these models have 2 attentions (the first are a and b); give one" in error

    def test_without_a_gpu_the_arch_must_be_given(self, run):
        for subcommand in ("render", "compile"):
            error = run(subcommand, *SPEC, code=1, CUDA_VISIBLE_DEVICES="").stderr
            assert "no usable GPU was found, so --arch is needed: give one of sm_80" in error

    def test_a_bad_environment_variable_is_refused(self, run):
        error = run("cache", "list", code=1, LAZYROPE_POLICY="maybe").stderr
        assert "LAZYROPE_POLICY='maybe' is not allowed: give jit or cache_only" in error

    def test_a_full_disk_is_an_error(self, command):
        with open("/dev/full", "w") as full:
            result = subprocess.run([command, "render", *SPEC, "--arch", "sm_80"], stdout=full, stderr=subprocess.PIPE)
        assert result.returncode == 1
        assert b"cannot write to standard output: No space left on device" in result.stderr

    def test_compile_without_nvrtc_says_how_to_install_it(self, run):
        error = run("compile", *SPEC, "--arch", ARCH, code=1, LAZYROPE_NVRTC=MISSING_NVRTC).stderr
        assert "no usable NVRTC" in error and "pip install" in error and MISSING_NVRTC in error

    def test_an_unwritable_cache_does_not_prevent_compiling(self, run, tmp_path):
        (tmp_path / "file").touch()
        result = run("compile", *SPEC, "--arch", ARCH, "--cache", tmp_path / "file" / "cache")
        assert "5 kernels in " in result.stdout
        assert "lazyrope: warning: lazyrope_plan is not cached on disk: cannot create directory" in result.stderr

    def test_cache_only_names_the_nearest_entry(self, run, warm):
        def refusal(*arguments: object, **changes: object) -> str:
            return run("compile", *arguments, code=1, LAZYROPE_POLICY="cache_only", **changes).stderr

        other_arch = refusal(*SPEC, "--arch", "sm_80")
        assert "LAZYROPE_POLICY=cache_only forbids compiling lazyrope_" in other_arch
        assert f"it is not in the cache {warm}, where " in other_arch
        assert "the nearest readable entry differs in: arch, config, options\n" in other_arch
        assert "compile it beforehand with `lazyrope precompile`" in other_arch
        other_source = refusal(*SPEC, "--rotary-dim", 32, "--arch", ARCH)
        assert "the nearest readable entry differs in: source\n" in other_source
        empty = refusal(*SPEC, "--arch", ARCH, "--cache", warm / "empty")
        assert "where there is no readable entry\n" in empty
        run("compile", *SPEC, "--arch", ARCH, LAZYROPE_POLICY="cache_only")
        run("compile", *SPEC[:-1], "theta=20000", "--arch", ARCH, LAZYROPE_POLICY="cache_only")
