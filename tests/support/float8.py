"""Checks kernels of 8-bit products (compute="float8") against fp64, with the error of eager code as the unit.

Queries and softmax weights are rounded as the kernels round them, and all else is in fp32. So the
error against fp64 is that of the two roundings, and tolerances are multiples of it.
"""

from __future__ import annotations

import lazyrope

from tests.support import checks, eager
from tests.support.cases import Case
from tests.support.tolerance import Error, assert_close

MULTIPLE = 2.0


def check_case(case: Case, kernel: lazyrope.Attention, step: lazyrope.Step | None = None) -> Error:
    """Does what checks.check_case() does, with the tolerance of 8-bit products for out and lse."""
    out, lse = checks.run_guarded(case, kernel, step)
    exact, exact_lse = case.reference()
    of_eager, eager_lse = eager.attention_with_lse(case)
    assert bool((lse.isneginf() == exact_lse.isneginf()).all()), "lse: -inf in the wrong places"
    finite = ~exact_lse.isneginf()
    if bool(finite.any()):
        allowed = MULTIPLE * (eager_lse - exact_lse)[finite].abs().max().item() + 1e-3
        off = (lse.double() - exact_lse)[finite].abs().max().item()
        assert off <= allowed, f"lse: off by {off:.2e}, allowed {allowed:.2e}"
    return assert_close(out, exact, of_eager)
