"""Attention to a group of keys and attention to all others are merged into the attention of one softmax."""

from __future__ import annotations

import pytest
import torch
from lazyrope.merging import merge

ROWS, HEADS, DIM, KEYS = 5, 3, 16, 40


def attention(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output [rows, heads, dim] and the log-sum-exp [rows, heads] in fp64. No key: 0 and -inf."""
    weights = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("rhk,khd->rhd", weights, values), scores.logsumexp(-1)


@pytest.fixture
def given() -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [rows, heads, keys] and values [keys, heads, dim] in fp64. The last 15 keys are the group."""
    scores = 3 * torch.randn(ROWS, HEADS, KEYS, dtype=torch.float64)
    scores[1, :, -15:] = scores[2, :, :-15] = scores[3] = -torch.inf  # a row without the group, one without the rest
    return scores, torch.randn(KEYS, HEADS, DIM, dtype=torch.float64)


@pytest.mark.parametrize("is_tensor", [False, True], ids=["a number", "a tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 0.6, 1.4])
def test_the_merged_attention_is_that_of_one_softmax_over_scaled_weights(given, scale, dtype, is_tensor):
    scores, values = given
    (out, lse), (group_out, group_lse) = (
        attention(scores[..., s], values[s]) for s in (slice(0, -15), slice(-15, None))
    )
    scaled = scores.clone()
    scaled[..., -15:] += (scale - 1) * group_lse.clamp_min(-1e30)[..., None]
    exact, _ = attention(scaled, values)
    factor = torch.full((ROWS, 1), scale) if is_tensor else scale
    found = merge(out.to(dtype), lse.float(), group_out.to(dtype), group_lse.float(), factor)
    assert found.dtype == dtype
    error = (found.double() - exact).norm() / exact.norm()
    assert error < (1e-6 if dtype == torch.float32 else 5e-3)
    assert torch.equal(found[1], out[1].to(dtype)) and torch.equal(found[2], group_out[2].to(dtype))
    assert torch.equal(found[3], torch.zeros_like(found[3]))


def test_a_sink_that_takes_everything_stays():
    out, lse = torch.zeros(1, 1, 4), torch.full((1, 1), torch.inf)
    assert torch.equal(merge(out, lse, torch.ones(1, 1, 4), torch.zeros(1, 1)), out)
