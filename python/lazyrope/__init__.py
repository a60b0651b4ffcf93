"""Attention over position-free KV: kernels rendered for a model, compiled on this machine, cached.

A document's keys and values are stored once, rotated by the index inside the document; the kernels turn
the queries to wherever a request puts the document (lazy RoPE, arXiv 2606.04302).

    spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.llama3())
    kernel = lazyrope.compile(spec)
    step = kernel.plan(q_indptr, q_position, segment_indptr, base, start, length, first_page, pages)
    out, lse = kernel(q, k_pool, v_pool, step)
"""

from __future__ import annotations

from . import _nvrtc, emulator, rope
from ._core import (
    AppendStep,
    Attention,
    AttentionSpec,
    CompiledKernel,
    KernelConfig,
    Reposition,
    Rope,
    Step,
    TileConfig,
    __version__,
    archs,
    clear_cache,
    compile,
    compile_reposition,
    configs,
    doctor,
    environment_variables,
    head_dims,
    masks,
    model_types,
    rope_variants,
)
from .errors import CacheError, CompileError, DriverError, KernelFault, SpecError
from .hf import spec_from_hf

__all__ = [
    "AppendStep",
    "Attention",
    "AttentionSpec",
    "CacheError",
    "CompileError",
    "CompiledKernel",
    "DriverError",
    "KernelConfig",
    "KernelFault",
    "Reposition",
    "Rope",
    "SpecError",
    "Step",
    "TileConfig",
    "__version__",
    "archs",
    "clear_cache",
    "compile",
    "compile_reposition",
    "configs",
    "doctor",
    "emulator",
    "environment_variables",
    "head_dims",
    "masks",
    "model_types",
    "rope",
    "rope_variants",
]

_nvrtc.register_directories()
AttentionSpec.from_hf = staticmethod(spec_from_hf)  # type: ignore[method-assign]
