"""Installs a wheel into a new environment, runs the README's example there, and prints the seconds that each takes.

    python tools/check_wheel.py WHEEL [--python PYTHON]
    python tools/check_wheel.py --installed      # checks the lazyrope of this environment, as cibuildwheel's test

The wheel is installed without an index. Only NVRTC, which is downloaded before, is at hand. The README's example needs
PyTorch: it runs if the Python of this script has PyTorch and is of the same version. Otherwise, the same steps run on
NumPy arrays. Both run in the emulator if there is no GPU, and compare their result with attention in float64.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The README's example, on NumPy arrays.
NUMPY_EXAMPLE = """
import lazyrope
import numpy as np

spec = lazyrope.AttentionSpec(
    head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.llama3(), dtype="float16"
)
kernel = lazyrope.compile(spec, arch="emu:sm_80")

def ints(*values):
    return np.array(values, dtype=np.int32)

random = np.random.default_rng(1)
k_pool, v_pool = (np.zeros((10, 16, 8, 128), dtype=np.float16) for _ in "kv")
pages = ints(5, 1, 8, 0, 2, 3, 4, 6, 7, 9)
first, second = lazyrope.Document(first_page=0, num_tokens=40), lazyrope.Document(first_page=3, num_tokens=100)
k, v, q = (random.standard_normal((n, h, 128)).astype(np.float16) for n, h in [(140, 8), (140, 8), (2, 32)])
spans = lazyrope.TokenSpans(indptr=ints(0, 40, 140), start=ints(0, 0), first_page=ints(0, 3))
kernel.append(k, v, k_pool, v_pool, kernel.plan_append(spans, pages, capacity=lazyrope.AppendCapacity(tokens=140)))
request = lazyrope.Request([140, 141], [lazyrope.Segment(second, base=0), lazyrope.Segment(first, base=100)])
step = kernel.plan(lazyrope.batch([request], pages))
out, lse = kernel(q, k_pool, v_pool, step)
"""

# Compares the result of either example with attention over keys that are rotated from scratch.
COMPARISON = """
import numpy as np

def array(x):
    return np.asarray(x.double().cpu() if hasattr(x, "double") else x, dtype=np.float64)

def rotate(x, positions):
    angle = positions[:, None] * np.array(spec.frequencies)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

order = np.r_[40:140, 0:40]
keys = rotate(array(k)[order], np.arange(140)).repeat(4, axis=1)
score = np.einsum("thd,khd->thk", rotate(array(q), np.array([140, 141])), keys) * spec.scale
weights = np.exp(score)
exact = np.einsum("thk,khd->thd", weights / weights.sum(-1, keepdims=True), array(v)[order].repeat(4, axis=1))
assert np.linalg.norm(array(out) - exact) < 1e-2 * np.linalg.norm(exact)
assert np.abs(array(lse) - np.log(weights.sum(-1))).max() < 2e-2
print(f"{kernel.arch} computes attention, in {lazyrope.__file__}")
"""

# The extension and NVRTC compile for a GPU that need not be here.
NVRTC_EXAMPLE = """
import lazyrope
spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.llama3())
assert lazyrope.compile(spec, arch="sm_90a").cubin.startswith(b"\\x7fELF")
"""


def cpu_seconds() -> float:
    """Returns the CPU time of the commands so far, which other programs on the machine do not lengthen much."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Stopwatch:
    """Runs commands, and prints the seconds of each."""

    def __init__(self) -> None:
        self.total = 0.0

    def run(self, what: str, *command: object, env: dict[str, str] | None = None, counted: bool = True) -> str:
        """Returns what the command prints. A failed command ends the program with all that it printed."""
        words = [str(word) for word in command]
        begin, cpu_begin = time.monotonic(), cpu_seconds()
        result = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=env
        )
        seconds, cpu = time.monotonic() - begin, cpu_seconds() - cpu_begin
        if result.returncode != 0:
            sys.exit(f"{what}: failed\n{result.stdout}")
        self.total += seconds if counted else 0
        print(f"  {what}: {seconds:.1f} s, {cpu:.1f} s of CPU{'' if counted else ' (not counted)'}", flush=True)
        return result.stdout.strip()


def readme_example() -> str:
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    return example


def clean_environment(**variables: str) -> dict[str, str]:
    """Returns an environment without the paths and settings of this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LAZYROPE_"))}
    return kept | variables


def folder_of_torch(python: Path) -> str | None:
    """Returns the folder of this Python's packages if PyTorch is among them, and `python` can import it too."""
    spec = importlib.util.find_spec("torch")
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    if spec is None or spec.origin is None or version.split(".")[:2] != [str(x) for x in sys.version_info[:2]]:
        return None
    return str(Path(spec.origin).parents[1])


def check(wheel: Path, python: Path) -> None:
    """Checks the wheel in a new environment of the Python."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as scratch:
        venv, downloads = Path(scratch) / "venv", Path(scratch) / "downloads"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads]
        watch.run("download NVRTC", *pip, "nvidia-cuda-nvrtc>=13.0,<14", counted=False)
        watch.run("make an environment", python, "-m", "venv", venv, counted=False)
        install = [venv / "bin" / "python", "-m", "pip", "install", "--quiet"]
        watch.run("install the wheel", *install, "--no-index", "--find-links", downloads, wheel)
        torch = folder_of_torch(python)
        if torch is None:
            watch.run("install NumPy", *install, "numpy", counted=False)
        packages = {"PYTHONPATH": torch} if torch else {}
        cache = {"LAZYROPE_CACHE_DIR": str(Path(scratch) / "cache")}
        title, example = (
            ("the README's example", readme_example()) if torch else ("the example on NumPy", NUMPY_EXAMPLE)
        )
        program = example + COMPARISON
        printed = watch.run(title, venv / "bin" / "python", "-c", program, env=clean_environment(**cache, **packages))
        print(f"  {wheel.name}: {watch.total:.1f} s to install and run; {printed.splitlines()[-1]}")
        if str(venv) not in printed:
            sys.exit("another lazyrope was imported than the one of the wheel")
        for name, words in commands(venv / "bin").items():
            watch.run(name, *words, env=clean_environment(**cache), counted=False)


def commands(folder: Path) -> dict[str, list[object]]:
    """Returns what is checked besides the example, with the programs of an environment's folder."""
    return {
        "compile for sm_90a by NVRTC": [folder / "python", "-c", NVRTC_EXAMPLE],
        "the command": [folder / "lazyrope", "doctor"],
    }


def check_installed() -> None:
    watch, folder = Stopwatch(), Path(sys.executable).parent
    watch.run("the example on NumPy", sys.executable, "-c", NUMPY_EXAMPLE + COMPARISON)
    for name, words in commands(folder).items():
        watch.run(name, *words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", nargs="?", type=Path)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="make the environment with this one")
    parser.add_argument("--installed", action="store_true", help="check the lazyrope of this environment")
    options = parser.parse_args()
    if options.installed == (options.wheel is not None):
        parser.error("give a wheel or --installed")
    if options.installed:
        check_installed()
    else:
        check(options.wheel, options.python)


if __name__ == "__main__":
    main()
