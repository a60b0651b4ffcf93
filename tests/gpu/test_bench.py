"""``lazyrope bench`` on a GPU: every kind of row runs, and the streaming sum is as fast as was once seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lazyrope import bench
from lazyrope.bench.peers import PAGED, PEERS, importable, peer_calls
from lazyrope.bench.rows import Bench
from lazyrope.bench.shapes import Shape
from lazyrope.bench.tables import TABLES
from lazyrope.bench.timer import Memory, Timer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# Of a Triton sum on an H200, the best of twelve grids and blocks: MiB read, and microseconds.
H200_STREAMS = {64: 26.0, 512: 131.6, 1024: 249.0, 4096: 954.1}
SMALL = {"batch": 2, "query_tokens": 1, "context": 512}


@pytest.fixture(scope="module")
def measures() -> Bench:
    return Bench(Timer(rounds=9), Memory(), importable(PEERS))


@pytest.mark.parametrize("shape", [shape for shape in TABLES["decode"] if shape.kernel == "decode"])
def test_decode_rows(measures, shape):
    """As they are but for their sizes; every peer that is there and does not refuse it is measured."""
    row = bench.measured(replace(shape, batch=2, context=2048, first_context=shape.first_context and 4096), measures)
    times = [row["us"], row["plan_us"], row["stream_us"], *row["own"].values(), *row["peers"].values()]
    assert all(1 < us < 1000 for us in times)
    assert set(row["own"]) == set(shape.variants) and row["tbps"] > 0


@pytest.mark.parametrize("kernel", ["prefill", "plan", "append", "reposition"])
def test_other_rows(measures, kernel):
    row = bench.measured(Shape(kernel, **SMALL), measures)
    assert 1 < row["us"] < 1000


class OnePage(Memory):
    """Keys and values of zeros, but for the values of one page of ones."""

    def __init__(self, page: int) -> None:
        super().__init__()
        self.page = page

    def numbers(self, count, dtype):
        return torch.zeros(count, dtype=getattr(torch, dtype), device="cuda")

    def pools(self, shape, dtype, apart=False):
        k, v = super().pools(shape, dtype, apart)
        v[self.page] = 1
        return k, v


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", sorted(PAGED))
def test_paged_peers_read_every_page_once(name, apart):
    """With keys of zeros, attention is the mean of the values: each page counts for the one request that has it."""
    if not importable([name]):
        pytest.skip(f"{name} is not installed")
    shape = Shape("decode", 3, 1, 320, pools_apart=apart, peers=(name,))
    for page in (0, 31, 59):
        (call,) = peer_calls(shape, OnePage(page), [name]).values()
        means = call().float().flatten(1).mean(1)
        assert (means != 0).sum() == 1 and abs(means.sum().item() * shape.context / 16 - 1) < 0.01


@pytest.mark.parametrize("mebibytes", H200_STREAMS)
def test_the_streaming_sum_is_fast(measures, mebibytes):
    if "H200" not in torch.cuda.get_device_name():
        pytest.skip("figures of an H200")
    _, call = measures.stream.sum(mebibytes << 20)
    (us,) = Timer(rounds=30).medians({"stream": call}).values()
    assert us <= 1.02 * H200_STREAMS[mebibytes]
