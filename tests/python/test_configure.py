"""CMake names all missing packages at once, says what it leaves out, and does not depend on pip's new folders."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# CMake looks for these things. Each has its packages of Debian and of Fedora, or those of PyPI.
REQUIREMENTS = {
    "fmt": ("libfmt-dev", "fmt-devel"),
    "nlohmann_json": ("nlohmann-json3-dev", "json-devel"),
    "Sodium": ("libsodium-dev", "libsodium-static"),
    "CLI11": ("libcli11-dev", "cli11-devel"),
    "GTest": ("libgtest-dev", "gtest-devel"),
    "Boost": ("libboost-context-dev", "boost-static"),
    "CudaHeaders": ("nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "apache-tvm-ffi"),
    "pybind11": ("pybind11",),
}


def configure(build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    fixed = ["-G", "Ninja", "-DLAZYROPE_BUILD_PYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    command = ["cmake", "-S", str(ROOT), "-B", str(build), *fixed, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_documentation_names_the_same_packages():
    text = (ROOT / "python" / "docs" / "start.md").read_text()
    for packages in (p for name, p in REQUIREMENTS.items() if len(p) == 2 and name != "GTest"):
        assert f"| `{packages[0]}` | `{packages[1]}` |" in text


def without(*names: str) -> list[str]:
    """Returns the options that hide what CMake would find."""
    return [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in names]


def test_all_missing_packages_are_named_at_once(tmp_path):
    result = configure(tmp_path, *without(*REQUIREMENTS))
    assert result.returncode != 0
    report, advice = result.stderr.split("these are missing:")[1].split("To install them:")
    apt, dnf, pip = (re.search(rf"^ *{c} install (.*)$", advice, re.MULTILINE)[1] for c in ("apt-get", "dnf", "pip"))
    for packages in REQUIREMENTS.values():
        assert all(package in report for package in packages)
        from_pypi = len(packages) != 2
        assert all(package in (pip if from_pypi else apt + dnf) for package in packages)
        assert from_pypi or (packages[0] in apt.split() and packages[1] in dnf.split())
    assert "-DLAZYROPE_SIGNATURES=OFF builds without them" in report


def test_a_missing_compiler_is_named_with_everything_else(tmp_path):
    hidden = ["-DCMAKE_FIND_ROOT_PATH=/nonexistent", "-DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=ONLY"]
    ninja = f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}"
    result = configure(tmp_path, ninja, *hidden)
    assert result.returncode != 0
    assert "gcc-c++" in result.stderr and "fmt-devel" in result.stderr
    assert "without one, CMake cannot look for the others" in result.stderr


def test_a_build_without_boost_is_refused_or_says_that_it_has_no_emulator(tmp_path):
    result = configure(tmp_path, *without("Boost"))
    assert result.returncode != 0
    assert "-DLAZYROPE_EMULATOR=OFF builds without it" in result.stderr and "fmt" not in result.stderr
    result = configure(tmp_path, *without("Boost"), "-DLAZYROPE_EMULATOR=OFF")
    assert result.returncode == 0, result.stderr
    assert "leaves out the emulator" in result.stdout
    assert "emulator/none.cpp" in (tmp_path / "compile_commands.json").read_text()


def requirements_in(folder: Path) -> list[str]:
    """Copies the build requirements to the folder, as pip does for each build, and returns the options for them."""
    import nvidia
    import pybind11
    import tvm_ffi

    shutil.copytree(Path(pybind11.get_include()).parent, folder / "pybind11")
    for root, include in ((Path(nvidia.__path__[0]), "cu13/include"), (Path(tvm_ffi.__file__).parent, "include")):
        for header in ("cuda.h", "nvrtc.h", "dlpack/dlpack.h"):
            if (root / include / header).exists():
                (folder / "include" / header).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / include / header, folder / "include" / header)
    headers = [f"-DCudaHeaders_{name}_DIR={folder / 'include'}" for name in ("CUDA", "NVRTC", "DLPACK")]
    return [*headers, f"-Dpybind11_DIR={folder / 'pybind11' / 'share' / 'cmake' / 'pybind11'}"]


def test_another_build_environment_of_pip_compiles_nothing_again(tmp_path):
    """pip makes a new folder for the build requirements each time. scikit-build-core removes what is removed here."""
    pytest.importorskip("tvm_ffi", reason="pip install -r tools/requirements/build.txt")
    build = tmp_path / "build"
    commands = []
    for environment in ("first", "second"):
        begin = time.time_ns()
        result = configure(build, "-DLAZYROPE_BUILD_TESTS=OFF", *requirements_in(tmp_path / environment))
        assert result.returncode == 0, result.stderr
        commands.append(json.loads((build / "compile_commands.json").read_text()))
        dates = {file: file.stat().st_mtime_ns for file in build.rglob("*.h")}
        (build / "CMakeCache.txt").unlink()
        shutil.rmtree(build / "CMakeFiles")
    first, second = commands
    assert first == second
    assert not [entry["file"] for entry in second if " -o CMakeFiles/" in entry["command"]], "objects were removed"
    assert str(tmp_path / "second") not in json.dumps(second)
    headers = [file for file in dates if "_headers" in str(file)]
    assert {"cuda.h", "nvrtc.h", "dlpack.h", "pybind11.h"} <= {file.name for file in headers}
    assert max(dates[file] for file in headers) < begin, "equal headers were copied again"
