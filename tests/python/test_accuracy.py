"""Compares the errors of attend with those of a model that rounds each input of a product once, and all else not.

The model rounds the rotated queries, the softmax weights and the outputs to the dtype. The rest is fp64. Queries that
need no rotation are not rounded.
"""

from __future__ import annotations

from dataclasses import replace

import lazyrope
import pytest
import torch

from tests.conftest import HAS_GPU
from tests.support import reference
from tests.support.cases import Case, Setting, case_at, documents_case
from tests.support.tolerance import HALF_ULP

# On a Hopper GPU the kernels of its own families run; elsewhere both families run in the emulator.
ARCHS = [None] if HAS_GPU else [arch for arch in lazyrope.archs() if arch.startswith("emu:")]
pytestmark = pytest.mark.skipif(not ARCHS, reason="there is neither a GPU nor the emulator")
GREATEST_RATIO = 1.1
# Where the prefill kernel of sm_90a folds the softmax scale into bfloat16 queries, it also rounds the columns whose
# rotation is too small to change them. They matter to lse, most of all with llama3's low frequencies.
GREATEST_LSE_RATIO = 1.3

PREFILL_TOKENS, DECODE_TOKENS = 128, 1
SETTINGS = [
    Setting(head_dim=head_dim, dtype=dtype, rope=rope, group=8, kv_heads=1, mask=mask, scores=scores)
    for head_dim, dtype, rope, mask, scores in [
        *((d, "bfloat16", rope, "causal", "plain") for d in (64, 128, 256) for rope in ("none", "neox", "gptj")),
        *((d, "float16", rope, "causal", "plain") for d in (64, 128, 256) for rope in ("none", "neox")),
        *((d, "bfloat16", "partial neox", "causal", "plain") for d in (64, 80, 96, 128, 192, 256)),
        *((d, "bfloat16", "none", "full", "plain") for d in (72, 112, 160)),
        *((128, "bfloat16", rope, "full", "plain") for rope in ("llama3", "yarn", "attention factor")),
        *((128, "float16", rope, "causal", "plain") for rope in ("partial gptj", "linear")),
        *((128, "bfloat16", rope, "causal", "scale") for rope in ("none", "neox")),
        *((128, "bfloat16", rope, "causal", "sinks") for rope in ("none", "neox")),
        *((128, "bfloat16", rope, "causal", "softcap") for rope in ("none", "neox")),
    ]
]


