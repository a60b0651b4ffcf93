"""Makes random steps: documents in a paged pool, requests that see them, and the reference results."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import lazyrope
import torch

from tests.support import reference
from tests.support.metadata import step_arguments
from tests.support.states import Entries

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FP8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
KV_DTYPES = ("as dtype", *FP8)
FP8_NAN = 0x7F  # a NaN in both formats


def partial_rotary_dim(head_dim: int) -> int:
    """Returns the rotary_dim that models with a partial rotary embedding use."""
    return {80: 20, 96: 24}.get(head_dim, 32)


ROPES = {
    "none": lambda head_dim: lazyrope.rope.none(),
    "neox": lambda head_dim: lazyrope.rope.neox(10000.0),
    "gptj": lambda head_dim: lazyrope.rope.gptj(10000.0),
    "linear": lambda head_dim: lazyrope.rope.linear(10000.0, factor=4.0),
    "llama3": lambda head_dim: lazyrope.rope.llama3(),
    "llama3_gptj": lambda head_dim: lazyrope.rope.llama3_gptj(),
    "yarn": lambda head_dim: lazyrope.rope.yarn(150000.0, factor=32.0, original_max_position_embeddings=4096),
    "longrope": lambda head_dim: lazyrope.rope.longrope(factors=[1.0 + i / 4 for i in range(head_dim // 2)]),
    "partial neox": lambda head_dim: lazyrope.rope.neox(10000.0, rotary_dim=partial_rotary_dim(head_dim)),
    "partial gptj": lambda head_dim: lazyrope.rope.gptj(10000.0, rotary_dim=partial_rotary_dim(head_dim)),
    "attention factor": lambda head_dim: lazyrope.rope.neox(10000.0, attention_factor=1.25),
}

HEAD_DIMS = tuple(lazyrope.head_dims())
MASKS = tuple(lazyrope.masks())
# These fields of the spec change the scores.
SCORES = {
    "plain": {},
    "scale": {"scale": 0.2},
    "softcap": {"softcap": 5.0},  # close to the size of scores, so that it changes them
    "sinks": {"sinks": True},
    "softcap and sinks": {"softcap": 30.0, "sinks": True},
    "temperature": {"temperature": lazyrope.QueryTemperature(beta=0.1, interval=30, offset=1)},
}
WINDOW = 100
MASK_SIZES = {"sliding_window": {"window": WINDOW}, "chunked": {"chunk": WINDOW}}

PHASES = ("decode", "chunk", "prefill", "mixed")
# The most packed rows of a request by the type of the device. More would only slow the emulator down.
MAX_ROWS = {"cpu": 512, "cuda": 1536}


@dataclass(frozen=True)
class Setting:
    """One combination of the parameters that specialise kernels or calls."""

    head_dim: int = 128
    group: int = 4
    dtype: str = "bfloat16"
    page_size: int = 16
    layout: str = "NHD"
    query_form: str = "raw"
    rope: str = "neox"
    phase: str = "mixed"
    mask: str = "causal"
    kv_heads: int = 2
    scores: str = "plain"
    kv_dtype: str = "as dtype"
    batch_invariant: bool = False
    key_form: str = "local"
    cascade: bool = False
    page_mass: bool = False
    key_bias: bool = False
    packed_prefill: bool = False
    states: bool = False
    compute: str = "dtype"

    def spec(self) -> lazyrope.AttentionSpec:
        return lazyrope.AttentionSpec(
            head_dim=self.head_dim,
            num_q_heads=self.group * self.kv_heads,
            num_kv_heads=self.kv_heads,
            rope=ROPES[self.rope](self.head_dim),
            dtype=self.dtype,
            mask=self.mask,
            query_form=self.query_form,
            key_form=self.key_form,
            kv_dtype=self.kv_dtype if self.kv_dtype in FP8 else None,
            batch_invariant=self.batch_invariant,
            cascade=self.cascade,
            page_mass=self.page_mass,
            key_bias=self.key_bias,
            packed_prefill=self.packed_prefill,
            states=self.states,
            compute=self.compute,
            **MASK_SIZES.get(self.mask, {}),
            **SCORES[self.scores],
        )


@dataclass
class Document:
    """Consecutive tokens in the pool: token t is in slot t + lead of the document's page list."""

    length: int
    lead: int
    first_page: int  # index of its page list in the array of all lists
    keys: torch.Tensor  # [length, kv_heads, head_dim], the stored values times their scale
    values: torch.Tensor
    bias: torch.Tensor | None = None  # [length, kv_heads], if the setting has a bias of keys


