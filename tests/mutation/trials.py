"""Small steps that together need every wait, fence and barrier of the kernels."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import lazyrope
import torch

from tests.support import eager, float8, page_mass, states
from tests.support.cases import Case, Setting, documents_case, random_case
from tests.support.document_fixture import DocumentFixture, in_order
from tests.support.metadata import capacity_of
from tests.support.tolerance import assert_close, assert_lse_close


def shape(
    warps_m: int,
    warps_n: int,
    warp_m: int,
    warp_n: int,
    stages: int,
    mma_n: int = 0,
    family: str = "sm80",
    heads: int = 1,
) -> lazyrope.TileConfig:
    return lazyrope.TileConfig(
        warps_m=warps_m,
        warps_n=warps_n,
        warp_m=warp_m,
        warp_n=warp_n,
        mma_n=mma_n or warp_n,
        stages=stages,
        ctas_per_sm=1,
        family=family,
        heads=heads,
    )


@dataclass(frozen=True)
class Trial:
    """One step and the configs of the kernels that compute it."""

    name: str
    make: Callable[[], Case]
    decode: lazyrope.TileConfig
    prefill: lazyrope.TileConfig
    attends: bool = True  # False: the step is planned, but not computed
    fixed_split_blocks: int = 0
    rotated_tokens: int = 0  # room of the scratch for raw keys, which only Hopper has

    @property
    def arch(self) -> str:
        is_hopper = self.rotated_tokens > 0 or "sm90a" in (self.decode.family, self.prefill.family)
        return "sm_90a" if is_hopper else "sm_80"

    @cached_property
    def case(self) -> Case:
        return self.make()

    @cached_property
    def kernel(self) -> lazyrope.Attention:
        config = lazyrope.KernelConfig(
            decode=self.decode,
            prefill=self.prefill,
            min_split_blocks=1,
            heads_per_work_tile=2,
            fixed_split_blocks=self.fixed_split_blocks,
            share_above_kib=0,
        )
        return lazyrope.compile(self.case.spec, arch=f"emu:{self.arch}", config=config)

    @cached_property
    def expected(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns out and lse in fp64, and out as eager PyTorch computes it."""
        return *self.case.reference(), eager.attention(self.case)

    def prepare(self) -> None:
        """Computes everything that does not depend on the mutant."""
        _ = self.kernel, self.attends and self.expected

    def run(self) -> None:
        """Runs the step. Raises DriverError if a kernel breaks a rule, AssertionError if the result is wrong."""
        case = self.case
        if case.spec.page_mass:
            page_mass.check_masses(case, self.kernel, page_mass.plan(case, self.kernel))
            return
        if case.spec.states:
            states.check_states(case, self.kernel, case.plan(self.kernel))
            return
        step = case.plan(self.kernel, capacity=capacity_of(case.metadata, rotated_tokens=self.rotated_tokens))
        if not self.attends:
            return
        if case.spec.compute == "float8":
            float8.check_case(case, self.kernel, step)
            return
        out, lse = self.kernel(case.q, case.k_pool, case.v_pool, step, **case.call_arguments)
        exact, exact_lse, rounded = self.expected
        assert_lse_close(lse, exact_lse, case.q.dtype)
        assert_close(out, exact, rounded)


def documents(lengths: list[int], tokens: int, **setting: object) -> Callable[[], Case]:
    chosen: dict[str, object] = {"head_dim": 64, "group": 2, **setting}
    return lambda: documents_case(Setting(**chosen), lengths, tokens, "cpu")  # type: ignore[arg-type]


def without_visible_keys(tokens: int, kv_heads: int = 2) -> Case:
    """Makes a request whose query positions are before its first key."""
    case = documents_case(Setting(head_dim=64, group=2, kv_heads=kv_heads), [40], tokens, "cpu")
    positions = list(range(-tokens, 0))
    case.requests[0].positions[:] = positions
    case.metadata["q_position"].copy_(torch.tensor(positions))
    return case


def rising_scores(length: int) -> Case:
    """Makes a request whose last keys have the highest scores, so that row maxima rise late.

    A short request has one work tile per block.
    """
    case = documents_case(Setting(head_dim=64, group=2, kv_heads=1), [length], 1, "cpu")
    last = (length - 1) // case.k_pool.shape[1]
    case.k_pool[case.metadata["pages"][last]] *= 32
    case.requests[0].slices[0].document.keys[last * case.k_pool.shape[1] :] *= 32
    return case


