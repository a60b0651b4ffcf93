"""Fixtures of the tests that run the ``lazyrope`` command."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import ARCH, SPEC, run_command

Run = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def run(command: str, cache: Path) -> Run:
    """Returns a function that runs the command with the test's own cache."""

    def run_here(*arguments: object, **options: object) -> subprocess.CompletedProcess:
        return run_command(command, *arguments, **{"LAZYROPE_CACHE_DIR": cache} | options)

    return run_here


@pytest.fixture(scope="session")
def compiled(command: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, Path]:
    """Returns a cache with the kernels of SPEC for ARCH, the JSON that compiling printed, and the dumped sources."""
    root = tmp_path_factory.mktemp("compiled")
    changes = {"LAZYROPE_CACHE_DIR": root / "cache", "LAZYROPE_DUMP_DIR": root / "sources"}
    result = run_command(command, "compile", *SPEC, "--arch", ARCH, "--json", **changes)
    return root / "cache", json.loads(result.stdout), root / "sources"


@pytest.fixture
def warm(cache: Path, compiled: tuple[Path, dict, Path]) -> Path:
    """Returns the test's own cache, which has the kernels of SPEC for ARCH."""
    shutil.copytree(compiled[0], cache)
    return cache
