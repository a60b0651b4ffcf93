"""The benchmarks on a GPU: every kind of row runs, and the plain sum is as fast as recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lazyrope import bench
from lazyrope.bench import shapes as user
from lazyrope.bench.peers import peer_calls
from lazyrope.bench.timer import Memory, Timer

from tools.bench import command
from tools.bench.peers import PAGED, PEERS, importable
from tools.bench.rows import Bench
from tools.bench.shapes import Shape
from tools.bench.tables import TABLES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# MiB read and microseconds: the fastest of twelve shapes of a Triton sum on an H200, 2026-11-22.
H200_STREAMS = {64: 26.0, 512: 131.6, 1024: 249.0, 4096: 954.1}
SMALL = {"batch": 2, "query_tokens": 1, "context": 512}


@pytest.fixture(scope="module")
def measures() -> Bench:
    return Bench(Timer(rounds=9), Memory(), importable(PEERS))


@pytest.mark.parametrize("shape", [shape for shape in TABLES["decode"] if shape.kernel == "decode"])
def test_decode_rows_have_plausible_times(measures, shape):
    """The rows keep all settings except their sizes. Each is measured beside every installed peer that supports it."""
    row = command.measured(replace(shape, batch=2, context=2048, first_context=shape.first_context and 4096), measures)
    times = [row["us"], row["plan_us"], row["stream_us"], *row["own"].values(), *row["peers"].values()]
    assert all(1 < us < 1000 for us in times)
    assert set(row["own"]) == set(shape.variants) and row["tbps"] > 0


@pytest.mark.parametrize("kernel", ["prefill", "plan", "append", "reposition"])
def test_other_rows_have_plausible_times(measures, kernel):
    row = command.measured(Shape(kernel, **SMALL), measures)
    assert 1 < row["us"] < 1000


@pytest.mark.parametrize("kernel", ["decode", "prefill", "append", "reposition"])
def test_rows_of_the_package_have_plausible_times_and_peers(kernel):
    row = bench.measured(user.Shape(kernel, **SMALL), bench.Bench(Timer(rounds=9), Memory(), bench.PEERS))
    assert 1 < row["us"] < 1000 and row["peers"]


class OnePage(Memory):
    """Keys and values of zeros, except the values of one page, which are ones."""

    def __init__(self, page: int) -> None:
        super().__init__()
        self.page = page

    def numbers(self, count, dtype):
        return torch.zeros(count, dtype=getattr(torch, dtype), device="cuda")

    def pools(self, shape, dtype):
        return self.with_ones(*super().pools(shape, dtype))

    def keys_and_values(self, shape, dtype):
        return self.with_ones(*super().keys_and_values(shape, dtype))

    def with_ones(self, k, v):
        v[self.page] = 1
        return k, v


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", sorted(PAGED))
def test_paged_peers_read_every_page_once(name, apart):
    """Keys of zeros make attention the mean of the values, so a page counts for the one request that has it."""
    if not importable([name]):
        pytest.skip(f"{name} is not installed")
    shape = Shape("decode", 3, 1, 320, pools_apart=apart, peers=(name,))
    for page in (0, 31, 59):
        (call,) = peer_calls(shape, OnePage(page), importable([name])).values()
        means = call().float().flatten(1).mean(1)
        assert (means != 0).sum() == 1 and abs(means.sum().item() * shape.context / 16 - 1) < 0.01


@pytest.mark.parametrize("mebibytes", H200_STREAMS)
def test_the_plain_sum_is_fast(measures, mebibytes):
    if "H200" not in torch.cuda.get_device_name():
        pytest.skip("figures of an H200")
    _, call = measures.stream.sum(mebibytes << 20)
    (us,) = Timer(rounds=30).medians({"stream": call}).values()
    assert us <= 1.02 * H200_STREAMS[mebibytes]
