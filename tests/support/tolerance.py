"""Limits the error of a result against fp64 to twice the error of eager computation in the same dtype."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MULTIPLE = 2.0
# One rounding changes an element by at most this share of it. The weights and the result are each rounded once. Eager
# has a smaller error only if its result is exact by chance (a single key, or keys of equal values).
HALF_ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@dataclass
class Error:
    norm: float  # |result - exact| / |exact|
    worst: float  # largest element of |result - exact|, over the root mean square of exact

    def __str__(self) -> str:
        return f"{self.norm:.2e} (worst element {self.worst:.2e})"


def error(result: torch.Tensor, exact: torch.Tensor) -> Error:
    if exact.numel() == 0:
        return Error(0.0, 0.0)
    difference = result.double() - exact
    scale = exact.norm().clamp_min(1e-30)
    size = exact.square().mean().sqrt().clamp_min(1e-30)
    return Error((difference.norm() / scale).item(), (difference.abs().max() / size).item())


def assert_close(result: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor, what: str = "out") -> Error:
    """Checks that every element is written and that both errors are at most MULTIPLE times eager's."""
    missing = int(result.isnan().sum())
    assert missing == 0, f"{what}: {missing} of {result.numel()} elements are NaN"
    ours, theirs = error(result, exact), error(eager, exact)
    half_ulp = HALF_ULP[result.dtype]
    greatest = exact.abs().max().item() / max(exact.square().mean().sqrt().item(), 1e-30) if exact.numel() else 0.0
    norm_limit = max(MULTIPLE * theirs.norm, half_ulp)
    worst_limit = max(MULTIPLE * theirs.worst, 2 * half_ulp * greatest)
    if ours.norm > norm_limit or ours.worst > worst_limit:
        at = (result.double() - exact).abs().argmax().item()
        where = torch.unravel_index(torch.tensor(at), exact.shape)
        raise AssertionError(
            f"{what}: error {ours}, eager {theirs}, allowed {norm_limit:.2e} and {worst_limit:.2e}; worst at "
            f"{[int(i) for i in where]}: {result.flatten()[at].item()} for {exact.flatten()[at].item()}"
        )
    return ours


def assert_lse_close(lse: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    """Checks that lse is within the error of once-rounded queries, and -inf exactly where no key is seen."""
    assert bool((lse.isneginf() == exact.isneginf()).all()), "lse: -inf in the wrong places"
    finite = ~exact.isneginf()
    if not bool(finite.any()):
        return
    difference = (lse.double() - exact)[finite].abs()
    limit = 4 * HALF_ULP[dtype] * (1 + exact[finite].abs())
    assert bool((difference <= limit).all()), f"lse: off by {difference.max().item():.2e}"
