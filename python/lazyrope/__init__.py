"""Attention over position-free KV: kernels rendered for a model, compiled on this machine, cached.

A document's keys and values are stored once, rotated by the index inside the document; the kernels turn
the queries to wherever a request puts the document (lazy RoPE, arXiv 2606.04302).

    spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.llama3())
    kernel = lazyrope.compile(spec)
    segments = lazyrope.Segments(indptr, base, start, length, first_page)
    step = kernel.plan(q_indptr, q_position, segments, pages)
    out, lse = kernel(q, k_pool, v_pool, step)

Messages of the library reach :mod:`logging`'s logger "lazyrope", at the levels debug, info and warning, when the call
that caused them returns. Where LAZYROPE_LOG is set they are printed to stderr instead.
"""

from __future__ import annotations

from . import _nvrtc, emulator, rope
from ._arguments import AppendCapacity, Segments, StepCapacity, TokenSpans
from ._batch import Document, Request, Segment
from ._core import (
    AppendStep,
    Attention,
    AttentionSpec,
    Batch,
    CompiledKernel,
    KernelConfig,
    Reposition,
    Rope,
    Step,
    TileConfig,
    __version__,
    archs,
    batch,
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
from ._tuning import Tuning, TuningTask, TuningTrial, TuningWorkload
from .errors import CacheError, CompileError, DriverError, KernelFault, SpecError

__all__ = [
    "AppendCapacity",
    "AppendStep",
    "Attention",
    "AttentionSpec",
    "Batch",
    "CacheError",
    "CompileError",
    "CompiledKernel",
    "Document",
    "DriverError",
    "KernelConfig",
    "KernelFault",
    "Reposition",
    "Request",
    "Rope",
    "Segment",
    "Segments",
    "SpecError",
    "Step",
    "StepCapacity",
    "TileConfig",
    "TokenSpans",
    "Tuning",
    "TuningTask",
    "TuningTrial",
    "TuningWorkload",
    "__version__",
    "archs",
    "batch",
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
