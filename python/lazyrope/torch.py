"""Attention as operators of PyTorch, which torch.compile, torch.export and CUDA graphs pass through.

    @torch.compile(fullgraph=True)
    def layer(q, k, v):
        lazyrope.torch.append(kernel, k, v, k_pool, v_pool, writes)
        return lazyrope.torch.attend(kernel, q, k_pool, v_pool, step)

Kernels and steps are made outside, and so is ``step.update(...)``, with device tensors or a :class:`lazyrope.Batch`:
compiled code and captured graphs then serve the new requests, with nothing compiled anew. Other steps may be given as
well. With ``mode="reduce-overhead"`` pools must be buffers of a module or marked by
``torch._dynamo.mark_static_address``, or else PyTorch copies them at each call.

The operators themselves are ``torch.ops.lazyrope.attend``, ``attend_out`` and ``append``. They take ``kernel.handle``
and ``step.handle`` in place of the objects, which must live as long as compiled code or a graph refers to them. A
program that torch.export has made runs in the process that exported it, and in no other. There is no backward. Outside
compiled code ``kernel(...)`` and ``kernel.append(...)`` do the same with less overhead.
"""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

from ._core import AppendStep, Attention, Step
from ._handles import exported, find
from .errors import SpecError

__all__ = ["append", "attend"]


@overload
def attend(
    kernel: Attention,
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    step: Step,
    *,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def attend(
    kernel: Attention,
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    step: Step,
    *,
    out: Tensor,
    lse: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]: ...
def attend(
    kernel: Attention,
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    step: Step,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention of q over the step's segments, as ``kernel(q, k_pool, v_pool, step)``.

    Args:
        kernel: from :func:`lazyrope.compile`.
        q: [tokens, num_q_heads, head_dim], of the spec's dtype; with more tokens than the step has, out must be given.
        k_pool, v_pool: [pages, page_size, kv_heads, head_dim] (layout NHD) or [pages, kv_heads, page_size, head_dim]
            (HND), of the spec's kv_dtype.
        step: from ``kernel.plan(...)``, of device tensors or of a :class:`lazyrope.Batch`.
        out: as q. Rows beyond the step's tokens are left alone.
        lse: [tokens, num_q_heads], float32; natural logarithm. Only with out.
        sinks: [num_q_heads], float32, if and only if the spec has them.
        k_scale, v_scale: of pools of 8 bits: float32, one element or [kv_heads]; 1 by default.

    Returns:
        out and lse: new tensors, or, where out is given, what was given.

    Raises:
        SpecError: as ``kernel(...)``; or lse is given without out; or a gradient is asked for.
        DriverError: a call of the driver failed.
    """
    _refuse_gradients(q, k_pool, v_pool)
    if out is not None:
        torch.ops.lazyrope.attend_out(
            q, k_pool, v_pool, _handle(kernel), _handle(step), out, lse, sinks, k_scale, v_scale
        )
        return out, lse
    if lse is not None:
        raise SpecError("lse is given and out is not; give both, or neither to get new tensors")
    result: tuple[Tensor, Tensor] = torch.ops.lazyrope.attend(
        q, k_pool, v_pool, _handle(kernel), _handle(step), sinks, k_scale, v_scale
    )
    return result


def append(
    kernel: Attention,
    k: Tensor,
    v: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    step: AppendStep,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Stores new keys and values in the pool, as ``kernel.append(k, v, k_pool, v_pool, step)``.

    Args:
        kernel: from :func:`lazyrope.compile`.
        k, v: [tokens, num_kv_heads, head_dim], of the spec's dtype.
        k_pool, v_pool: as in :func:`attend`; written to.
        step: from ``kernel.plan_append(...)``.
        k_scale, v_scale: as in :func:`attend`.

    Raises:
        SpecError: as ``kernel.append(...)``; or a gradient is asked for.
        DriverError: a call of the driver failed.
    """
    _refuse_gradients(k, v, k_pool, v_pool)
    torch.ops.lazyrope.append(k, v, k_pool, v_pool, _handle(kernel), _handle(step), k_scale, v_scale)


def _handle(thing: Attention | Step | AppendStep) -> int:
    return exported(thing.handle) if torch.compiler.is_exporting() else thing.handle


def _refuse_gradients(*tensors: Tensor) -> None:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise SpecError(
            "a tensor requires a gradient, and lazyrope has no backward: call it under torch.no_grad() or "
            "torch.inference_mode(), or give what detach() returns"
        )


def _attend(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    kernel: int,
    step: int,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    attention = find(kernel, Attention)
    return attention(q, k_pool, v_pool, find(step, Step), sinks=sinks, k_scale=k_scale, v_scale=v_scale)


def _attend_fake(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    kernel: int,
    step: int,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


def _attend_out(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    kernel: int,
    step: int,
    out: Tensor,
    lse: Tensor | None,  # PyTorch 2.11 leaves out a default that it is to mutate, and fails
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    find(kernel, Attention)(
        q,
        k_pool,
        v_pool,
        find(step, Step),
        out=out,
        lse=lse,
        return_lse=False,
        sinks=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def _append(
    k: Tensor,
    v: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    kernel: int,
    step: int,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    attention = find(kernel, Attention)
    attention.append(k, v, k_pool, v_pool, find(step, AppendStep), k_scale=k_scale, v_scale=v_scale)


torch.library.custom_op("lazyrope::attend", _attend, mutates_args=()).register_fake(_attend_fake)
torch.library.custom_op("lazyrope::attend_out", _attend_out, mutates_args=("out", "lse"))
torch.library.custom_op("lazyrope::append", _append, mutates_args=("k_pool", "v_pool"))
