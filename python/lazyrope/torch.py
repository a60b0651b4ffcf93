"""Attention as operators of PyTorch, for torch.compile, torch.export and CUDA graphs.

    @torch.compile(fullgraph=True)
    def layer(q, k, v):
        lazyrope.torch.append(kernel, k, v, k_pool, v_pool, writes)
        return lazyrope.torch.attend(kernel, q, k_pool, v_pool, step)

Make kernels and steps outside of the compiled code, and call ``step.update(...)`` there too. Compiled code and captured
graphs then serve the new requests, and nothing is compiled again. The code also accepts other steps. With
``mode="reduce-overhead"``, pools must be buffers of a module or marked by ``torch._dynamo.mark_static_address``;
otherwise PyTorch copies them at each call.

The operators are ``torch.ops.lazyrope.attend``, ``attend_out`` and ``append``. They take ``kernel.handle`` and
``step.handle`` in place of the objects. Keep the objects alive as long as compiled code or a graph refers to them. A
program of torch.export runs only in the process that exported it. The operators are forward only. Outside of compiled
code, ``kernel(...)`` and ``kernel.append(...)`` do the same with less overhead.
"""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

from ._core import AppendStep, Attention, Step
from ._handles import exported, find
from ._overloads import check_type
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
    key_bias: Tensor | None = None,
    entry_lse: Tensor | None = None,
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
    key_bias: Tensor | None = None,
    entry_lse: Tensor | None = None,
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
    key_bias: Tensor | None = None,
    entry_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Computes the attention of q over the step's segments, as ``kernel(q, k_pool, v_pool, step)`` does.

    Args:
        kernel: The kernels of :func:`lazyrope.compile`.
        q: Queries, [tokens, num_q_heads, head_dim], of the spec's dtype. If it has more tokens than the step, out must
            be given.
        k_pool: Keys, [pages, page_size, kv_heads, head_dim] (layout NHD) or [pages, kv_heads, page_size, head_dim]
            (HND), of the spec's kv_dtype.
        v_pool: Values, of the same shape and strides.
        step: The step of ``kernel.plan(...)``.
        out: The output, of the shape and dtype of q. Rows beyond the step's tokens are not written.
        lse: The log-sum-exp, [tokens, num_q_heads], float32, in natural logarithms. It may be given only with out.
        sinks: A logit of each query head, [num_q_heads], float32. It must be given if and only if the spec has sinks.
        k_scale: For pools of 8 bits only: the factor of stored keys, float32, one element or [kv_heads]. The default
            is 1.
        v_scale: The same for values.
        key_bias: The bias of each key, [pages, kv_heads, page_size], float32. It must be given if and only if the spec
            has key_bias.
        entry_lse: The log-sum-exp of each slot that has an entry of a memory, [pages, kv_heads, page_size], float32,
            contiguous. It must be given if and only if the spec has states.

    Returns:
        New tensors out and lse, or the given ones if out is given.

    Raises:
        SpecError: As in ``kernel(...)``; or lse is given without out; or an input requires a gradient.
        DriverError: A call of the driver failed.
    """
    _check(kernel, step, Step, q=q, k_pool=k_pool, v_pool=v_pool)
    if out is not None:
        torch.ops.lazyrope.attend_out(
            q, k_pool, v_pool, _handle(kernel), _handle(step), out, lse, sinks, k_scale, v_scale, key_bias, entry_lse
        )
        return out, lse
    if lse is not None:
        raise SpecError("lse is given and out is not; give both, or neither to get new tensors")
    result: tuple[Tensor, Tensor] = torch.ops.lazyrope.attend(
        q, k_pool, v_pool, _handle(kernel), _handle(step), sinks, k_scale, v_scale, key_bias, entry_lse
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
    """Stores new keys and values in the pool, as ``kernel.append(k, v, k_pool, v_pool, step)`` does.

    Args:
        kernel: The kernels of :func:`lazyrope.compile`.
        k: New keys, [tokens, num_kv_heads, head_dim], of the spec's dtype.
        v: New values, of the same shape and dtype.
        k_pool: The keys' pool, as in :func:`attend`. It is written.
        v_pool: The values' pool, as in :func:`attend`. It is written.
        step: The append step of ``kernel.plan_append(...)``.
        k_scale: For pools of 8 bits only: the divisor of keys, float32, one element or [kv_heads]. The default is 1.
        v_scale: The same for values.

    Raises:
        SpecError: As in ``kernel.append(...)``; or an input requires a gradient.
        DriverError: A call of the driver failed.
    """
    _check(kernel, step, AppendStep, k=k, v=v, k_pool=k_pool, v_pool=v_pool)
    torch.ops.lazyrope.append(k, v, k_pool, v_pool, _handle(kernel), _handle(step), k_scale, v_scale)


def _handle(thing: Attention | Step | AppendStep) -> int:
    return exported(thing.handle) if torch.compiler.is_exporting() else thing.handle


def _check(kernel: Attention, step: Step | AppendStep, kind: type, **tensors: Tensor) -> None:
    """Refuses objects of other types, and tensors that require a gradient. torch.compile traces it."""
    check_type("kernel", kernel, Attention)
    check_type("step", step, kind)
    for name, tensor in tensors.items():
        check_type(name, tensor, Tensor)
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise SpecError(
                f"{name} requires a gradient, and lazyrope has no backward: call it under torch.no_grad() or "
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
    key_bias: Tensor | None = None,
    entry_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    attention = find(kernel, Attention)
    return attention(
        q,
        k_pool,
        v_pool,
        find(step, Step),
        sinks=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
        key_bias=key_bias,
        entry_lse=entry_lse,
    )


def _attend_fake(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    kernel: int,
    step: int,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    key_bias: Tensor | None = None,
    entry_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


def _attend_out(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    kernel: int,
    step: int,
    out: Tensor,
    lse: Tensor | None,  # no default: PyTorch 2.11 fails to pass the default of an argument that is mutated
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    key_bias: Tensor | None = None,
    entry_lse: Tensor | None = None,
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
        key_bias=key_bias,
        entry_lse=entry_lse,
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
