"""Checks a case in the same way on a GPU and in the emulator."""

from __future__ import annotations

import lazyrope
import torch

from tests.support import eager
from tests.support.cases import Case
from tests.support.tolerance import Error, assert_close, assert_lse_close

GUARD = 7  # value of the elements around each output row, which must not change


def guarded(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a tensor of GUARD, and the view of its inside, which is filled with NaN."""
    pad = 8 if dtype != torch.float32 else 4
    whole = torch.full((shape[0] + 2, *shape[1:-1], shape[-1] + 2 * pad), GUARD, dtype=dtype, device=device)
    inner = whole[1:-1, ..., pad:-pad]
    inner.fill_(torch.nan)
    return whole, inner


def assert_guards(whole: torch.Tensor, inner_shape: tuple[int, ...]) -> None:
    pad = (whole.shape[-1] - inner_shape[-1]) // 2
    assert bool((whole[0] == GUARD).all()) and bool((whole[-1] == GUARD).all()), (
        "rows before or after the output changed"
    )
    assert bool((whole[..., :pad] == GUARD).all()), "elements before the output's rows changed"
    assert bool((whole[..., -pad:] == GUARD).all()), "elements after the output's rows changed"


def run_guarded(
    case: Case, kernel: lazyrope.Attention, step: lazyrope.Step | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs the step into poisoned, guarded outputs, and returns out and lse."""
    step = step if step is not None else case.plan(kernel, check=True)
    device = case.q.device
    whole_out, out = guarded(tuple(case.q.shape), case.q.dtype, device)
    whole_lse, lse = guarded((case.q.shape[0], case.q.shape[1]), torch.float32, device)
    kernel(case.q, case.k_pool, case.v_pool, step, out=out, lse=lse, **case.call_arguments)
    assert_guards(whole_out, tuple(out.shape))
    assert_guards(whole_lse, tuple(lse.shape))
    return out, lse


def check_case(case: Case, kernel: lazyrope.Attention, step: lazyrope.Step | None = None) -> Error:
    """Runs the step into poisoned, guarded outputs and compares with fp64."""
    out, lse = run_guarded(case, kernel, step)
    exact, exact_lse = case.reference()
    assert_lse_close(lse, exact_lse, case.q.dtype)
    return assert_close(out, exact, eager.attention(case))
