"""python -m tools.quality.ttft [--json FILE]: the time to the first token at each level of recovery.

A model of Llama-3.1-8B's shape with random weights answers questions over five documents of 2048 tokens on a GPU. Its
answers are senseless, and its times are those of a trained model. With --tiny, a tiny model runs anywhere, which shows
that the program works. The program needs the packages of tools/requirements/rag.txt.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lazyrope.transformers import Engine, Generation, attach
from tqdm import tqdm

from tools.bench.limits import Limit, count_unmet, evaluate, limit_text
from tools.quality.breakdown import GpuTime, HostTime, gpu_time, host_time
from tools.rag.environment import environment
from tools.rag.model import random_llama, tiny_llama
from tools.rag.serving import random_text, token_bytes
from tools.rag.tables import Table, digits

WARM_UP = 2  # rounds that capture graphs and let libraries choose their kernels
# vLLM 0.26.0 on an H200 with a question of 33 tokens, Llama-3.1-8B's shape, CUDA graphs and prefix caching. After other
# documents, or the same in another order, it computes all of them.
VLLM_US = {"vllm_cold": 271e3, "vllm_exact_prefix": 14.7e3}


@dataclass(frozen=True)
class Shape:
    """The sizes of one request, in tokens."""

    documents: int = 5
    document_tokens: int = 2048
    question_tokens: int = 32
    prefix_tokens: int = 64

    @property
    def context(self) -> int:
        return self.prefix_tokens + self.documents * self.document_tokens + self.question_tokens


@dataclass(frozen=True)
class Case:
    """Describes one kind of request.

    Attributes:
        name: The name of the case, which limits use.
        level: The level of recovery, or "full" for an ordinary prefill.
        state: The parts of the request that are stored when it arrives.
        moved: True if the documents come in another order than the one in which they were stored.
        hits: True if the documents must be stored.
        limits: The limits of the time.
    """

    name: str
    level: str
    state: str
    moved: bool
    hits: bool
    limits: tuple[Limit, ...] = ()

    def options(self, prefix: Sequence[int]) -> dict[str, Any]:
        """Returns the arguments of the request. An ordinary prefill sees the same text as the levels with a prefix."""
        if self.level == "none":
            return {"recovery": "none"}
        if self.level == "full":
            return {"mode": "full", "recovery": "prefix", "prefix": prefix}
        return {"recovery": self.level, "prefix": prefix}


# A round has the cases in this order, after the store is cleared, so each finds what those before it have stored.
CASES = (
    Case("none_new", "none", "nothing", moved=False, hits=False),
    Case("none", "none", "documents", moved=True, hits=True, limits=(Limit(None, plus_us=25e3),)),
    Case("prefix_new", "prefix", "nothing", moved=False, hits=False),
    Case("prefix", "prefix", "documents", moved=True, hits=True),
    Case("ape", "ape", "documents", moved=True, hits=True),
    Case("first_page_new", "first_page", "documents", moved=True, hits=True, limits=(Limit("none", 1.35),)),
    Case("first_page", "first_page", "documents, overlays", moved=True, hits=True, limits=(Limit("none", 1.35),)),
    Case("guided", "guided", "documents", moved=True, hits=True, limits=(Limit("full", 0.30),)),
    Case("full", "full", "nothing", moved=True, hits=False),
)


@dataclass(frozen=True)
class Run:
    """Has the microseconds from sending a request to its first token, and the share of the documents computed again."""

    us: float
    share: float
    watched: Any


Watch = Callable[[], AbstractContextManager[Any]]


class Client:
    """Sends the requests of all cases to an engine, one at a time."""

    def __init__(self, engine: Engine, shape: Shape, seed: int = 0) -> None:
        self._engine = engine
        self._shape = shape
        self._rng = random.Random(seed)
        self._documents = [self._text(shape.document_tokens) for _ in range(shape.documents)]
        self._prefix = self._text(shape.prefix_tokens)

    def round(self, watch: Watch = nullcontext) -> list[Run]:
        """Runs each case once, in an order of documents that is new in each round. `watch` is around each request."""
        self._engine.store.clear()
        moved = self._rng.sample(self._documents, len(self._documents))
        return [self._run(case, moved if case.moved else self._documents, watch) for case in CASES]

    def _text(self, tokens: int) -> list[int]:
        return random_text(self._rng, tokens, self._engine.model.config.vocab_size)

    def _run(self, case: Case, documents: list[list[int]], watch: Watch) -> Run:
        question, options = self._text(self._shape.question_tokens), case.options(self._prefix)
        with watch() as watched:
            begin = time.perf_counter()
            generation = self._engine.generate(question, documents, max_new_tokens=1, stop=[], **options)
            generation.result()
        assert generation.first_token is not None
        if generation.hits != case.hits * len(documents):
            raise RuntimeError(f"{case.name}: {generation.hits} documents were stored; the store's budget is too small")
        return Run(1e6 * (generation.first_token - begin), self._share(case, generation), watched)

    def _share(self, case: Case, generation: Generation) -> float:
        if case.level == "full":
            return 1.0
        return sum(map(len, generation.recomputed)) / (self._shape.documents * self._shape.document_tokens)


def measure(model: Any, shape: Shape, *, repeat: int, is_limited: bool) -> list[dict[str, Any]]:
    """Returns a row for each case: medians of some rounds, and one more round each for the host and for the GPU."""
    # A round stores the documents twice, with and without the prefix. The ordinary prefill has a copy of its own.
    engine = attach(model, budget=4 * shape.context * token_bytes(model))
    client = Client(engine, shape)
    watches: list[Watch] = [nullcontext] * (WARM_UP + repeat) + [host_time, gpu_time]
    rounds = [client.round(watch) for watch in tqdm(watches, desc="time to the first token", unit="round")]
    *timed, host, gpu = rounds[WARM_UP:]
    columns = zip(CASES, zip(*timed, strict=True), host, gpu, strict=True)
    rows = [_row(case, runs, on_host.watched, on_gpu.watched) for case, runs, on_host, on_gpu in columns]
    medians = {row["case"]: row["us"] for row in rows}
    for case, row in zip(CASES, rows, strict=True):
        row["own"] = {limit.over: medians[limit.over] for limit in case.limits if limit.over is not None}
        row["limits"] = evaluate(case.limits, row, frozenset()) if is_limited else []
    return rows


def _row(case: Case, runs: Sequence[Run], host: HostTime, gpu: GpuTime) -> dict[str, Any]:
    times = [run.us for run in runs]
    return {
        "case": case.name,
        "level": case.level,
        "stored": case.state,
        "us": statistics.median(times),
        "us_min": min(times),
        "us_max": max(times),
        "share": statistics.mean(run.share for run in runs),
        "pass_tokens": host.pass_tokens,
        "captured_passes": host.num_captured,
        "host_ms": dict(host.ms),
        "gpu": asdict(gpu),
        "peers": VLLM_US,
    }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    head = ["level", "stored", "TTFT, ms", "from", "to", "over full", "computed again", "tokens of passes", "captured"]
    head += ["GPU busy, ms", "kernels and copies"]
    (full,) = (row["us"] for row in rows if row["level"] == "full")
    lines = [
        [
            row["level"],
            row["stored"],
            *(digits(row[name] / 1e3) for name in ("us", "us_min", "us_max")),
            f"{row['us'] / full:.3f}",
            f"{row['share']:.1%}",
            " + ".join(map(str, row["pass_tokens"])),
            str(row["captured_passes"]),
            "" if row["gpu"]["busy_ms"] is None else digits(row["gpu"]["busy_ms"]),
            str(row["gpu"]["num_kernels"]),
        ]
        for row in rows
    ]
    return Table(head, lines)


def host_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Returns one line for each function of the host and one column for each case, in milliseconds."""
    names = list(dict.fromkeys(name for row in rows for name in row["host_ms"]))
    lines = [[name, *(_cell(row["host_ms"].get(name)) for row in rows)] for name in names]
    return Table(["host, ms", *(row["case"] for row in rows)], lines)


