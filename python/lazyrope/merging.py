"""Merges attention to a group of keys with attention to all other keys, by their log-sum-exp.

Level "ape" of :mod:`lazyrope.recovery` attends to documents with another temperature than to all other keys:

    out, lse = kernel(q, k_pool, v_pool, rest)
    group_out, group_lse = kernel(q / temperature, k_pool, v_pool, group)  # steps with the same queries
    out = merge(out, lse, group_out, group_lse, lse_scale)

The kernels know neither temperature nor scale. So a layer has one attention call more, in which each query sees the
group alone. In all, no key is read more often than in one call over all of them. If the spec has sinks, give those of
the model to the first call and -inf to the second one: a sink counts once.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["merge"]

Tensor = Any


def merge(out: Tensor, lse: Tensor, group_out: Tensor, group_lse: Tensor, lse_scale: float | Tensor = 1.0) -> Tensor:
    """Returns the attention to both sets of keys, of the shape and dtype of out.

    The weight of the group beside the other keys is exp(lse_scale * group_lse) to exp(lse). With a scale of 1 the
    result is the attention to all keys in one softmax. A row whose group has no keys equals that of out, if that is
    finite. The result is computed in float32 and rounded once.

    Source: Adaptive Parallel Encoding (arXiv 2502.05431).

    Args:
        out: The attention to the other keys, [tokens, num_q_heads, head_dim].
        lse: Its log-sum-exp, float32 [tokens, num_q_heads].
        group_out: The attention to the group's keys, of the shape of out.
        group_lse: Its log-sum-exp, of the shape of lse. Minus infinity where a row sees no key of the group.
        lse_scale: The factor of group_lse, greater than 0: a number, or a tensor that broadcasts against lse.
    """
    scaled = group_lse * lse_scale
    share = torch.sigmoid(scaled - lse).masked_fill(scaled == -torch.inf, 0.0)  # both may be -inf
    return torch.lerp(out.float(), group_out.float(), share[..., None]).to(out.dtype)
