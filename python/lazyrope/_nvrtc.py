"""Where NVIDIA's PyPI packages keep their libraries in this Python."""

from __future__ import annotations

import importlib.util
import os

from . import _core


def library_directories() -> list[str]:
    """The lib directories below every ``nvidia`` namespace package. Their order means nothing: of the NVRTC
    libraries in them, the newest is taken."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    return [
        os.path.join(root, package, "lib")
        for root in roots
        if os.path.isdir(root)
        for package in sorted(os.listdir(root))
        if os.path.isdir(os.path.join(root, package, "lib"))
    ]


def register_directories() -> None:
    _core.set_nvrtc_directories(library_directories())
