"""Where NVIDIA's PyPI packages keep their libraries in this Python."""

from __future__ import annotations

import importlib.util
import os

from . import _core


def library_directories() -> list[str]:
    """The lib directories below every ``nvidia`` namespace package, newest CUDA first."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    found = []
    for root in roots:
        for package in sorted(os.listdir(root), reverse=True) if os.path.isdir(root) else []:
            directory = os.path.join(root, package, "lib")
            if os.path.isdir(directory):
                found.append(directory)
    return found


def register_directories() -> None:
    _core.set_nvrtc_directories(library_directories())
