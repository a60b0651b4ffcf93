"""``lazyrope bench``: the kernels' times beside what the same GPU does otherwise.

Every time is the median of CUDA events around one call, inputs random, with L2 flushed before each call by
writing and then reading buffers larger than it, so that no dirty lines are written back in the timed window.
A row's kernel and its peers are timed in turns, one call each a round.

Rows are always lazy: documents of ``doc_tokens`` tokens at positions of their own, in shuffled pages, with raw
queries. Peers read contiguous keys that are rotated already; reposition's ``torch_eager`` does what reposition does,
one PyTorch operation after the other. ``stream_us`` is the time of a plain sum over as many bytes as the row reads.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import lazyrope

from ._bench_shapes import ALL, ROPES, TABLES, Shape

Call = Callable[[], object]


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        sys.exit("lazyrope bench measures beside PyTorch: pip install torch")
    if not torch.cuda.is_available():
        sys.exit("lazyrope bench needs a GPU that PyTorch can use")
    return torch


class Timer:
    """Medians of event times with a flushed L2."""

    def __init__(self, rounds: int) -> None:
        self.torch = _torch()
        self.rounds = rounds
        size = 2 * self.torch.cuda.get_device_properties(0).L2_cache_size // 4
        self.dirty = self.torch.empty(size, dtype=self.torch.int32, device="cuda")
        self.clean = self.torch.zeros(size, dtype=self.torch.int32, device="cuda")

    def flush(self) -> None:
        self.dirty.zero_()
        self.clean.max()

    def once(self, call: Call) -> tuple[Any, Any]:
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush()
        begin.record()
        call()
        end.record()
        return begin, end

    def medians(self, calls: dict[str, Call]) -> dict[str, float]:
        """Microseconds of each call; the calls take turns."""
        for call in calls.values():
            for _ in range(3):
                call()
        self.torch.cuda.synchronize()
        events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
        for _ in range(self.rounds):
            for name, call in calls.items():
                events[name].append(self.once(call))
        self.torch.cuda.synchronize()
        return {
            name: statistics.median(begin.elapsed_time(end) for begin, end in pairs) * 1e3
            for name, pairs in events.items()
        }


class LazyStep:
    """Tensors of a row: documents in shuffled pages of a pool, queries after all of them."""

    def __init__(self, shape: Shape) -> None:
        torch = _torch()
        self.spec = shape.spec()
        self.kernel = lazyrope.compile(self.spec, tune=False)  # the figures are of the default plans
        dtype = getattr(torch, shape.dtype)
        documents = math.ceil(shape.context / shape.doc_tokens)
        per_document = math.ceil(shape.doc_tokens / shape.page_size)
        segments = shape.batch * documents
        pages = segments * per_document
        pool = (pages, shape.page_size, shape.heads[1], shape.head_dim)
        kv_dtype = getattr(torch, shape.kv_dtype)
        self.k_pool, self.v_pool = (torch.randn(pool, dtype=dtype, device="cuda").to(kv_dtype) for _ in range(2))
        self.q = torch.randn(
            (shape.batch * shape.query_tokens, shape.heads[0], shape.head_dim), dtype=dtype, device="cuda"
        )

        def ints(x: Any) -> Any:
            return torch.as_tensor(x, dtype=torch.int32, device="cuda")

        index = torch.arange(segments)
        in_request = index % documents
        lengths = torch.minimum(torch.tensor(shape.doc_tokens), shape.context - in_request * shape.doc_tokens)
        self.metadata = {
            "q_indptr": ints(torch.arange(shape.batch + 1) * shape.query_tokens),
            "q_position": ints(torch.arange(shape.query_tokens).repeat(shape.batch) + shape.context),
            "segment_indptr": ints(torch.arange(shape.batch + 1) * documents),
            "base": ints(in_request * shape.doc_tokens),
            "start": ints(torch.zeros(segments)),
            "length": ints(lengths),
            "first_page": ints(index * per_document),
            "pages": ints(torch.randperm(pages)),
        }
        capacity = {"tokens_per_request": shape.query_tokens}
        self.step = self.kernel.plan(**self.metadata, page_size=shape.page_size, capacity=capacity)
        self.out = torch.empty_like(self.q)
        self.lse = torch.empty(self.q.shape[:2], dtype=torch.float32, device="cuda")
        self.sinks = torch.randn(shape.heads[0], device="cuda") if self.spec.sinks else None

    def attend(self) -> None:
        self.kernel(self.q, self.k_pool, self.v_pool, self.step, out=self.out, lse=self.lse, sinks=self.sinks)

    def update(self) -> None:
        self.step.update(**self.metadata)


def attention_peers(shape: Shape) -> dict[str, Call]:
    """PyTorch's own attention on contiguous, already rotated keys; none where it has no such scores."""
    if shape.scores:
        return {}
    torch = _torch()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    dtype = getattr(torch, shape.dtype)
    q = torch.randn((shape.batch, shape.heads[0], shape.query_tokens, shape.head_dim), dtype=dtype, device="cuda")
    kv = (shape.batch, shape.heads[1], shape.context, shape.head_dim)
    k, v = (torch.randn(kv, dtype=dtype, device="cuda") for _ in range(2))

    def peer(backend: Any) -> Call:
        def call() -> object:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        return call

    peers = {"cudnn": peer(SDPBackend.CUDNN_ATTENTION), "flash_attention_2": peer(SDPBackend.FLASH_ATTENTION)}
    return {name: call for name, call in peers.items() if _works(call)}


