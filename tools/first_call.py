"""Checks the results of the first-call example of the README and the documentation."""

from __future__ import annotations

from typing import Any

import torch


def rotate(x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    angle = positions.double()[:, None] * frequencies
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.double().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def assert_computes_attention(names: dict[str, Any], order: torch.Tensor) -> None:
    """Checks the results of the example, which ran on a GPU or in the emulator. The arguments are those of errors()."""
    assert torch.cuda.is_available() or names["kernel"].arch == "emu:sm_80"
    out, lse = errors(names, order)
    assert out < 1e-2 and lse < 2e-2


def errors(names: dict[str, Any], order: torch.Tensor) -> tuple[float, float]:
    """Compares the example's results with fp64 attention over keys that are rotated from scratch.

    Args:
        names: the variables of the example.
        order: the index of the stored token at each position that the request sees.

    Returns:
        The relative error of out, and the greatest absolute error of lse.
    """
    k, v, q = (names[name].cpu() for name in ("k", "v", "q"))
    tokens, spec = len(order), names["spec"]
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    keys = rotate(k[order], torch.arange(tokens), frequencies).repeat_interleave(spec.group_size, dim=1)
    queries = rotate(q, torch.arange(tokens, tokens + len(q)), frequencies)
    score = torch.einsum("thd,khd->thk", queries, keys) * spec.scale
    values = v[order].double().repeat_interleave(spec.group_size, dim=1)
    exact = torch.einsum("thk,khd->thd", score.softmax(-1), values)
    out, lse = names["out"].cpu(), names["lse"].cpu()
    of_out = (out.double() - exact).norm() / exact.norm()
    return of_out.item(), (lse.double() - score.logsumexp(-1)).abs().max().item()


# The example stores documents of 40 and 100 tokens. Each tensor is an `order` of assert_computes_attention().
SECOND_THEN_FIRST = torch.cat([torch.arange(40, 140), torch.arange(40)])
FIRST_THEN_SECOND = torch.arange(140)
