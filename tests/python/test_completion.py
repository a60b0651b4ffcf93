"""``lazyrope completion`` prints scripts with which shells complete the command line."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import lazyrope
import pytest

from tests.support.command import run_command

SHELLS = ["bash", "zsh", "fish"]
PYTHON_PROGRAMS = ("bench", "assess")  # they parse their own options
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@pytest.fixture(scope="session")
def scripts(command) -> dict[str, str]:
    return {shell: run_command(command, "completion", shell).stdout for shell in SHELLS}


def subcommands_in(help_text: str) -> list[str]:
    return re.findall(r"^  ([a-z]+)  ", help_text.partition("Subcommands:")[2], re.MULTILINE)


@pytest.fixture(scope="session")
def subcommands(command) -> list[str]:
    """Returns the words of every subcommand, as the help lists them: "render", "cache list", ..."""
    found = []
    for name in subcommands_in(run_command(command, "--help").stdout):
        found.append(name)
        below = "" if name in PYTHON_PROGRAMS else run_command(command, name, "--help").stdout
        found += [f"{name} {word}" for word in subcommands_in(below)]
    return found


@pytest.fixture
def complete(scripts, tmp_path):
    """Returns a function that completes the last word of a command line with bash, which runs the printed script."""
    (tmp_path / "empty").mkdir()

    def complete_here(line: str) -> list[str]:
        # readline splits a line at these characters, and keeps the characters.
        words = [word for part in line.split(" ") for word in re.split("([=:])", part) if word or not part]
        program = (
            f"{scripts['bash']}\nCOMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}\n_lazyrope\n"
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        run = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert run.returncode == 0 and run.stderr == "", run.stderr
        return run.stdout.split()

    return complete_here


@needs_bash
class TestBash:
    def test_subcommands_are_completed(self, complete, subcommands):
        names = [name for name in subcommands if " " not in name]
        assert complete("lazyrope ") == names and "precompile" in names
        assert complete("lazyrope pr") == ["precompile", "profile"]
        assert complete("lazyrope cache ") == [name.split()[1] for name in subcommands if name.startswith("cache ")]
        assert complete("lazyrope cache p") == ["prune", "path", "pin", "pins"]
        assert complete("lazyrope completion ") == SHELLS

    def test_the_options_are_those_of_the_help(self, command, complete, subcommands):
        for name in ["", *subcommands]:
            if name in PYTHON_PROGRAMS:
                continue
            text = run_command(command, *name.split(), "--help").stdout
            options = set(re.findall(r"(?<![\w`-])(--[a-z][a-z-]*)(?=[ ,\n])", text.partition("\n\n\n")[0]))
            offered = set(complete(" ".join(["lazyrope", *name.split(), "--"])))
            listed = {word for line in text.splitlines() for word in re.findall(r"^  (?:-\w,)?(--[a-z-]+)", line)}
            assert listed <= offered, name
            assert offered <= options | listed, name

    def test_values_are_completed(self, complete):
        assert complete("lazyrope render --arch sm_9") == ["sm_90a"]
        assert complete("lazyrope render --rope ") == "none neox gptj linear llama3 llama3_gptj yarn longrope".split()
        assert complete("lazyrope render --dtype=b") == ["bfloat16"]
        assert complete("lazyrope render --kv-dtype ") == ["float8_e4m3fn", "float8_e5m2"]
        assert complete("lazyrope compile --mask s") == ["sliding_window"]
        assert complete("lazyrope profile --sort e") == ["excess", "executions"]
        attend = ["attend_decode", "attend_prefill", "attend_shared", "attend_rotated"]
        assert complete("lazyrope render --kernel attend_") == attend

    def test_a_list_of_values_is_completed_after_its_commas(self, complete):
        assert complete("lazyrope compile --arch sm_80,sm_9") == ["sm_80,sm_90a"]
        assert complete("lazyrope precompile --arch a") == ["all"]
        assert complete("lazyrope render --arch sm_80,sm_9") == []  # render takes one arch

    def test_the_colon_of_an_emulated_arch_is_no_obstacle(self, complete):
        assert complete("lazyrope compile --arch emu") == ["emu:sm_80", "emu:sm_90a"]
        assert complete("lazyrope compile --arch emu:") == ["sm_80", "sm_90a"]
        assert complete("lazyrope compile --arch emu:sm_9") == ["sm_90a"]
        assert complete("lazyrope compile --arch sm_80,emu:sm_9") == ["sm_90a"]

    def test_folders_are_completed_where_a_folder_is_wanted(self, complete, tmp_path):
        (tmp_path / "file").touch()
        assert complete("lazyrope precompile --out ") == ["empty"]

    def test_files_and_other_values_are_left_to_bash(self, complete):
        for line in ("render --model ", "render --head-dim ", "unpack ", "cache list --json --cache=no"):
            assert complete(f"lazyrope {line}") == []

    def test_every_offered_word_is_one_that_the_command_takes(self, command, complete):
        for arch in complete("lazyrope render --arch "):
            assert arch in lazyrope.archs()


class TestScripts:
    @pytest.mark.parametrize("shell", SHELLS)
    def test_every_subcommand_is_in_every_script(self, scripts, subcommands, shell):
        for name in subcommands:
            assert f"lazyrope {name}" in scripts[shell]

    def test_zsh_and_fish_explain_the_words(self, scripts):
        assert "'render:Print the CUDA source of a kernel'" in scripts["zsh"]
        assert "-a render -d 'Print the CUDA source of a kernel'" in scripts["fish"]
        for shell in ("zsh", "fish"):
            assert "Query heads, a multiple of the KV heads" in scripts[shell]

    @pytest.mark.parametrize("shell", SHELLS)
    def test_the_shell_accepts_its_script(self, scripts, shell):
        if shutil.which(shell) is None:
            pytest.skip(f"there is no {shell}")
        run = subprocess.run([shell, "-n"], input=scripts[shell], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0 and run.stderr == ""
