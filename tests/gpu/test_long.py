"""Tests of sizes for which the emulator is too slow or has too few SMs."""

from __future__ import annotations

import random

import lazyrope
import pytest
import torch

from tests.support.cases import Case, PoolBuilder, Request, Setting, Slice, assemble
from tests.support.checks import check_case
from tests.support.document_fixture import DocumentFixture, in_order

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_tile_with_more_splits_than_fit_shared_memory_agrees_with_fp64(head_dim):
    """With one KV head and one request, every CTA has a split of the same tile."""
    setting = Setting(head_dim=head_dim, kv_heads=1, group=4)
    fixture = DocumentFixture(setting, [20_000, 31, 19_000, 300], 1, "cuda", pages=3000)
    case = fixture.case(fixture.queries(1), [in_order(fixture, [0, 1, 2, 3], 1)])
    kernel = lazyrope.compile(fixture.spec)
    step = case.plan(kernel, check=True)
    check_case(case, kernel, step)
    check_case(case, kernel, step)  # takes the counters as the first launch left them


@pytest.mark.parametrize("tokens", [64, 200])
def test_chunks_over_a_long_context_agree_with_fp64(tokens):
    setting = Setting(kv_heads=2, group=4)
    fixture = DocumentFixture(setting, [4000, 77, 6000], 2, "cuda", pages=1500)
    case = fixture.case(fixture.queries(tokens), [in_order(fixture, [2, 0, 1], tokens)])
    check_case(case, lazyrope.compile(fixture.spec))


def test_many_small_requests_agree_with_fp64():
    setting = Setting(kv_heads=2, group=8, phase="decode")
    fixture = DocumentFixture(setting, [5, 16, 40, 129], 3, "cuda")
    requests = [in_order(fixture, [i % 4, (i + 1) % 4], 1) for i in range(300)]
    case = fixture.case(fixture.queries(300), requests)
    check_case(case, lazyrope.compile(fixture.spec))


def square(setting: Setting, requests: int, tokens: int, first: int) -> Case:
    """Returns requests that each see one document at base 0, with as many queries as keys. Query i is at first + i."""
    generator = torch.Generator().manual_seed(tokens)
    pages = requests * -(-tokens // setting.page_size)
    pool = PoolBuilder(setting, pages + 1, random.Random(requests), torch.device("cuda"))
    positions = list(range(first, first + tokens))
    documents = [pool.add(tokens, 0, generator) for _ in range(requests)]
    return assemble(setting, pool, [Request(positions, [Slice(d, 0, 0, tokens)]) for d in documents], generator)


@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("requests", "tokens"), [(5, 4000), (1, 6000)])
def test_whole_prompts_agree_with_fp64(head_dim, causal, requests, tokens):
    """There are more tiles than CTAs.

    On Hopper, the units of an incomplete last round of the round-robin schedule may be split. Causal tiles of several
    requests may come from the queue.
    """
    setting = Setting(head_dim=head_dim, kv_heads=16, group=1, phase="prefill", rope="llama3")
    case = square(setting, requests, tokens, first=0 if causal else tokens)
    kernel = lazyrope.compile(case.spec)
    step = case.plan(kernel, check=True)
    check_case(case, kernel, step)
    check_case(case, kernel, step)  # takes the counters as the first launch left them


def test_a_pool_larger_than_4_gib_is_read():
    """The pages are the last ones of two tensors of 6 GiB each, so their offsets exceed 4 GiB."""
    setting = Setting(kv_heads=8, group=4, page_size=16)
    spec = setting.spec()
    kernel = lazyrope.compile(spec)
    pages = 6 * 2**30 // (16 * 8 * 128 * 2)
    k_pool, v_pool = (torch.empty((pages, 16, 8, 128), dtype=torch.bfloat16, device="cuda") for _ in "kv")
    small = DocumentFixture(setting, [64], 4, "cuda")
    case = small.case(small.queries(1), [in_order(small, [0], 1)])
    used = case.metadata["pages"].long()
    k_pool[pages - 400 :] = case.k_pool
    v_pool[pages - 400 :] = case.v_pool
    case.k_pool, case.v_pool = k_pool, v_pool
    case.metadata["pages"] = (used + pages - 400).int()
    check_case(case, kernel)
