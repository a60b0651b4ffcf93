"""The emulator's counts show that decode reads each key and value that a query sees once."""

from __future__ import annotations

import lazyrope
import pytest

from tests.support.cases import Case, Setting, documents_case

SECTOR = 32  # bytes
COPIERS = ("pipeline/kv_ring.cuh", "family/sm90a/kv_copier.cuh")
SLOTS_PER_COPY = {"sm80": 1, "sm90a": 16}  # TMA copies runs of 16 slots, the size of the smallest page

ARCHS = [arch for arch in ("emu:sm_80", "emu:sm_90a") if arch in lazyrope.archs()]
pytestmark = pytest.mark.skipif(not ARCHS, reason="this build has no emulator")


def build(case: Case, arch: str) -> lazyrope.Attention:
    return lazyrope.compile(case.spec, arch=arch)


def bytes_read(case: Case, kernel: lazyrope.Attention) -> int:
    step = case.plan(kernel)
    with lazyrope.emulator.profile() as profile:
        kernel(case.q, case.k_pool, case.v_pool, step, **case.call_arguments)
    lines = [line for line in profile.lines if line.file in COPIERS]
    assert {line.kernel for line in lines} == {"lazyrope_attend_decode"}
    return sum(line.sectors for line in lines) * SECTOR


def bytes_needed(case: Case, slots_per_copy: int) -> int:
    """Returns the bytes of the only request's documents, which begin at the first slot of a page."""
    (request,) = case.requests
    window = case.spec.window
    first = 0 if window is None else min(request.positions) - window + 1
    runs = 0
    for document in request.slices:
        seen = range(max(first - document.base, 0), document.length)
        runs += len({slot // slots_per_copy for slot in seen})
    return 2 * runs * slots_per_copy * case.k_pool[0, 0].numel() * case.k_pool.element_size()


@pytest.mark.sample(6)
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("mask", ["causal", "sliding_window"])
@pytest.mark.parametrize("kv_dtype", ["as dtype", "float8_e4m3fn"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("arch", ARCHS)
def test_decode_reads_each_visible_key_once(arch, head_dim, kv_dtype, mask, tokens):
    setting = Setting(head_dim=head_dim, kv_heads=2, group=2, kv_dtype=kv_dtype, mask=mask)
    case = documents_case(setting, [40, 300, 7, 130], tokens, "cpu")
    kernel = build(case, arch)
    slots_per_copy = SLOTS_PER_COPY[kernel.config.decode.family]
    assert bytes_read(case, kernel) == bytes_needed(case, slots_per_copy)


@pytest.mark.parametrize("arch", ARCHS)
def test_short_documents_are_read_with_the_bytes_of_a_long_one(arch):
    """21 documents of 16 tokens cost the same bytes as one document of 336 tokens."""
    setting = Setting(head_dim=128, kv_heads=2, group=4)
    cases = [documents_case(setting, lengths, 1, "cpu") for lengths in ([336], [16] * 21)]
    one, many = (bytes_read(case, build(case, arch)) for case in cases)
    assert one == many
