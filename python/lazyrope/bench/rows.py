"""Measures each kind of row of ``lazyrope bench``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import lazyrope

from .peers import Peer, peer_calls
from .shapes import Shape
from .stream import Stream
from .timer import Call, Memory, Timer

Row = dict[str, Any]


class Bench:
    """The timer, the memory and the peers that all rows share. Without `arch`, kernels are compiled for this GPU."""

    def __init__(self, timer: Timer, memory: Memory, peers: Mapping[str, Peer], arch: str | None = None) -> None:
        self.timer = timer
        self.memory = memory
        self.peers = peers
        self.arch = arch
        self.stream = Stream(timer, memory)

    def compile(self, shape: Shape) -> lazyrope.Attention:
        """Compiles the default config, whatever tuning records the cache has."""
        return lazyrope.compile(shape.spec(), arch=self.arch, tune=False)

    def empty(self, *size: int, dtype: str) -> Any:
        import torch

        return torch.empty(size, dtype=getattr(torch, dtype), device=self.memory.device)

    def random(self, *size: int, dtype: str) -> Any:
        return self.empty(*size, dtype=dtype).normal_()

    def ints(self, values: Any) -> Any:
        import torch

        return torch.as_tensor(values, dtype=torch.int32, device=self.memory.device)


class Requests:
    """The requests of a row and their step. The pages are shuffled."""

    def __init__(self, shape: Shape, bench: Bench) -> None:
        import torch

        requests = shape.documents
        documents = [length for request in requests for length in request]
        stored = dict(zip(shape.document_ids, documents, strict=True))
        pages = {i: math.ceil(length / shape.page_size) for i, length in stored.items()}
        first_page = dict(zip(pages, accumulate(pages.values(), initial=0), strict=False))
        base = [position for bases in shape.bases for position in bases]
        tokens = shape.tokens
        position = [first + i for first, own in zip(shape.first_query, tokens, strict=True) for i in range(own)]
        self.num_pages = sum(pages.values())
        self.kernel = bench.compile(shape)
        segments = lazyrope.Segments(
            indptr=bench.ints(list(accumulate(map(len, requests), initial=0))),
            base=bench.ints(base),
            start=bench.ints([0] * len(documents)),
            length=bench.ints(documents),
            first_page=bench.ints([first_page[i] for i in shape.document_ids]),
            memory=bench.ints([shape.memory_code] * len(documents)) if self.kernel.spec.states else None,
        )
        self.metadata: dict[str, Any] = {
            "q_indptr": bench.ints(list(accumulate(tokens, initial=0))),
            "q_position": bench.ints(position),
            "segments": segments,
            "pages": bench.ints(torch.randperm(self.num_pages)),
        }
        has_scratch = self.kernel.spec.key_form == "raw" or self.kernel.spec.packed_prefill
        rotated = sum(16 * math.ceil(length / 16) for length in documents) if has_scratch else 0
        self.num_mass_pages = sum(math.ceil(length / 16) for length in documents)
        masses = sum(
            own * math.ceil(length / 16) for own, request in zip(tokens, requests, strict=True) for length in request
        )
        capacity = lazyrope.StepCapacity(len(tokens), len(documents), len(position), max(tokens), rotated, masses)
        self.step = self.kernel.plan(**self.metadata, page_size=shape.page_size, capacity=capacity)

    def update(self) -> None:
        self.step.update(**self.metadata)


class LazyAttention(Requests):
    """Attention of a row's queries over its documents."""

    def __init__(self, shape: Shape, bench: Bench) -> None:
        super().__init__(shape, bench)
        tokens, heads = sum(shape.tokens), shape.heads[0]
        self.k_pool, self.v_pool = shape.pools(bench.memory, self.num_pages)
        self.q = bench.random(tokens, heads, shape.head_dim, dtype=shape.dtype)
        self.out = bench.empty(tokens, heads, shape.head_dim, dtype=shape.dtype)
        self.lse = bench.empty(tokens, heads, dtype="float32")
        self.given: dict[str, Any] = {"out": self.out, "lse": self.lse}
        if self.kernel.spec.sinks:
            self.given["sinks"] = bench.random(heads, dtype="float32")
        if self.kernel.spec.page_mass:
            self.given["page_mass"] = bench.empty(self.num_mass_pages, dtype="float32")
        if self.kernel.spec.key_bias:
            bias = bench.random(len(self.k_pool), shape.heads[1], shape.page_size, dtype="float32")
            self.given["key_bias"] = bias
        if self.kernel.spec.states:
            self.given["entry_lse"] = bench.random(self.num_pages, shape.heads[1], shape.page_size, dtype="float32")

    def plan_and_attend(self) -> None:
        self.update()
        self.attend()

    def attend(self) -> None:
        self.kernel(self.q, self.k_pool, self.v_pool, self.step, **self.given)