def rounded_once(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the model's out and lse, and the error of lse if weights are summed after rounding, all fp64.

    The case has one request, one segment and one KV head.
    """
    (request,) = case.requests
    (s,) = request.slices
    spec, dtype = case.spec, case.q.dtype
    positions = torch.tensor(request.positions, device=case.q.device, dtype=torch.int64)
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    q = reference.rotate(
        case.q, positions - s.base, frequencies, spec.rope.rotary_dim, spec.rope_pairing, spec.attention_factor
    )
    q = q.to(dtype).double()
    end = s.start + s.length
    keys, values = s.document.keys[s.start : end].double(), s.document.values[s.start : end].double()
    score = torch.einsum("thd,kd->thk", q, keys[:, 0]) * spec.scale
    if spec.softcap is not None:
        score = spec.softcap * torch.tanh(score / spec.softcap)
    key_positions = s.base + s.start + torch.arange(s.length, device=q.device)
    seen = reference.visible(case.setting.mask, spec.window or spec.chunk, positions, key_positions)
    score = score.masked_fill(~seen[:, None, :], -torch.inf)
    if "sinks" in case.call_arguments:
        sink = case.call_arguments["sinks"].double()[None, :, None].expand(len(q), -1, 1)
        lse = torch.logsumexp(torch.cat([score, sink], dim=-1), dim=-1)
    else:
        lse = torch.logsumexp(score, dim=-1)
    weights = torch.exp(score - lse[..., None])
    out = torch.einsum("thk,kd->thd", weights.to(dtype).double(), values[:, 0]).to(dtype).double()
    # The standard deviation of the sum if each weight is rounded: an error is uniform within half an ulp, which is
    # HALF_ULP of the greatest power of two in the weight.
    sum_error = 0.735 * HALF_ULP[dtype] / 3**0.5 * weights.square().sum(dim=-1).sqrt()
    return out, lse, sum_error


def rms(x: torch.Tensor) -> float:
    return x.square().mean().sqrt().item()


def error_ratios(case: Case, kernel: lazyrope.Attention) -> tuple[float, float]:
    """Returns the errors of out and of lse over those of the model."""
    out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **case.call_arguments)
    exact, exact_lse = case.reference()
    model, model_lse, sum_error = rounded_once(case)
    lse_error = (rms(model_lse - exact_lse) ** 2 + rms(sum_error) ** 2) ** 0.5
    return rms(out.double() - exact) / rms(model - exact), rms(lse.double() - exact_lse) / lse_error


@pytest.mark.sample(4)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.head_dim}-{s.dtype}-{s.rope}-{s.mask}-{s.scores}")
@pytest.mark.parametrize("tokens", [PREFILL_TOKENS, DECODE_TOKENS], ids=["prefill", "decode"])
@pytest.mark.parametrize("arch", ARCHS)
def test_the_error_is_that_of_rounding_each_input_once(setting, tokens, arch, device):
    case = documents_case(setting, [300], tokens, device)
    out, lse = error_ratios(case, lazyrope.compile(case.spec, arch=arch))
    assert out < GREATEST_RATIO and lse < GREATEST_LSE_RATIO, f"errors over the model's: out {out:.2f}, lse {lse:.2f}"


def values_of_first_document(case: Case) -> torch.Tensor:
    """Returns its values for each query head, [tokens, q_heads, head_dim]."""
    return case.requests[0].slices[0].document.values.repeat_interleave(case.setting.group, dim=1)


@pytest.mark.sample(2)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("tokens", [40, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("arch", ARCHS)
def test_a_row_that_sees_one_key_returns_its_value(head_dim, dtype, tokens, arch, device):
    case = case_at(Setting(head_dim=head_dim, dtype=dtype, group=8), list(range(tokens)), device)
    kernel = lazyrope.compile(case.spec, arch=arch)
    out, _ = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel))
    assert torch.equal(out[0], values_of_first_document(case)[0])


@pytest.mark.sample(2)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("arch", ARCHS)
def test_with_a_window_of_one_token_every_row_returns_its_own_value(head_dim, arch, device):
    setting = Setting(head_dim=head_dim, group=8, mask="sliding_window")
    spec = lazyrope.AttentionSpec(
        head_dim=head_dim, num_q_heads=16, num_kv_heads=2, rope=lazyrope.rope.neox(), mask="sliding_window", window=1
    )
    case = replace(documents_case(setting, [300], 40, device), spec=spec)
    case.metadata["q_position"] -= 40  # the positions of the document's last tokens
    kernel = lazyrope.compile(spec, arch=arch)
    out, _ = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel))
    assert torch.equal(out, values_of_first_document(case)[-40:])


@pytest.mark.sample(2)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("tokens", [40, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("arch", ARCHS)
def test_a_sink_that_is_nan_or_infinite_reaches_the_results_of_its_head(head_dim, tokens, arch, device):
    case = documents_case(Setting(head_dim=head_dim, group=8, scores="sinks"), [1200], tokens, device)
    kernel = lazyrope.compile(case.spec, arch=arch)
    case.call_arguments["sinks"][:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **case.call_arguments)
    assert bool(out[:, 0].isnan().all()) and bool(lse[:, 0].isnan().all())
    assert bool((out[:, 1] == 0).all()) and bool(lse[:, 1].isposinf().all())
    exact, exact_lse = case.reference()
    torch.testing.assert_close(out[:, 2:].double(), exact[:, 2:], rtol=0.02, atol=0.02)
    torch.testing.assert_close(lse[:, 2:].double(), exact_lse[:, 2:], rtol=0, atol=0.02)