def late_maxima(lengths: list[int], tokens: int, **setting: object) -> Case:
    """Makes scores that are much greater than the first scores of their row. A warp then computes them again."""
    case = documents(lengths, tokens, kv_heads=1, **setting)()
    case.q.mul_(200)
    return case


def requests_of_one_document(count: int, kv_heads: int = 1, **setting: object) -> Case:
    """Makes requests of one token that share a document."""
    chosen = Setting(head_dim=64, group=2, kv_heads=kv_heads, **setting)  # type: ignore[arg-type]
    fixture = DocumentFixture(chosen, [40], 1, "cpu")
    return fixture.case(fixture.queries(count), [in_order(fixture, [0], 1)] * count)


def requests_that_share(count: int) -> Case:
    """Makes requests of one token that read two documents in either order, and a third one alone."""
    fixture = DocumentFixture(Setting(head_dim=64, group=2, kv_heads=1, cascade=True), [70, 64, 80], 1, "cpu")
    orders = [[0, 1, 0, 0, 1], [1, 0, 1, 1, 0], [2]]
    return fixture.case(fixture.queries(count), [in_order(fixture, orders[i % 3], 1) for i in range(count)])


def requests_that_share_a_slice(count: int) -> Case:
    """Makes requests that share documents, one that reads another document, and one that reads its end."""
    fixture = DocumentFixture(Setting(head_dim=64, group=2, kv_heads=1, cascade=True), [70, 64, 90], 1, "cpu")
    asked = [in_order(fixture, [i % 2, 1 - i % 2], 1) for i in range(count)]
    for start in (0, 20):
        asked.append(in_order(fixture, [2], 1))
        asked[-1].slices[0].start, asked[-1].slices[0].length = start, 90 - start
    return fixture.case(fixture.queries(len(asked)), asked)


def memories_in_cells(lengths: list[int], tokens: int, **setting: object) -> Callable[[], Case]:
    """Makes a request all of whose documents are memories with cells. Lengths must not be prime."""
    make = documents(lengths, tokens, states=True, **setting)
    return lambda: states.with_memories(make(), 3, 1.0, cell_share=1.0)


def memories(lengths: list[int], tokens: int, share: float, **setting: object) -> Callable[[], Case]:
    """Makes a request some of whose documents are memories of attention states."""
    return lambda: states.with_memories(documents(lengths, tokens, states=True, **setting)(), 3, share, cell_share=0)


def uneven_requests() -> Case:
    """Makes requests with 8 to 18 documents. They have many tiles for four SMs, which take them from a queue."""
    fixture = DocumentFixture(Setting(head_dim=64, group=2, kv_heads=2), [64] * 18, 1, "cpu")
    rng = random.Random(3)
    counts = [rng.randint(8, 18) for _ in range(13)]
    return fixture.case(fixture.queries(70 * 13), [in_order(fixture, list(range(count)), 70) for count in counts])


def many_requests(count: int) -> Case:
    """Makes more requests than the planner has threads. Most of them have no query tokens."""
    case = documents_case(Setting(head_dim=64, group=2, kv_heads=1), [40], 1, "cpu")
    for name, last in (("q_indptr", 1), ("segment_indptr", 1)):
        indptr = torch.full((count + 1,), last, dtype=torch.int32)
        indptr[0] = 0
        case.metadata[name] = indptr
    return case


DECODE, DECODE_FP8 = shape(1, 2, 16, 16, 3), shape(1, 2, 16, 32, 2)
PREFILL, PREFILL_FP8 = shape(2, 1, 32, 32, 2), shape(2, 1, 16, 32, 3)
# The block tables of these kernels wrap around soon, because a window has only 4 blocks.
LONG_DECODE, LONG_PREFILL = shape(1, 2, 16, 128, 2), shape(2, 1, 16, 128, 2, 16)
HOPPER, LONG_HOPPER = (shape(8, 1, 16, keys, 2, family="sm90a") for keys in (64, 128))
FLOAT8 = {"kv_dtype": "float8_e4m3fn", "compute": "float8", "rope": "partial neox"}
HOPPER_DECODE, HOPPER_PAIRS = (shape(1, 4, 16, 16, 2, family="sm90a", heads=heads) for heads in (1, 2))

