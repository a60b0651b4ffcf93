"""The choice of NVRTC: the newest one that the driver loads, in both layouts of NVIDIA's PyPI packages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lazyrope import _nvrtc

from tests.support.command import environment, nvidia_packages

COMPILER = shutil.which("cc") or shutil.which("g++")
NVRTC_13 = next(nvidia_packages().glob("*/lib/libnvrtc.so.13"))
DRIVER = "int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }\n"


@pytest.fixture
def package_of_cuda_12(tmp_path):
    """Returns a folder of Python packages with an NVRTC 12 where NVIDIA's packages of CUDA 12 have it.

    The library is NVRTC 13 under the name of NVRTC 12, which is enough for a search.
    """
    library = tmp_path / "packages" / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
    library.parent.mkdir(parents=True)
    library.symlink_to(NVRTC_13)
    return tmp_path / "packages"


def doctor(tmp_path: Path, packages: Path, cuda: int | None) -> str:
    """Returns the report of a process with these packages, on a machine whose driver is of this CUDA version."""
    changes = {"LAZYROPE_NVRTC": None, "LAZYROPE_CACHE_DIR": "none"}
    changes |= {"PYTHONPATH": f"{packages}:{':'.join(filter(None, sys.path))}"}
    if cuda is not None:
        source = tmp_path / "driver.c"
        source.write_text(DRIVER.replace("VERSION", str(cuda)))
        subprocess.run([COMPILER, "-shared", "-fPIC", source, "-o", tmp_path / "libcuda.so.1"], check=True)
        changes |= {"LD_LIBRARY_PATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", "import lazyrope; print(lazyrope.doctor())"],
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout


def chosen(report: str) -> str:
    return Path(re.search(r"chosen: (\S+) ", report)[1]).name


def test_libraries_of_both_layouts_are_found(package_of_cuda_12, monkeypatch):
    monkeypatch.syspath_prepend(str(package_of_cuda_12))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    found = {file for folder in _nvrtc.library_directories() for file in Path(folder).glob("libnvrtc.so.*")}
    assert {package_of_cuda_12 / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", NVRTC_13} <= found


@pytest.mark.skipif(COMPILER is None, reason="a C compiler makes the driver of this test")
@pytest.mark.parametrize(("cuda", "name"), [(12080, "libnvrtc.so.12"), (13000, "libnvrtc.so.13")])
def test_the_newest_nvrtc_that_the_driver_loads_is_chosen(cuda, name, package_of_cuda_12, tmp_path):
    report = doctor(tmp_path, package_of_cuda_12, cuda)
    assert chosen(report) == name


@pytest.mark.skipif(COMPILER is None, reason="a C compiler makes the driver of this test")
def test_doctor_names_an_nvrtc_that_is_too_new_for_the_driver(tmp_path):
    report = doctor(tmp_path, tmp_path, 12080)
    assert chosen(report) == "libnvrtc.so.13"
    assert re.search(
        r"NVRTC 13\.\d+ is too new for the driver, which is of CUDA 12\.8 .* nvidia-cuda-nvrtc-cu12", report
    )


def test_without_a_driver_the_newest_nvrtc_is_chosen(package_of_cuda_12, tmp_path):
    if "CUDA" in (report := doctor(tmp_path, package_of_cuda_12, None)).partition("driver\n")[2].partition("\n")[0]:
        pytest.skip("this machine has a driver")
    assert chosen(report) == "libnvrtc.so.13" and "too new" not in report
