"""The program that measures the accuracy of 8-bit products: its parts in the emulator, and its tables."""

from __future__ import annotations

import lazyrope
import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from tests.conftest import HAS_GPU
from tools import float8_accuracy
from tools.float8_table import float8_tables

ARCH = None if HAS_GPU else "emu:sm_90a"
pytestmark = [
    pytest.mark.skipif(not HAS_GPU and ARCH not in lazyrope.archs(), reason="this build has no emulator"),
    pytest.mark.skipif(HAS_GPU and torch.cuda.get_device_capability() != (9, 0), reason="needs Hopper"),
]


def test_products_of_8_bits_are_less_exact_and_a_needle_arrives():
    errors = float8_accuracy.random_errors(300, 40, ARCH)
    assert [row["products"] for row in errors] == ["16 bits", "8 bits"]
    assert errors[0]["output_error"] < 0.006 < 0.02 < errors[1]["output_error"] < 0.06
    assert errors[0]["lse_error"] < 0.01 and errors[1]["lse_error"] < 0.05
    weights = float8_accuracy.needle(300, 40, ARCH)
    for row, bound in zip(weights, (0.01, 0.1), strict=True):
        assert 0.35 < row["exact"] < 0.65 and row["deviation"] < bound
        assert row["weight"] == pytest.approx(row["exact"], rel=bound)
    found = float8_tables({"random": errors, "needle": weights})
    assert list(found) == ["random", "needle"]
    assert found["needle"].rows[1][:2] == ["300", "8 bits"] and found["random"].rows[0][2].endswith("%")


@pytest.mark.skipif(HAS_GPU, reason="it measures on a GPU")
def test_it_says_that_it_needs_a_gpu(monkeypatch):
    monkeypatch.setattr("sys.argv", ["tools.float8_accuracy"])
    with pytest.raises(SystemExit, match="products of 8 bits need a Hopper GPU"):
        float8_accuracy.main()
