"""Attention kernels that read each document's KV from one physical copy, at whatever position a request puts it.

A document's keys and values are stored once, with each key rotated by its index inside the document. The kernels rotate
the queries instead, once per (query tile, document): lazy RoPE (arXiv 2606.04302). Kernels are rendered for a model,
compiled on this machine, and cached on disk.

    import torch, lazyrope

    spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.llama3())
    kernel = lazyrope.compile(spec)

    def ints(*values):
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    # One layer's pool of ten 16-token pages. A document of 40 tokens gets pages 5, 1 and 8.
    k_pool, v_pool = (torch.zeros(10, 16, 8, 128, dtype=torch.bfloat16, device="cuda") for _ in "kv")
    pages, document = ints(5, 1, 8), lazyrope.Document(first_page=0, num_tokens=40)
    spans = lazyrope.TokenSpans(indptr=ints(0, 40), start=ints(0), first_page=ints(0))
    writes = kernel.plan_append(spans, pages, capacity=lazyrope.AppendCapacity(tokens=40))
    kernel.append(k, v, k_pool, v_pool, writes)  # raw keys and values [40, 8, 128]; once a layer

    # A request reads the document at positions 100 to 139 and asks at position 140.
    request = lazyrope.Request(140, [lazyrope.Segment(document, base=100)])
    step = kernel.plan(lazyrope.batch([request], pages))
    out, lse = kernel(q, k_pool, v_pool, step)  # q: raw queries [1, 32, 128]; once a layer

Log messages go to the logger "lazyrope" of :mod:`logging`, at the levels debug, info and warning, when the call that
caused them returns. If LAZYROPE_LOG is set, they go to stderr instead.
"""

from __future__ import annotations

from . import _nvrtc, emulator, rope
from ._arguments import AppendCapacity, Segments, StepCapacity, TokenSlots, TokenSpans
from ._batch import Document, Request, Segment
from ._core import (
    AppendStep,
    Attention,
    AttentionSpec,
    Batch,
    CompiledKernel,
    KernelConfig,
    LayerGroup,
    QueryTemperature,
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
    counters,
    doctor,
    environment_variables,
    head_dims,
    masks,
    model_types,
    open_metrics,
    rope_variants,
)
from ._tuning import Tuning, TuningTask, TuningTrial, TuningWorkload
from .errors import CacheError, CompileError, DriverError, KernelFault, SpecError, StoreError

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
    "LayerGroup",
    "QueryTemperature",
    "Reposition",
    "Request",
    "Rope",
    "Segment",
    "Segments",
    "SpecError",
    "Step",
    "StepCapacity",
    "StoreError",
    "TileConfig",
    "TokenSlots",
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
    "counters",
    "doctor",
    "emulator",
    "environment_variables",
    "head_dims",
    "masks",
    "model_types",
    "open_metrics",
    "rope",
    "rope_variants",
]

_nvrtc.register_directories()


def _publish(names: list[str]) -> None:
    """Makes this package the module of its classes. Pickles then name it, and not the module that defines a class."""
    for thing in map(globals().get, names):
        if isinstance(thing, type) and thing.__module__.startswith("lazyrope._"):
            thing.__module__ = __name__


def _compiled(spec: AttentionSpec, arch: str, config: KernelConfig) -> Attention:
    """Compiles the kernels that a pickle describes. They were accepted before, whether they spill registers or not."""
    return compile(spec, arch, config=config, allow_spills=True)


def _repositioned(spec: AttentionSpec, arch: str) -> Reposition:
    """Compiles the kernel that a pickle describes."""
    return compile_reposition(spec, arch)


_publish(__all__)