@dataclass
class Slice:
    """A segment: `length` tokens of a document from index `start`. Index 0 is at logical position `base`.

    For the rotation it is at `base` + `shift`. Where that is not 0, `base` is the segment's mask_base.
    """

    document: Document
    base: int
    start: int
    length: int
    shift: int = 0
    entries: Entries | None = None  # the segment has entries of a memory, not tokens


@dataclass
class Request:
    """The logical positions of the query tokens, and the segments that they see."""

    positions: list[int]
    slices: list[Slice]


@dataclass
class Case:
    """A step's tensors on a device, and the inputs of the reference."""

    setting: Setting
    spec: lazyrope.AttentionSpec
    requests: list[Request]
    q: torch.Tensor
    k_pool: torch.Tensor
    v_pool: torch.Tensor
    metadata: dict[str, torch.Tensor]
    call_arguments: dict[str, torch.Tensor] = field(default_factory=dict)  # sinks, scales, key_bias, entry_lse

    def plan(self, kernel: lazyrope.Attention, **options: object) -> lazyrope.Step:
        return kernel.plan(
            **step_arguments(self.metadata), page_size=self.setting.page_size, layout=self.setting.layout, **options
        )

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns out and lse of the whole step in fp64."""
        outs, lses = zip(*self._of_requests(reference.attention), strict=True)
        return torch.cat(outs), torch.cat(lses)

    def weights(self) -> list[torch.Tensor]:
        """Returns the softmax weights of each request, fp64 [tokens, q_heads, keys of all slices]."""
        return [weights for weights, _ in self._of_requests(reference.softmax)]

    def _of_requests(self, compute: Callable[..., Any]) -> Iterator[Any]:
        """Yields what a function of the reference computes for each request."""
        at = 0
        for request in self.requests:
            n = len(request.positions)
            yield compute(
                self.q[at : at + n],
                torch.tensor(request.positions, device=self.q.device, dtype=torch.int64),
                [_reference_segment(s) for s in request.slices],
                frequencies=torch.tensor(self.spec.frequencies, dtype=torch.float64),
                rotary_dim=self.spec.rope.rotary_dim,
                query_rotated=self.setting.query_form == "rotated",
                keys_raw=self.setting.key_form == "raw",
                mask=self.setting.mask,
                scale=self.spec.scale,
                pairing=self.spec.rope_pairing,
                attention_factor=self.spec.attention_factor,
                mask_size=self.spec.window or self.spec.chunk,
                temperature=self.spec.temperature,
                softcap=self.spec.softcap,
                sinks=self.call_arguments.get("sinks"),
            )
            at += n


def _reference_segment(s: Slice) -> reference.Segment:
    end = s.start + s.length
    return reference.Segment(
        s.document.keys[s.start : end],
        s.document.values[s.start : end],
        s.base + s.shift,
        s.start,
        s.base,
        None if s.document.bias is None else s.document.bias[s.start : end],
        s.entries,
    )


def random_sizes(rng: random.Random, phase: str, longest: int) -> tuple[list[int], int]:
    """Returns the number of query tokens of each request, and the length of the longest document."""
    if phase == "decode":
        return [rng.choice([1, 1, 1, 2, 3, 4]) for _ in range(rng.randint(1, 5))], longest
    if phase == "chunk":
        return [rng.randint(5, 70) for _ in range(rng.randint(1, 3))], longest
    if phase == "prefill":
        return [rng.randint(64, 200)], longest // 2
    return [rng.choice([0, 1, 1, 2, 5, 40, 130]) for _ in range(rng.randint(2, 5))], longest


def random_position(rng: random.Random) -> int:
    return rng.choice([rng.randint(0, 4000), rng.randint(-3000, 0), rng.randint(990_000, 1_010_000)])


class PoolBuilder:
    """Stores documents in shuffled pages. Every slot without a token is NaN."""

    def __init__(self, setting: Setting, pages: int, rng: random.Random, device: torch.device) -> None:
        self.setting, self.device = setting, device
        shape = (pages, setting.page_size, setting.kv_heads, setting.head_dim)
        if setting.layout == "HND":
            shape = (shape[0], shape[2], shape[1], shape[3])
        self.fp8 = FP8.get(setting.kv_dtype)
        self.poison = torch.nan if self.fp8 is None else FP8_NAN
        dtype = torch.uint8 if self.fp8 is not None else DTYPES[setting.dtype]
        self.k_pool = torch.full(shape, self.poison, dtype=dtype, device=device)
        self.v_pool = torch.full(shape, self.poison, dtype=dtype, device=device)
        self.scales = {} if self.fp8 is None else self.random_scales(rng)
        # Slots without a token have the worst bias that a caller may leave there.
        self.key_bias = (
            torch.full((pages, setting.kv_heads, setting.page_size), torch.nan, device=device)
            if setting.key_bias
            else None
        )
        self.free = list(range(pages))
        rng.shuffle(self.free)
        self.pages: list[int] = []

    def random_scales(self, rng: random.Random) -> dict[str, torch.Tensor]:
        """Returns no scale, one, or one per head, for K and for V.

        Scales are powers of two, so that the scaled values are exact in the queries' dtype.
        """
        return {
            name: torch.tensor([2.0 ** rng.randint(-2, 2) for _ in range(count)], device=self.device)
            for name in ("k_scale", "v_scale")
            if (count := rng.choice([0, 1, self.setting.kv_heads])) > 0
        }

    def pools(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the pools for a call. 8-bit pools are uint8 if the layout is NHD, and FP8 if it is HND."""
        if self.fp8 is None or self.setting.layout == "NHD":
            return self.k_pool, self.v_pool
        return self.k_pool.view(self.fp8), self.v_pool.view(self.fp8)

    def stored(self, rows: torch.Tensor, scale_name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the rows [tokens, kv_heads, head_dim] as the pool stores them, and the values that they stand for."""
        dtype = DTYPES[self.setting.dtype]
        if self.fp8 is None:
            rows = rows.to(dtype).to(self.device)
            return rows, rows
        scale = self.scales.get(scale_name, torch.ones(1, device=self.device))[:, None]
        rounded = (rows.to(self.device) / scale).to(self.fp8)
        return rounded.view(torch.uint8), (rounded.float() * scale).to(dtype)

    def slots(self, pool: torch.Tensor) -> torch.Tensor:
        """Returns the pool as [pages, page_size, kv_heads, head_dim], for both layouts."""
        return pool.transpose(1, 2) if self.setting.layout == "HND" else pool

    def add(self, length: int, lead: int, generator: torch.Generator) -> Document:
        """Stores random keys and values of `length` tokens in free pages, from slot `lead` of the first one."""
        size = self.setting.page_size
        count = -(-(length + lead) // size)
        first = len(self.pages)
        mine = [self.free.pop() for _ in range(count)]
        self.pages += mine
        shape = (length, self.setting.kv_heads, self.setting.head_dim)
        stored_keys, keys = self.stored(torch.randn(shape, generator=generator), "k_scale")
        stored_values, values = self.stored(torch.randn(shape, generator=generator), "v_scale")
        slot = torch.arange(lead, lead + length)
        page = torch.tensor(mine, dtype=torch.int64)[slot // size].to(self.device)
        self.slots(self.k_pool)[page, (slot % size).to(self.device)] = stored_keys
        self.slots(self.v_pool)[page, (slot % size).to(self.device)] = stored_values
        document = Document(length, lead, first, keys, values)
        if self.key_bias is not None:
            document.bias = random_bias(length, self.setting.kv_heads, generator).to(self.device)
            self.key_bias[page, :, (slot % size).to(self.device)] = document.bias
        return document


def random_bias(length: int, kv_heads: int, generator: torch.Generator) -> torch.Tensor:
    """Returns biases [length, kv_heads], as those of compact documents: logarithms of counts, some hidden keys."""
    bias = 1.5 * torch.randn((length, kv_heads), generator=generator)
    hidden = torch.rand((length, kv_heads), generator=generator) < 0.1
    return bias.masked_fill(hidden, -torch.inf)


def random_slice(rng: random.Random, document: Document) -> Slice:
    start = rng.choice([0, 0, rng.randint(0, document.length)])
    length = rng.choice([document.length - start, rng.randint(0, document.length - start)])
    return Slice(document, random_position(rng), start, length)


def random_request(rng: random.Random, documents: list[Document], tokens: int, own: Document | None) -> Request:
    slices = [
        random_slice(rng, rng.choice(documents))
        for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 3, 5, rng.randint(31, 36)]))
    ]
    if len(slices) > 5:  # short slices keep the reference fast
        for s in slices:
            s.length = min(s.length, rng.choice([0, 16, 24]))
    first = random_position(rng)
    if own is not None:  # the last segment has the keys of the request's own tokens
        slices.append(Slice(own, first - own.length + tokens, 0, own.length))
    if rng.random() < 0.25:
        positions = [random_position(rng) for _ in range(tokens)]
    else:
        positions = list(range(first, first + tokens))
    if rng.random() < 0.5:  # documents come before the queries, as engines place them
        for s in slices[:-1] if own is not None else slices:
            s.base = min(positions, default=0) - s.start - s.length - rng.randint(0, 100)
    return Request(positions, slices)


def random_case(setting: Setting, seed: int, device: str | torch.device, longest: int = 400) -> Case:
    """Returns a step with uneven, empty, overlapping and sliced documents at any positions."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    device = torch.device(device)
    tokens, longest = random_sizes(rng, setting.phase, longest)
    tokens = [min(n, MAX_ROWS[device.type] // setting.group) for n in tokens]
    sizes = [rng.choice([0, 1, 15, 16, 17, rng.randint(1, longest), longest]) for _ in range(rng.randint(1, 4))]
    owns = [rng.choice([0, n, n + rng.randint(0, 50)]) for n in tokens]
    needed = sum(-(-(n + setting.page_size) // setting.page_size) for n in sizes + owns)
    pool = PoolBuilder(setting, needed + 3, rng, device)
    documents = [pool.add(n, rng.choice([0, rng.randrange(setting.page_size)]), generator) for n in sizes]
    requests = []
    for count, own in zip(tokens, owns, strict=True):
        mine = pool.add(own, 0, generator) if own > 0 else None
        requests.append(random_request(rng, documents, count, mine))
    if setting.query_form == "rotated" and setting.key_form == "local" and seed % 2 == 1:
        for s in [s for request in requests for s in request.slices]:
            s.shift = rng.randint(-1000, 1000)
    poison_unused(pool, documents, requests)
    return assemble(setting, pool, requests, generator)


def documents_case(
    setting: Setting, lengths: list[int], tokens: int, device: str | torch.device, bases: list[int] | None = None
) -> Case:
    """Returns one request whose queries follow whole documents, which are consecutive unless ``bases`` are given."""
    generator = torch.Generator().manual_seed(len(lengths))
    device = torch.device(device)
    needed = sum(-(-n // setting.page_size) for n in lengths)
    pool = PoolBuilder(setting, needed + 1, random.Random(tokens), device)
    bases = bases or [sum(lengths[:i]) for i in range(len(lengths))]
    slices = [Slice(pool.add(n, 0, generator), base, 0, n) for base, n in zip(bases, lengths, strict=True)]
    end = max(s.base + s.length for s in slices)
    return assemble(setting, pool, [Request(list(range(end, end + tokens)), slices)], generator)


EXTREME_POSITIONS = (0, -1, -2, -(2**31), 2**31 - 1)


def case_at(setting: Setting, positions: list[int], device: str | torch.device) -> Case:
    """Returns one request with queries at these positions and a document at position 0."""
    generator = torch.Generator().manual_seed(len(positions))
    pool = PoolBuilder(setting, 8, random.Random(len(positions)), torch.device(device))
    return assemble(setting, pool, [Request(positions, [Slice(pool.add(100, 0, generator), 0, 0, 100)])], generator)


def assemble(setting: Setting, pool: PoolBuilder, requests: list[Request], generator: torch.Generator) -> Case:
    heads = setting.group * setting.kv_heads
    tokens = sum(len(request.positions) for request in requests)
    q = torch.randn((tokens, heads, setting.head_dim), generator=generator)
    spec = setting.spec()
    call_arguments = dict(pool.scales)
    if pool.key_bias is not None:
        call_arguments["key_bias"] = pool.key_bias
    if spec.states:
        shape = (pool.k_pool.shape[0], setting.kv_heads, setting.page_size)
        call_arguments["entry_lse"] = torch.full(shape, torch.nan, device=pool.device)
    if spec.sinks:
        call_arguments["sinks"] = (2 * torch.randn(heads, generator=generator)).to(pool.device)
    return Case(
        setting,
        spec,
        requests,
        q.to(DTYPES[setting.dtype]).to(pool.device),
        *pool.pools(),
        metadata_of(setting, requests, pool.pages, pool.device),
        call_arguments,
    )


def poison_unused(pool: PoolBuilder, documents: list[Document], requests: list[Request]) -> None:
    """Overwrites the tokens that no request sees with NaN."""
    size = pool.setting.page_size
    for document in documents:
        used = torch.zeros(document.length, dtype=torch.bool)
        for request in requests:
            for s in request.slices:
                if s.document is document:
                    used[s.start : s.start + s.length] = True
        slot = torch.nonzero(~used).flatten() + document.lead
        page = torch.tensor(pool.pages, dtype=torch.int64)[document.first_page + slot // size]
        for tensor in (pool.k_pool, pool.v_pool):
            pool.slots(tensor)[page.to(pool.device), (slot % size).to(pool.device)] = pool.poison
        if pool.key_bias is not None:
            pool.key_bias[page.to(pool.device), :, (slot % size).to(pool.device)] = torch.nan


def metadata_of(
    setting: Setting, requests: list[Request], pages: list[int], device: torch.device
) -> dict[str, torch.Tensor]:
    """Returns the tensors that tests.support.metadata.step_arguments() takes."""
    q_indptr, segment_indptr = [0], [0]
    positions: list[int] = []
    rows: list[tuple[int, ...]] = []
    for request in requests:
        positions += request.positions
        q_indptr.append(len(positions))
        for s in request.slices:
            slot = s.document.lead + s.start
            page, lead = divmod(slot, setting.page_size)
            rows.append((s.base + s.shift, s.start, s.length, s.document.first_page + page, lead, s.base))
        segment_indptr.append(len(rows))
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 6
    has_mask_base = columns[0] != columns[5]

    def ints(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return {
        "q_indptr": ints(q_indptr),
        "q_position": ints(positions),
        "segment_indptr": ints(segment_indptr),
        "base": ints(columns[0]),
        "start": ints(columns[1]),
        "length": ints(columns[2]),
        "first_page": ints(columns[3]),
        "pages": ints(pages or [0]),
        "lead": ints(columns[4]),
        **({"mask_base": ints(columns[5])} if has_mask_base else {}),
    }