def _cell(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.2f}"


def kernels_text(row: dict[str, Any]) -> str:
    lines = [f"  {each['ms']:8.2f} ms {each['count']:5d} x {each['name']:.90}" for each in row["gpu"]["kernels"]]
    return "\n".join([f"kernels of {row['case']}:", *lines])


def report(rows: Sequence[dict[str, Any]]) -> str:
    parts = [table(rows).text(), host_table(rows).text()]
    parts += [kernels_text(row) for row in rows if row["gpu"]["kernels"]]
    parts += [f"{row['case']}:\n{limit_text(limit, row['us'])}" for row in rows for limit in row["limits"]]
    return "\n\n".join(parts)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.quality.ttft", description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as one JSON object")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a required limit is not met")
    parser.add_argument("--commit", metavar="HASH", help="the commit that is measured (default: git's)")
    parser.add_argument("--repeat", type=int, default=9, metavar="N", help="timed requests of a case (%(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and short documents, without limits")
    options = parser.parse_args(arguments)
    if options.repeat < 1:
        parser.error(f"--repeat is {options.repeat}; it must be at least 1")
    if not options.tiny and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; with --tiny the program runs without one")
    return options


def model_of(options: argparse.Namespace) -> tuple[Any, str, Shape]:
    """Returns the model, its description, and the sizes of requests."""
    if not options.tiny:
        return random_llama("llama-3.1-8b"), "Llama-3.1-8B's shape, random weights, bf16", Shape()
    shape = Shape(documents=3, document_tokens=160, prefix_tokens=16)
    if torch.cuda.is_available():
        return tiny_llama(dtype=torch.bfloat16, device="cuda"), "a tiny model, random weights, bf16", shape
    return tiny_llama(), "a tiny model, random weights, fp32, on the CPU", shape


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    warnings.filterwarnings("ignore", category=RuntimeWarning, message="the model is on the CPU")
    model, name, shape = model_of(options)
    command = f"python -m tools.quality.ttft --repeat {options.repeat}" + " --tiny" * options.tiny
    result = environment(options.commit) | {"command": command, "model": name, "shape": asdict(shape)}
    result["rows"] = measure(model, shape, repeat=options.repeat, is_limited=not options.tiny)
    print(report(result["rows"]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    unmet = sum(count_unmet(row["limits"]) for row in result["rows"])
    return 1 if options.check and unmet else 0


if __name__ == "__main__":
    sys.exit(main())