def attention_row(
    shape: Shape, bench: Bench, own: Mapping[str, Shape] | None = None, of_peers: Shape | None = None
) -> Row:
    """Measures decode or prefill, interleaved with lazyrope's kernels at `own` other shapes, and with its peers.

    Peers compute `shape`, or `of_peers` if it is given.

    Returns:
        Microseconds: "us" of the kernel, "plan_us" of the planner, which runs once for all layers, "step_us" of both
        together, and "stream_us" of a plain sum over as many bytes. "quartiles_us" are those of "us" over "rounds".
        "own" has the kernel's times at the other shapes, and "own_plan_us" the planner's.
    """
    lazy = LazyAttention(shape, bench)
    stream_by, stream = bench.stream.sum(shape.kv_bytes)
    others = {name: LazyAttention(other, bench) for name, other in (own or {}).items()}
    own_calls = {name: other.attend for name, other in others.items()}
    own_plans = {f"{name} plan": other.update for name, other in others.items()}
    peers = peer_calls(of_peers or shape, bench.memory, bench.peers)
    calls: dict[str, Call] = {
        "us": lazy.attend,
        "plan_us": lazy.update,
        "stream_us": stream,
        "step_us": lazy.plan_and_attend,
    }
    samples = bench.timer.times({**calls, **own_calls, **own_plans, **peers})
    times = {name: statistics.median(us) for name, us in samples.items()}
    row: Row = {name: times[name] for name in calls}
    row["rounds"] = len(samples["us"])
    row["quartiles_us"] = [*statistics.quantiles(samples["us"], method="inclusive")[::2]]
    row["stream_by"] = stream_by
    row["own_plan_us"] = {name: times[f"{name} plan"] for name in own_calls}
    row |= {"own": {name: times[name] for name in own_calls}, "peers": {name: times[name] for name in peers}}
    if shape.kernel == "decode":
        return row | {"tbps": shape.kv_bytes / times["us"] / 1e6}
    return row | {"tflops": shape.flops / times["us"] / 1e6}


def append_step(kernel: lazyrope.Attention, shape: Shape, bench: Bench, pages: Any, first: int) -> lazyrope.AppendStep:
    """Plans the writing of every request's query_tokens into pages of its own, from token `first` of its document."""
    per_request = math.ceil(shape.query_tokens / shape.page_size)
    spans = lazyrope.TokenSpans(
        indptr=bench.ints([i * shape.query_tokens for i in range(shape.batch + 1)]),
        start=bench.ints([first] * shape.batch),
        first_page=bench.ints([i * per_request for i in range(shape.batch)]),
    )
    return kernel.plan_append(
        spans,
        bench.ints(pages),
        capacity=lazyrope.AppendCapacity(shape.batch * shape.query_tokens),
        page_size=shape.page_size,
    )