TRIALS = [
    # Here and in the mixed step some of the emulator's four CTAs take several work tiles: there are six tiles.
    Trial("prefill", documents([40, 20, 70, 33], 80, kv_heads=2), DECODE, PREFILL),
    Trial("decode", documents([40, 20, 70, 33, 100], 2, kv_heads=2), DECODE, PREFILL),
    Trial("prefill fp8", documents([40, 70], 40, kv_heads=2, kv_dtype="float8_e4m3fn"), DECODE_FP8, PREFILL_FP8),
    Trial("decode fp8", documents([40, 20, 100], 2, kv_heads=2, kv_dtype="float8_e5m2"), DECODE_FP8, PREFILL_FP8),
    Trial("prefill of raw keys", documents([40, 20, 70], 40, kv_heads=2, key_form="raw"), DECODE, PREFILL),
    Trial("decode of raw keys", documents([40, 20, 70], 2, kv_heads=2, key_form="raw"), DECODE, PREFILL),
    # Each of the two CTAs of plan_rotation scans the segments in two rounds.
    Trial(
        "rotated keys",
        documents([5] * 300, 20, kv_heads=1, key_form="raw"),
        DECODE,
        PREFILL,
        rotated_tokens=16 * 300,
    ),
    # Each of the CTAs of plan_packing scans the segments in two rounds.
    Trial(
        "packed keys",
        documents([5] * 300, 80, kv_heads=1, packed_prefill=True),
        DECODE,
        HOPPER,
        rotated_tokens=5 * 300,
    ),
    Trial("decode of many rows", documents([40, 20, 70], 12, kv_heads=2), shape(1, 2, 32, 16, 3), PREFILL),
    # The single tile has equal KV splits, which wait for each other.
    Trial("equal splits", documents([256], 32, kv_heads=1), DECODE, PREFILL),
    # Some combiners give up waiting for these KV splits: the CTAs have more threads than the emulator runs at once.
    Trial("abandoned splits", documents([300], 128, kv_heads=1), DECODE, shape(16, 1, 16, 32, 2)),
    Trial("prefill of many blocks", documents([5] * 50, 20, kv_heads=1), LONG_DECODE, LONG_PREFILL),
    Trial("decode of many blocks", documents([5] * 50, 1, kv_heads=1), LONG_DECODE, LONG_PREFILL),
    Trial("fixed splits", documents([1300], 1, kv_heads=1), DECODE, PREFILL, fixed_split_blocks=8),
    Trial("prefill without visible keys", lambda: without_visible_keys(80), DECODE, PREFILL),
    Trial("mixed", lambda: random_case(Setting(head_dim=64, group=2), 3, "cpu", longest=60), DECODE, PREFILL),
    Trial("hopper", documents([40, 300, 70, 33], 150, kv_heads=2), DECODE, HOPPER),
    Trial("hopper fp8", documents([40, 300, 70], 150, kv_heads=2, kv_dtype="float8_e4m3fn"), DECODE_FP8, HOPPER),
    Trial("hopper, products of 8 bits", documents([40, 300, 70], 150, kv_heads=2, **FLOAT8), DECODE_FP8, LONG_HOPPER),
    Trial("hopper without visible keys", lambda: without_visible_keys(80), DECODE, HOPPER),
    Trial("hopper, many work tiles", documents([40, 70], 600, kv_heads=2), DECODE, HOPPER),
    Trial("hopper, many blocks", documents([5] * 50, 20, kv_heads=1), DECODE, LONG_HOPPER),
    Trial("hopper, long", documents([1500, 131, 900], 150, kv_heads=2), DECODE, LONG_HOPPER),
    Trial("hopper, long rows", documents([40, 70, 33] + [20] * 9, 70, kv_heads=1, head_dim=192), DECODE, HOPPER),
    Trial("hopper, long rows without rope", documents([40], 70, kv_heads=1, head_dim=192, rope="none"), DECODE, HOPPER),
    Trial("hopper, long rows with late maxima", lambda: late_maxima([5, 70, 40, 30], 70, head_dim=192), DECODE, HOPPER),
    Trial("hopper, many work tiles of long rows", documents([48, 64], 256, kv_heads=2, head_dim=192), DECODE, HOPPER),
    Trial("hopper, padded rows", documents([40, 300, 70], 150, kv_heads=2, head_dim=72), DECODE, HOPPER),
    Trial("hopper, fixed splits", documents([512], 40, kv_heads=2), DECODE, HOPPER, fixed_split_blocks=1),
    Trial("hopper decode", documents([40, 300, 70, 33], 3, kv_heads=2), HOPPER_DECODE, HOPPER),
    Trial("hopper decode of two heads", documents([40, 300, 70, 33], 3, kv_heads=2), HOPPER_PAIRS, HOPPER),
    Trial("hopper decode, many blocks", documents([5] * 50, 1, kv_heads=1), HOPPER_DECODE, HOPPER),
    Trial("hopper decode, many work tiles", lambda: requests_of_one_document(20), HOPPER_DECODE, HOPPER),
    Trial("hopper decode without visible keys", lambda: without_visible_keys(5, kv_heads=8), HOPPER_DECODE, HOPPER),
    Trial("hopper decode of rising scores", lambda: rising_scores(300), HOPPER_DECODE, HOPPER),
    Trial("hopper, uneven tiles", uneven_requests, DECODE, HOPPER, attends=False),
    # Two planner CTAs measure these tiles together. They also choose the number of heads of a work tile.
    Trial("many tiles", lambda: requests_of_one_document(70, kv_heads=2), DECODE, PREFILL),
    # The threads of the share kernel go through these segments in two rounds.
    Trial("many shared segments", lambda: requests_that_share(180), DECODE, PREFILL, attends=False),
    Trial("a shared slice", lambda: requests_that_share_a_slice(40), DECODE, PREFILL, attends=False),
    Trial("shared segments", lambda: requests_that_share(9), DECODE, PREFILL),
    # plan_page_mass scans these segments in two rounds, and a CTA of sum_page_mass sums several groups of runs.
    Trial("page masses", documents([5] * 300, 1, kv_heads=1, page_mass=True), DECODE, PREFILL),
    Trial("hopper page masses", documents([40, 300, 70], 20, page_mass=True), DECODE, LONG_HOPPER),
    Trial("page masses of requests", lambda: requests_of_one_document(4, page_mass=True), DECODE, PREFILL),
    # Consumers read the block table a block ahead, so at each fourth block they read the next window.
    Trial(
        "hopper with an added bias",
        documents([5] * 50, 20, kv_heads=1, key_bias=True, dtype="float16"),
        DECODE,
        LONG_HOPPER,
    ),
    Trial("hopper with a multiplied bias", documents([40, 300, 70], 20, key_bias=True), DECODE, LONG_HOPPER),
    Trial("hopper decode with a bias", documents([40, 300, 70], 3, key_bias=True), HOPPER_PAIRS, HOPPER),
    Trial("decode with a bias", documents([40, 20, 100], 2, key_bias=True), DECODE, PREFILL),
    # Memories come one after another, and between documents.
    Trial("states", memories([150, 40, 90, 30, 70], 2, 0.7, kv_heads=2), DECODE, PREFILL),
    Trial("states in prefill", memories([150, 40, 90], 40, 0.7, kv_heads=1), DECODE, PREFILL),
    Trial("hopper states", memories([150, 40, 90, 30, 70, 300], 2, 0.7, kv_heads=2), HOPPER_DECODE, PREFILL),
    # Some memories have the number of the one before, and all have several centres for each warp.
    Trial("states in cells", memories_in_cells([150, 120, 96], 2, kv_heads=2), DECODE, PREFILL),
    Trial("states in cells in prefill", memories_in_cells([150, 120], 20, kv_heads=1), DECODE, PREFILL),
    Trial("hopper states in cells", memories_in_cells([150, 120, 96, 300], 2, kv_heads=2), HOPPER_PAIRS, PREFILL),
    # Each of the emulator's four CTAs takes several work tiles that are not split.
    Trial(
        "hopper states of requests",
        lambda: states.with_memories(requests_of_one_document(8, states=True, kv_heads=2), 3, 1.0, cell_share=0),
        HOPPER_DECODE,
        PREFILL,
    ),
    Trial("many requests", lambda: many_requests(1100), DECODE, PREFILL, attends=False),
]
