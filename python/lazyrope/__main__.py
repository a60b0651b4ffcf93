"""Runs the ``lazyrope`` command: ``python -m lazyrope ARGUMENTS``."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path


def script_folders() -> list[Path]:
    """Returns the folders where pip may have installed the command of this package."""
    user = sysconfig.get_preferred_scheme("user")
    installed = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", user)]
    beside_package = Path(__file__).resolve().parents[1] / "bin"  # pip install --target
    return [*map(Path, installed), beside_package]


def main() -> None:
    folders = script_folders()
    for folder in folders:
        command = folder / "lazyrope"
        if os.access(command, os.X_OK):
            os.execv(command, [str(command), *sys.argv[1:]])
    sys.exit(
        f"lazyrope: the command is in none of {', '.join(map(str, folders))}: pip installs it with the package; "
        "from a build tree, copy build/tools/lazyrope into the first of them, as `make` does"
    )


if __name__ == "__main__":
    main()
