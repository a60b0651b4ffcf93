"""Finds the libraries of NVIDIA's PyPI packages in this Python."""

from __future__ import annotations

import importlib.util
import os

from . import _core


def library_directories() -> list[str]:
    """Returns the lib directories below every ``nvidia`` namespace package.

    NVIDIA's packages of CUDA 13 share nvidia/cu13/lib, and those of CUDA 12 have a folder each, such as
    nvidia/cuda_nvrtc/lib. The order does not matter: lazyrope loads the newest NVRTC library that the driver allows.
    """
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
    """Adds the directories to lazyrope's search for NVRTC."""
    _core.set_nvrtc_directories(library_directories())
