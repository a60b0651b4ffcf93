"""Installs the library with `cmake --install`, and builds the documentation's C++ example against it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import lazyrope
import pytest
import torch
from lazyrope import _core, _nvrtc

from tests.support.reference import Segment, attention, rotate

ROOT = Path(__file__).parents[2]
CONSUMER = ROOT / "tests" / "consumer"
BUILD = Path(_core.__file__).resolve().parents[2]
WARNINGS = "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"

pytestmark = pytest.mark.skipif(
    not (BUILD / "CMakeCache.txt").exists(), reason=f"lazyrope is imported from {BUILD}, which is not a build tree"
)


def dependency_arguments() -> list[str]:
    """Returns the arguments of cmake that repeat the build tree's paths of other libraries."""
    names = r"CMAKE_PREFIX_PATH|Python_EXECUTABLE|CudaHeaders_\w+|Sodium_\w+|(fmt|nlohmann_json|Boost)_DIR"
    return [f"-D{line}" for line in (BUILD / "CMakeCache.txt").read_text().splitlines() if re.match(names, line)]


def run(*command: object, **options: object) -> str:
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory) -> Path:
    """Returns the installed tree, which was moved after the installation."""
    folder = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", BUILD, "--prefix", folder / "first")
    return (folder / "first").rename(folder / "moved")


def test_the_tree_has_the_library_its_header_and_the_command(prefix):
    files = {str(file.relative_to(prefix)) for file in prefix.rglob("*") if file.is_file()}
    headers = {file.removeprefix("include/") for file in files if file.startswith("include/")}
    assert "lazyrope/lazyrope.h" in headers
    assert {header.split("/")[0] for header in headers} == {"lazyrope"}
    assert len(headers) < 20, "the public header includes internal headers"
    assert {Path(file).name for file in files if file.endswith(".a")} == {
        f"liblazyrope_{part}.a" for part in ("cache", "codegen", "fmt", "runtime")
    }
    assert {file.split("/")[0] for file in files} == {"bin", "include", "lib"}
    assert run(prefix / "bin" / "lazyrope", "--version") == f"lazyrope {lazyrope.__version__}\n"


def test_installed_files_name_no_path_of_the_build(prefix):
    for file in prefix.rglob("*"):
        if file.suffix in (".h", ".cmake"):
            text = file.read_text()
            assert str(ROOT) not in text and str(BUILD) not in text, file
            assert all(name.startswith("lazyrope/") for name in re.findall(r'#include "(.*?)"', text)), file


def waves(tokens: int, heads: int, step: float) -> torch.Tensor:
    """Returns the input of main.cpp, which truncates to bfloat16 and does not round."""
    values = torch.sin(step * torch.arange(tokens * heads * 128, dtype=torch.float64)).float()
    return (values.view(torch.int32) & -0x10000).view(torch.float32).reshape(tokens, heads, 128)


def exact() -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the result of main.cpp in fp64, with keys rotated for the request's positions of the documents."""
    frequencies = 10000.0 ** (-torch.arange(64, dtype=torch.float64) / 64)
    order = torch.cat([torch.arange(40, 140), torch.arange(40)])
    keys = rotate(waves(140, 2, 0.37)[order], torch.arange(140), frequencies, 128)
    return attention(
        waves(2, 8, 0.37),
        torch.tensor([140, 141]),
        [Segment(keys, waves(140, 2, 1e-4)[order], 0, 0)],
        frequencies=frequencies,
        rotary_dim=128,
        query_rotated=False,
        mask="causal",
        scale=128**-0.5,
    )


def environment() -> dict[str, str]:
    """Returns an environment in which a program finds the NVRTC of this Python's packages."""
    found = [file for folder in _nvrtc.library_directories() for file in Path(folder).glob("libnvrtc.so.*")]
    newest = {"LAZYROPE_NVRTC": str(max(found, key=lambda file: file.name))} if found else {}
    return newest | os.environ


def test_a_program_finds_the_package_and_attends(prefix, tmp_path):
    run(
        "cmake",
        "-S",
        CONSUMER,
        "-B",
        tmp_path,
        "-G",
        "Ninja",
        *dependency_arguments(),
        f"-Dlazyrope_ROOT={prefix}",
        WARNINGS,
    )
    run("cmake", "--build", tmp_path)
    dynamic = run("readelf", "--dynamic", tmp_path / "consumer")
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert needed <= {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
    printed = run(tmp_path / "consumer", env=environment())
    rows = [[float(x) for x in row] for row in re.findall(r"lse (\S+), out (\S+)", printed)]
    out, lse = exact()
    assert torch.tensor(rows).shape == (16, 2), printed
    ours_lse, ours_out = torch.tensor(rows, dtype=torch.float64).T
    assert (ours_lse - lse.flatten()).abs().max() < 1e-2
    assert (ours_out - out[..., 0].flatten()).abs().max() < 1e-2


def test_another_version_is_refused(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\nfind_package(lazyrope 99.0 REQUIRED)\n"
    )
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Dlazyrope_ROOT={prefix}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode != 0 and f"version: {lazyrope.__version__}" in result.stderr


EMBEDDING = f"""
cmake_minimum_required(VERSION 3.25)
project(embedding LANGUAGES CXX)
add_subdirectory({ROOT} lazyrope)
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE lazyrope::lazyrope)
"""


def test_a_program_may_add_the_source_tree_as_a_subdirectory(tmp_path):
    """The program compiles against the same header, and its installation has no files of lazyrope."""
    (tmp_path / "CMakeLists.txt").write_text(EMBEDDING)
    shutil.copy(CONSUMER / "main.cpp", tmp_path)
    build = tmp_path / "build"
    run("cmake", "-S", tmp_path, "-B", build, "-G", "Ninja", *dependency_arguments(), WARNINGS)
    run("cmake", "--build", build, "--target", "CMakeFiles/consumer.dir/main.cpp.o")
    run("cmake", "--install", build, "--prefix", tmp_path / "prefix")
    assert not (tmp_path / "prefix").exists()
