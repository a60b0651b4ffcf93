"""``python -m lazyrope`` runs the command that pip installed."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import lazyrope
import pytest


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an empty folder that stands for every scripts folder of the environment."""
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    return tmp_path


def run_module() -> None:
    runpy.run_module("lazyrope", run_name="__main__")


def test_the_command_gets_the_arguments_and_the_process(scripts, monkeypatch):
    (scripts / "lazyrope").write_text("")
    (scripts / "lazyrope").chmod(0o755)
    ran = []
    monkeypatch.setattr(os, "execv", lambda *call: ran.append(call) or sys.exit(0))
    monkeypatch.setattr(sys, "argv", ["__main__.py", "render", "--help"])
    with pytest.raises(SystemExit):
        run_module()
    assert ran == [(scripts / "lazyrope", [str(scripts / "lazyrope"), "render", "--help"])]


def test_without_the_command_the_error_says_where_it_should_be(scripts):
    with pytest.raises(SystemExit, match=f"the command is in none of {scripts}, .*pip installs it with the package"):
        run_module()


def test_a_file_that_cannot_run_is_not_the_command(scripts):
    (scripts / "lazyrope").write_text("")
    with pytest.raises(SystemExit, match="the command is in none of"):
        run_module()


def test_the_command_answers_in_its_own_words(command, tmp_path):
    """A scripts folder of a --user installation has the command, and its exit code is that of the module."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(command, folder / "lazyrope")

    def run(*arguments: str) -> subprocess.CompletedProcess:
        code = (
            f"import sysconfig, runpy; sysconfig.get_path = lambda *_: {str(folder)!r}; "
            "runpy.run_module('lazyrope', run_name='__main__', alter_sys=True)"
        )
        return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)

    assert run("--version").stdout == f"lazyrope {lazyrope.__version__}\n"
    wrong = run("frobnicate")
    assert wrong.returncode == 2 and "frobnicate" in wrong.stderr