def append_row(shape: Shape, bench: Bench) -> Row:
    """Measures the writing of new keys and values, beside PyTorch's copy of as many bytes."""
    import torch

    tokens = shape.batch * shape.query_tokens
    pages = shape.batch * math.ceil(shape.query_tokens / shape.page_size)
    kernel = bench.compile(shape)
    pool = (pages, shape.page_size, shape.heads[1], shape.head_dim)
    k_pool, v_pool, copy = (bench.random(*pool, dtype=shape.dtype) for _ in range(3))
    k, v = (bench.random(tokens, shape.heads[1], shape.head_dim, dtype=shape.dtype) for _ in range(2))
    step = append_step(kernel, shape, bench, torch.randperm(pages), first=0)
    stream_by, stream = bench.stream.sum(2 * k.nbytes)
    times = bench.timer.medians(
        {
            "us": lambda: kernel.append(k, v, k_pool, v_pool, step),
            "copy": lambda: (copy.copy_(k_pool), copy.copy_(v_pool)),
            "stream_us": stream,
        }
    )
    return _moved(times, stream_by, 4 * k.nbytes, {"torch_copy": times["copy"]})


def eager_reposition(spec: lazyrope.AttentionSpec, pools: Any, slots: tuple[Any, Any], distance: int) -> Call:
    """Returns a call that does in PyTorch what reposition does: it gathers, rotates in fp32 and scatters.

    Args:
        spec: The attention, whose RoPE rotates the keys.
        pools: Keys and values, [slots, KV heads, head_dim] each.
        slots: The indices that are read, and those that are written.
        distance: The target's index minus the source's index, in tokens.
    """
    import torch

    from lazyrope.eager import rotate

    k_pool, v_pool = pools
    source, target = slots
    angle = distance * torch.tensor(spec.frequencies, dtype=torch.float64)
    cos, sin = (x.to(k_pool.device, torch.float32) for x in (angle.cos(), angle.sin()))
    pairing = spec.rope_pairing

    def call() -> None:
        k_pool[target] = rotate(k_pool[source], cos, sin, pairing).to(k_pool.dtype)
        v_pool[target] = v_pool[source]

    return call


def reposition_row(shape: Shape, bench: Bench) -> Row:
    """Measures the copy of documents of query_tokens tokens to other pages, where they have another position."""
    import torch

    base, device = 100_000, bench.memory.device
    tokens = shape.batch * shape.query_tokens
    pages = shape.batch * math.ceil(shape.query_tokens / shape.page_size)
    kernel, mover = bench.compile(shape), lazyrope.compile_reposition(shape.spec(), arch=bench.arch)
    pool = (2 * pages, shape.page_size, shape.heads[1], shape.head_dim)
    k_pool, v_pool = (bench.random(*pool, dtype=shape.dtype) for _ in range(2))
    halves = torch.randperm(2 * pages).split(pages)
    source, target = (
        append_step(kernel, shape, bench, half, first) for half, first in zip(halves, (0, base), strict=True)
    )
    in_page = torch.arange(shape.page_size)
    slots = [(half[:, None] * shape.page_size + in_page).flatten()[:tokens].to(device) for half in halves]
    rows = [pool.view(-1, *pool.shape[2:]) for pool in (k_pool, v_pool)]
    saved = [x[:tokens].clone() for x in rows]
    num_bytes = saved[0].nbytes
    stream_by, stream = bench.stream.sum(2 * num_bytes)
    times = bench.timer.medians(
        {
            "us": lambda: mover(k_pool, v_pool, source, target),
            "copy": lambda: [to.copy_(x[:tokens]) for to, x in zip(saved, rows, strict=True)],
            "eager": eager_reposition(shape.spec(), rows, (slots[0], slots[1]), base),
            "stream_us": stream,
        }
    )
    return _moved(times, stream_by, 4 * num_bytes, {"torch_copy": times["copy"], "torch_eager": times["eager"]})


def _moved(times: dict[str, float], stream_by: str, num_bytes: int, peers: dict[str, float]) -> Row:
    """Returns the row of a kernel that copies keys and values. num_bytes counts what it reads and what it writes."""
    row: Row = {name: times[name] for name in ("us", "stream_us")}
    return row | {"stream_by": stream_by, "tbps": num_bytes / times["us"] / 1e6, "own": {}, "peers": peers}


KINDS: dict[str, Callable[[Shape, Bench], Row]] = {
    "decode": attention_row,
    "prefill": attention_row,
    "append": append_row,
    "reposition": reposition_row,
}
