"""Compares prefill on Hopper with fp64 where RoPE does not rotate some columns of the queries."""

from __future__ import annotations

import lazyrope
import pytest

from tests.conftest import HAS_GPU
from tests.support.cases import Setting, documents_case
from tests.support.checks import check_case

ARCH = None if HAS_GPU else "emu:sm_90a"
pytestmark = pytest.mark.skipif(ARCH not in (None, *lazyrope.archs()), reason="there is neither a GPU nor the emulator")


@pytest.mark.sample(2)
@pytest.mark.parametrize(("head_dim", "rope"), [(64, "partial gptj"), (96, "partial neox"), (128, "partial neox")])
@pytest.mark.parametrize("kv_dtype", ["as dtype", "float8_e4m3fn"])
def test_columns_without_rotation_are_those_of_the_present_work_tile(head_dim, rope, kv_dtype, device):
    """CTAs compute several work tiles, whose documents are more than the stages of rotated queries.

    Each stage gets these columns once in a work tile.
    """
    setting = Setting(head_dim=head_dim, rope=rope, kv_dtype=kv_dtype)
    tokens = 5000 if HAS_GPU else 200
    case = documents_case(setting, [20, 30, 10, 40, 25], tokens, device)
    check_case(case, lazyrope.compile(case.spec, arch=ARCH))
