"""Tests with the marker `sample` run with parameters that have many different values together."""

from __future__ import annotations

import pytest

from tests.support.covering import spread

GRID = [{"a": str(a), "b": str(b)} for a in range(3) for b in range(3)]


@pytest.mark.parametrize("seed", ["x", "y", "z"])
def test_a_sample_has_as_many_values_as_it_can(seed):
    drawn = [GRID[i] for i in spread(GRID, 3, seed)]
    assert {one["a"] for one in drawn} == {one["b"] for one in drawn} == {"0", "1", "2"}
    assert spread(GRID, 3, seed) == spread(GRID, 3, seed), "the same ones each time"


def test_other_seeds_draw_other_tests():
    assert len({tuple(spread(GRID, 3, str(seed))) for seed in range(10)}) > 5


def test_a_sample_of_many_has_all_once():
    assert sorted(spread(GRID, 20, "x")) == list(range(9))
    assert len(spread([{}, {}], 1, "x")) == 1
    assert spread(GRID, 0, "x") == []
