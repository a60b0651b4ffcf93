"""Non-negative least squares in batches, from normal equations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor

ITERATIONS = 200


def solve(gram: Tensor, target: Tensor, start: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Minimises 1/2 w'Gw - h'w over w >= 0 by accelerated projected gradient steps.

    The unknowns are scaled so that the diagonal of G is 1. Momentum restarts, for each problem of the batch by itself,
    when it points uphill (O'Donoghue and Candes, arXiv 1204.3982, section 3.2). The number of steps is fixed, so the
    host reads nothing back.

    Args:
        gram: G, symmetric and positive semi-definite, floating point [..., n, n].
        target: h, [..., n].
        start: The first w, [..., n].
        iterations: The number of steps.

    Returns:
        The solution, [..., n].
    """
    # A key without weight has a zero on the diagonal. It keeps its first value.
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    size = torch.where(diagonal > 0, diagonal, 1).sqrt()
    gram, target = gram / (size[..., :, None] * size[..., None, :]), target / size
    step = 1 / _greatest_eigenvalue(gram)
    w = ahead = start * size
    momentum = torch.ones_like(step)
    for _ in range(iterations):
        gradient = (gram @ ahead[..., None]).squeeze(-1) - target
        new = (ahead - step * gradient).clamp_min_(0)
        change = new - w
        restarts = (gradient * change).sum(-1, keepdim=True) > 0
        momentum = torch.where(restarts, 1, momentum)
        following = (1 + (1 + 4 * momentum**2).sqrt()) / 2
        ahead = new + (momentum - 1) / following * change
        w, momentum = new, following
    return w / size


def _greatest_eigenvalue(gram: Tensor, iterations: int = 30) -> Tensor:
    """Returns an upper estimate of the greatest eigenvalue, [..., 1].

    The entries are non-negative here, so the power method from ones converges from below, and the row sums are an upper
    bound. A tenth is added for what the power method has not reached.
    """
    x = gram.new_ones(gram.shape[:-1])
    for _ in range(iterations):
        x = (gram @ x[..., None]).squeeze(-1)
        x = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    reached = (gram @ x[..., None]).squeeze(-1).norm(dim=-1, keepdim=True)
    return torch.minimum(1.1 * reached, gram.sum(-1).amax(-1, keepdim=True)).clamp_min(1e-30)
