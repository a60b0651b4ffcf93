"""Compares prefill on Hopper with fp64 where some columns of the queries are not rotated, and with a temperature."""

from __future__ import annotations

import lazyrope
import pytest

from tests.conftest import HAS_GPU
from tests.support.cases import SCORES, Setting, documents_case
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


@pytest.mark.sample(3)
@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_temperature_in_rotated_queries_agrees_with_fp64(monkeypatch, head_dim, group, device):
    """Neighbouring tokens, which a lane rotates one after another, have temperatures from 1 to 3.

    A later document's queries are made from those of the first document, which include the temperature.
    """
    monkeypatch.setitem(SCORES, "steep", {"temperature": lazyrope.QueryTemperature(beta=1.0, interval=10, offset=0)})
    setting = Setting(head_dim=head_dim, group=group, kv_heads=1, scores="steep")
    case = documents_case(setting, [140, 70, 10], 70, device, bases=[-220, -80, -10])
    assert case.requests[0].positions == list(range(70))
    check_case(case, lazyrope.compile(case.spec, arch=ARCH))