def _works(call: Call) -> bool:
    try:
        call()
    except RuntimeError as error:
        print(f"  a peer is left out: {str(error).splitlines()[0]}", file=sys.stderr)
        return False
    return True


def stream_call(num_bytes: int) -> Call:
    """PyTorch's sum over num_bytes of the GPU's memory; for few of them, mostly the time of its two launches."""
    torch = _torch()
    data = torch.randn(max(1, num_bytes // 4), dtype=torch.float32, device="cuda")
    return lambda: data.sum()


def attention_row(shape: Shape, timer: Timer) -> dict[str, Any]:
    lazy = LazyStep(shape)
    calls: dict[str, Call] = {"us": lazy.attend, "plan_us": lazy.update, "stream_us": stream_call(shape.kv_bytes)}
    peers = attention_peers(shape)
    if shape.against:
        name = "_".join(["lazyrope", *map(str, shape.against.values())])
        peers = {name: LazyStep(replace(shape, against={}, **shape.against)).attend}
    times = timer.medians({**calls, **peers})
    row: dict[str, Any] = {name: times[name] for name in calls}
    row["peers"] = {name: times[name] for name in peers}
    if shape.kernel == "decode":
        row["tbps"] = shape.kv_bytes / times["us"] / 1e6
    else:
        row["tflops"] = shape.flops / times["us"] / 1e6
    return row


def append_step(kernel: lazyrope.Attention, shape: Shape, pages: Any, first: int) -> lazyrope.AppendStep:
    """Every request's query_tokens in pages of its own, from token `first` of its document on."""
    torch = _torch()

    def ints(x: Any) -> Any:
        return torch.as_tensor(x, dtype=torch.int32, device="cuda")

    requests = torch.arange(shape.batch)
    return kernel.plan_append(
        ints(torch.arange(shape.batch + 1) * shape.query_tokens),
        ints(requests * 0 + first),
        ints(requests * math.ceil(shape.query_tokens / shape.page_size)),
        ints(requests * 0),
        ints(pages),
        tokens=shape.batch * shape.query_tokens,
        page_size=shape.page_size,
    )


def append_row(shape: Shape, timer: Timer) -> dict[str, Any]:
    torch = _torch()
    dtype = getattr(torch, shape.dtype)
    tokens = shape.batch * shape.query_tokens
    per_request = math.ceil(shape.query_tokens / shape.page_size)
    pages = shape.batch * per_request
    kernel = LazyStep(replace(shape, batch=1, query_tokens=1, context=16)).kernel
    pool = (pages, shape.page_size, shape.heads[1], shape.head_dim)
    k_pool, v_pool = (torch.zeros(pool, dtype=dtype, device="cuda") for _ in range(2))
    k, v = (torch.randn((tokens, shape.heads[1], shape.head_dim), dtype=dtype, device="cuda") for _ in range(2))

    step = append_step(kernel, shape, torch.randperm(pages), first=0)
    copy = torch.empty_like(k_pool)
    times = timer.medians(
        {
            "us": lambda: kernel.append(k, v, k_pool, v_pool, step),
            "copy": lambda: (copy.copy_(k_pool), copy.copy_(v_pool)),
            "stream": stream_call(2 * k.nbytes),
        }
    )
    moved = 4 * k.nbytes  # k and v, read and written
    return {
        "us": times["us"],
        "stream_us": times["stream"],
        "tbps": moved / times["us"] / 1e6,
        "peers": {"torch_copy": times["copy"]},
    }


def eager_reposition(spec: lazyrope.AttentionSpec, pools: Any, slots: tuple[Any, Any], distance: int) -> Call:
    """What reposition does, in PyTorch: gather, rotate in fp32, scatter. Pools are [slots, heads, head_dim]."""
    torch = _torch()
    from lazyrope.eager import turn

    k_pool, v_pool = pools
    source, target = slots
    angle = distance * torch.tensor(spec.frequencies, dtype=torch.float64)
    cos, sin = (x.to("cuda", torch.float32) for x in (angle.cos(), angle.sin()))
    pairing = spec.rope_pairing

    def call() -> None:
        k_pool[target] = turn(k_pool[source], cos, sin, pairing).to(k_pool.dtype)
        v_pool[target] = v_pool[source]

    return call


def reposition_row(shape: Shape, timer: Timer) -> dict[str, Any]:
    """Documents of query_tokens tokens, copied to other pages at another base."""
    torch = _torch()
    dtype, base = getattr(torch, shape.dtype), 100_000
    tokens = shape.batch * shape.query_tokens
    pages = shape.batch * math.ceil(shape.query_tokens / shape.page_size)
    lazy = LazyStep(replace(shape, batch=1, query_tokens=1, context=16))
    mover = lazyrope.compile_reposition(lazy.spec)
    pool = (2 * pages, shape.page_size, shape.heads[1], shape.head_dim)
    k_pool, v_pool = (torch.randn(pool, dtype=dtype, device="cuda") for _ in range(2))
    halves = torch.randperm(2 * pages).split(pages)
    source, target = (append_step(lazy.kernel, shape, halves[i], first) for i, first in enumerate((0, base)))
    in_page = torch.arange(shape.page_size)
    slots = [(half[:, None] * shape.page_size + in_page).flatten()[:tokens].to("cuda") for half in halves]
    rows = [pool.view(-1, *pool.shape[2:]) for pool in (k_pool, v_pool)]
    kept = [x[:tokens].clone() for x in rows]
    num_bytes = kept[0].nbytes
    times = timer.medians(
        {
            "us": lambda: mover(k_pool, v_pool, source, target),
            "copy": lambda: [to.copy_(x[:tokens]) for to, x in zip(kept, rows, strict=True)],
            "eager": eager_reposition(lazy.spec, rows, (slots[0], slots[1]), base),
            "stream": stream_call(2 * num_bytes),
        }
    )
    return {
        "us": times["us"],
        "stream_us": times["stream"],
        "tbps": 4 * num_bytes / times["us"] / 1e6,  # k and v, read and written
        "peers": {"torch_copy": times["copy"], "torch_eager": times["eager"]},
    }


ROWS: dict[str, Callable[[Shape, Timer], dict[str, Any]]] = {
    "decode": attention_row,
    "prefill": attention_row,
    "append": append_row,
    "reposition": reposition_row,
}


def compile_ahead(shapes: list[Shape]) -> None:
    """All kernels on all cores, so that no row waits for its own."""
    specs = [shape.spec() for shape in shapes]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, _ in enumerate(pool.map(lazyrope.compile, specs), 1):
            print(f"\rcompiled the kernels of {done} of {len(specs)} rows", end="", file=sys.stderr)
    print(file=sys.stderr)


def measure(shapes: list[Shape], timer: Timer) -> list[dict[str, Any]]:
    torch = _torch()
    compile_ahead(shapes)
    rows = []
    for shape in shapes:
        row = ROWS[shape.kernel](shape, timer)
        about = {
            "kernel": shape.kernel,
            "mask": shape.mask,
            "batch": shape.batch,
            "query_tokens": shape.query_tokens,
            "context": shape.context,
            "doc_tokens": shape.doc_tokens,
            "heads": list(shape.heads),
            "head_dim": shape.head_dim,
            "dtype": shape.dtype,
            "kv_dtype": shape.kv_dtype,
            "page_size": shape.page_size,
            "rope": shape.rope,
            **shape.scores,
        }
        rows.append(about | row)
        print(row_text(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    return rows


def row_text(row: dict[str, Any]) -> str:
    rate = f"{row['tbps']:.2f} TB/s" if "tbps" in row else f"{row['tflops']:.0f} TFLOP/s"
    peers = ", ".join(f"{name} {us:.1f}" for name, us in row["peers"].items())
    stream = f", stream {row['stream_us']:.1f}" if "stream_us" in row else ""
    plan = f", plan {row['plan_us']:.1f}" if "plan_us" in row else ""
    heads = f"{row['heads'][0]}/{row['heads'][1]}x{row['head_dim']}"
    kv_dtype = f", {row['kv_dtype']}" if row["kv_dtype"] != row["dtype"] else ""
    scores = "".join(f", {name} {row[name]}" for name in ("window", "softcap", "sinks") if name in row)
    return (
        f"{row['kernel']:10s} {row['batch']:3d} x {row['query_tokens']:5d} over {row['context']:6d} "
        f"({heads}{kv_dtype}, {row['rope']}{scores}, {row['doc_tokens']}-token documents): {row['us']:8.1f} us, "
        f"{rate}{stream}{plan}; peers: {peers}"
    )


# Run in a process of its own on two cores: everything that a first compilation needs is done for the first time.
COMPILE = """
import os, sys, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import lazyrope
spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.llama3())
begin = time.perf_counter()
kernel = lazyrope.compile(spec, arch="sm_90a", tune=False)
print(1e3 * (time.perf_counter() - begin))
"""


def compile_costs(runs: int = 5) -> dict[str, float]:
    """Milliseconds of compile() in a fresh process on two cores, with an empty cache and with a full one."""

    def once(cache: str) -> float:
        environment = {**os.environ, "LAZYROPE_CACHE_DIR": cache}
        result = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, check=True)
        return float(result.stdout)

    cold, hit = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(once(cache))
            hit.append(once(cache))
    return {"cold_compile_ms": statistics.median(cold), "disk_hit_ms": statistics.median(hit)}


def call_costs() -> dict[str, float]:
    """Microseconds that a call takes the host, its results given or allocated; batches too short to fill a queue."""
    torch = _torch()
    lazy = LazyStep(Shape("decode", 1, 1, 64, 64))

    def host_us(call: Call) -> float:
        batches = []
        for _ in range(50):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                call()
            batches.append((time.perf_counter() - begin) * 1e4)
        return statistics.median(batches)

    return {
        "call_us": host_us(lazy.attend),
        "call_allocating_us": host_us(lambda: lazy.kernel(lazy.q, lazy.k_pool, lazy.v_pool, lazy.step)),
        "update_us": host_us(lazy.update),
        "torch_op_us": host_us(lazy.out.zero_),
    }


def environment(timer: Timer, commit: str | None) -> dict[str, Any]:
    torch = _torch()
    a, b = (torch.randn((8192, 8192), dtype=torch.bfloat16, device="cuda") for _ in range(2))
    times = timer.medians({"gemm": lambda: a @ b, "floor": lambda: torch.cuda._sleep(1)})
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _command(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "date": datetime.date.today().isoformat(),
        "commit": commit or _command(["git", "rev-parse", "--short", "HEAD"]),
        "versions": {"lazyrope": lazyrope.__version__, "torch": torch.__version__},
        "floor_us": times["floor"],
        "gemm_tflops": 2 * 8192**3 / times["gemm"] / 1e6,
        "host": compile_costs() | call_costs(),
    }


def _command(command: list[str]) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip().splitlines()[0] if result.stdout.strip() else None


def command_text(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """The command that measures the same, without what is particular to one machine."""
    given = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in vars(options).items()
        if name not in ("name", "json", "commit") and value != parser.get_default(name)
    ]
    return " ".join(["lazyrope bench", options.name, *given])


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="lazyrope bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("name", choices=[*TABLES, "all"], help="which rows to measure; all: without breadth")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as one JSON object")
    parser.add_argument("--commit", help="the commit measured (the present directory's)")
    parser.add_argument("--doc-tokens", type=int, default=1024, help="tokens of a document (1024)")
    parser.add_argument("--rope", choices=list(ROPES), help="instead of the rows' own (llama3)")
    parser.add_argument("--page-size", type=int, default=16, help="slots of a page (16)")
    parser.add_argument("--rounds", type=int, default=30, help="calls of which a time is the median (30)")
    options = parser.parse_args(arguments)
    names = ALL if options.name == "all" else [options.name]
    shapes = [
        replace(shape, doc_tokens=options.doc_tokens, rope=options.rope or shape.rope, page_size=options.page_size)
        for name in names
        for shape in TABLES[name]
    ]
    timer = Timer(options.rounds)
    result = environment(timer, options.commit) | {"command": command_text(parser, options)}
    print(json.dumps(result), flush=True)
    result["rows"] = measure(shapes, timer)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
