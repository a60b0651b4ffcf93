"""Checks that the Python programs of the command line make before their work begins."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def require_packages(program: str, packages: Sequence[str]) -> None:
    """Exits if a package is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"{program} needs {', '.join(missing)}: pip install {' '.join(missing)}")


def check_output(program: str, file: Path | None) -> None:
    """Exits if the file of an option cannot be written."""
    if file is None:
        return
    if file.is_dir() or not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        sys.exit(f"{program}: cannot write {file}")
