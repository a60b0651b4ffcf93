"""Measures time, memory and copies of the three modes, for one long request and for many clients under a budget."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lazyrope.transformers import Engine, Generation, attach
from tqdm import tqdm

from tools.rag.tables import unit_of

MODES = ("lazy", "block", "recompute")
GIB = 1 << 30
CLOSE = 0.1  # relative difference below which one run of each mode does not tell which is faster


@dataclass(frozen=True)
class Shape:
    """The sizes of one request."""

    documents: int = 16
    document_tokens: int = 1024
    question_tokens: int = 64
    answer_tokens: int = 32


@dataclass(frozen=True)
class Single:
    """Medians over the repetitions of one request."""

    mode: str
    state: str  # "cold": no document is stored; "warm": all are
    first_token_ms: float
    token_ms: float  # per further token
    copied_bytes: int
    private_bytes: int  # KV that only this request uses
    stored_bytes: int


@dataclass(frozen=True)
class Load:
    """Clients that each send their next request when the last one is answered."""

    clients: int = 32
    requests: int = 200
    documents: int = 100
    per_request: int = 5
    document_tokens: int = 1024
    question_tokens: int = 64
    answer_tokens: int = 32
    exponent: float = 0.0  # exponent of Zipf's law over the documents; 0: uniform
    seed: int = 1


@dataclass(frozen=True)
class Served:
    mode: str
    budget_bytes: int
    max_requests: int  # admitted at the same time
    exponent: float
    requests_per_s: float
    first_token_p50_ms: float  # from arrival
    first_token_p90_ms: float
    hit_rate: float  # documents that were stored when their request was admitted
    alive: float  # requests admitted at the same time, mean over passes
    copied_bytes: int
    evictions: int
    seconds: float
    runs: list[float]  # requests a second of each repetition; the other fields are of the median one


@dataclass(frozen=True)
class Cascaded:
    """A load in the lazy mode, with or without a cascade."""

    clients: int
    exponent: float
    cascade: bool
    requests_per_s: float
    first_token_p50_ms: float
    first_token_p90_ms: float
    alive: float
    runs: list[float]  # requests a second of each repetition; the other fields are of the median one


def random_text(rng: random.Random, tokens: int, vocabulary: int) -> list[int]:
    return [rng.randrange(vocabulary) for _ in range(tokens)]


def single(model: Any, shape: Shape, *, repeat: int = 7) -> list[Single]:
    """Measures one request at a time. Modes are interleaved, so that a slow moment of the machine affects all."""
    tokens = shape.documents * shape.document_tokens + shape.question_tokens + shape.answer_tokens
    engine = attach(model, budget=3 * tokens * token_bytes(model))
    rng = random.Random(0)
    size = model.config.vocab_size
    documents = [random_text(rng, shape.document_tokens, size) for _ in range(shape.documents)]
    states = [("lazy", "cold"), ("lazy", "warm"), ("block", "cold"), ("block", "warm"), ("recompute", "cold")]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in states}
    for _ in tqdm(range(repeat + 2), desc="one request alone", unit="round"):
        for mode, state in states:
            if state == "cold":
                engine.store.clear()
            question = random_text(rng, shape.question_tokens, size)
            runs[mode, state].append(_measure(engine, question, documents, mode, shape.answer_tokens))
    return [_median_of(mode, state, runs[mode, state][2:]) for mode, state in states]  # the first two warm up


def _measure(engine: Engine, question: list[int], documents: list[list[int]], mode: str, answer: int) -> dict[str, Any]:
    before = engine.store.stats
    generation = engine.generate(question, documents, mode=mode, max_new_tokens=answer, stop=[])
    next(iter(generation))
    private = engine.store.stats.private_bytes
    generation.result()
    after = engine.store.stats
    assert generation.first_token is not None and generation.finished is not None
    return {
        "first_token_ms": 1e3 * (generation.first_token - generation.arrival),
        "token_ms": 1e3 * (generation.finished - generation.first_token) / (answer - 1),
        "copied_bytes": after.bytes_copied - before.bytes_copied,
        "private_bytes": private,
        "stored_bytes": after.resident_bytes,
    }


def _median_of(mode: str, state: str, runs: list[dict[str, Any]]) -> Single:
    return Single(mode, state, **{name: statistics.median(run[name] for run in runs) for name in runs[0]})


def token_bytes(model: Any) -> int:
    """Returns the KV bytes of one token in all layers."""
    config = model.config
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize


def choices(load: Load) -> Iterator[list[int]]:
    """Yields the distinct documents of each request. The most popular documents are the same in all runs."""
    rng = random.Random(load.seed)
    weights = [1.0 / (rank + 1) ** load.exponent for rank in range(load.documents)]
    for _ in range(load.requests):
        chosen: list[int] = []
        while len(chosen) < load.per_request:
            (document,) = rng.choices(range(load.documents), weights)
            if document not in chosen:
                chosen.append(document)
        yield chosen


def serve_all(model: Any, load: Load, budget: int, modes: Sequence[str]) -> list[Served]:
    """Measures the load in each mode.

    "block" runs with the best of several maximum numbers of requests, because its private copies would evict all
    documents from a small pool. If "lazy" and "block" are close, both are repeated interleaved, and the medians count.
    """
    rows = {}
    for mode in modes:
        cap = _best_cap(model, load, budget) if mode == "block" else load.clients
        rows[mode] = serve(model, load, mode, budget, cap)
    if abs(rows["lazy"].requests_per_s / rows["block"].requests_per_s - 1) < CLOSE:
        again = {mode: [rows[mode]] for mode in ("lazy", "block")}
        for _ in range(2):
            for mode, runs in again.items():
                runs.append(serve(model, load, mode, budget, rows[mode].max_requests))
        for mode, runs in again.items():
            median = sorted(runs, key=lambda row: row.requests_per_s)[1]
            rows[mode] = replace(median, runs=[row.requests_per_s for row in runs])
    return list(rows.values())


def _best_cap(model: Any, load: Load, budget: int) -> int:
    """Finds the number of "block" requests at a time with the highest throughput, by the first requests of the load."""
    rates = {}
    cap = load.clients
    while cap >= 4:
        some = replace(load, requests=min(load.requests, 4 * load.clients))
        rates[cap] = serve(model, some, "block", budget, cap).requests_per_s
        if rates[cap] < 0.95 * max(rates.values()):
            break  # smaller numbers are slower
        cap //= 2
    return max(rates, key=rates.__getitem__) if rates else load.clients


def serve(model: Any, load: Load, mode: str, budget: int, max_requests: int, *, cascade: bool = False) -> Served:
    """Measures all requests of a load in a new engine."""
    engine = attach(model, budget=budget, mode=mode, max_requests=max_requests, cascade=cascade)
    _warm_up(engine, load)
    rng = random.Random(load.seed + 1)
    size = model.config.vocab_size
    documents = [random_text(rng, load.document_tokens, size) for _ in range(load.documents)]
    requests = [(random_text(rng, load.question_tokens, size), [documents[i] for i in c]) for c in choices(load)]
    before = engine.store.stats
    unit, unit_bytes = unit_of([budget])
    name = f"{mode} with a cascade" if cascade else mode
    title = f"{name}, {budget / unit_bytes:.3g} {unit}, Zipf {load.exponent:g}, at most {max_requests} at a time"
    with tqdm(total=len(requests), desc=title, unit="request") as bar:
        begin = time.perf_counter()
        finished, alive = _closed_loop(engine, load, requests, bar)
        seconds = time.perf_counter() - begin
    after = engine.store.stats
    waits = [1e3 * (g.first_token - g.arrival) for g in finished if g.first_token is not None]
    cuts = statistics.quantiles(waits, n=10, method="inclusive")
    hits = sum(g.hits for g in finished) / (load.requests * load.per_request)
    return Served(
        mode=mode,
        budget_bytes=budget,
        max_requests=max_requests,
        exponent=load.exponent,
        requests_per_s=load.requests / seconds,
        first_token_p50_ms=statistics.median(waits),
        first_token_p90_ms=cuts[-1],
        hit_rate=hits,
        alive=alive,
        copied_bytes=after.bytes_copied - before.bytes_copied,
        evictions=after.evictions - before.evictions,
        seconds=seconds,
        runs=[load.requests / seconds],
    )


def with_and_without_cascade(model: Any, load: Load, budget: int, *, repeat: int = 3) -> list[Cascaded]:
    """Measures the load in the lazy mode without and with a cascade, interleaved. The median repetition counts."""
    served: dict[bool, list[Served]] = {False: [], True: []}
    for _ in range(repeat):
        for cascade, runs in served.items():
            runs.append(serve(model, load, "lazy", budget, load.clients, cascade=cascade))
    return [_cascaded(load, cascade, runs) for cascade, runs in served.items()]


def _cascaded(load: Load, cascade: bool, runs: list[Served]) -> Cascaded:
    median = sorted(runs, key=lambda row: row.requests_per_s)[len(runs) // 2]
    return Cascaded(
        clients=load.clients,
        exponent=load.exponent,
        cascade=cascade,
        requests_per_s=median.requests_per_s,
        first_token_p50_ms=median.first_token_p50_ms,
        first_token_p90_ms=median.first_token_p90_ms,
        alive=median.alive,
        runs=[row.requests_per_s for row in runs],
    )


def measure_cascade(model: Any, loads: Sequence[Load], budget: int) -> dict[str, Any]:
    """Returns the figures of each load without and with a cascade."""
    rows = [row for load in loads for row in with_and_without_cascade(model, load, budget)]
    return {
        "loads": [asdict(load) for load in loads],
        "budget_bytes": budget,
        "rows": [asdict(row) for row in rows],
        "complaints": [],
    }


def _closed_loop(
    engine: Engine, load: Load, requests: Sequence[tuple[list[int], list[list[int]]]], bar: Any
) -> tuple[list[Generation], float]:
    """Serves the requests with load.clients clients. Returns them, and the mean number of admitted requests."""
    waiting = iter(requests)
    active: list[Generation] = []
    finished: list[Generation] = []
    alive: list[int] = []
    while len(finished) < len(requests):
        while len(active) < load.clients and (request := next(waiting, None)) is not None:
            active.append(engine.generate(*request, max_new_tokens=load.answer_tokens, stop=[]))
        engine.step()
        alive.append(engine.num_running + sum(g.is_done for g in active))
        for generation in [g for g in active if g.is_done]:
            active.remove(generation)
            if generation.error is not None:
                raise generation.error
            finished.append(generation)
            bar.update()
    return finished, statistics.mean(alive)


def _warm_up(engine: Engine, load: Load) -> None:
    """Captures the graphs, and lets libraries choose their kernels."""
    size = 1
    rng = random.Random(0)
    # Requests of the load have no more documents than these, so that no graph is captured again for them.
    documents = [random_text(rng, 16, 1000) for _ in range(load.per_request)]
    while size <= engine.max_requests:
        for _ in range(size):
            question = random_text(rng, load.question_tokens, 1000)
            engine.generate(question, documents, max_new_tokens=3, stop=[])
        engine.run()
        size *= 2
    document = random_text(rng, load.document_tokens, 1000)
    engine.generate(document[:9], [document], max_new_tokens=2, stop=[]).result()
    engine.store.clear()
    assert engine.store.stats.documents == 0


def measure(model: Any, *, shape: Shape, loads: Sequence[Load], budgets: Sequence[int]) -> dict[str, Any]:
    """Returns the figures of one request alone, of each load under each budget, and the checks that failed."""
    result: dict[str, Any] = {
        "shape": asdict(shape),
        "loads": [asdict(load) for load in loads],
        "token_bytes": token_bytes(model),
        "single": [asdict(row) for row in single(model, shape)],
        "served": [],
    }
    for load in loads:
        # "recompute" shares nothing, so its figures do not depend on which documents are popular.
        modes = MODES if load is loads[0] else ("lazy", "block")
        for budget in budgets:
            result["served"] += map(asdict, serve_all(model, load, budget, modes))
    result["complaints"] = complaints(result, timed=model.device.type == "cuda")
    return result


def joined(some: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Joins figures of the same loads under different budgets. Those of one request alone are from `some`."""
    served = sorted([*some["served"], *others["served"]], key=lambda row: (row["exponent"], row["budget_bytes"]))
    return some | {"served": served, "complaints": [*some["complaints"], *others["complaints"]]}


def complaints(result: dict[str, Any], *, timed: bool) -> list[str]:
    """Returns a sentence for each check of the lazy mode that failed.

    Lazy must copy no document. With ``timed``, its best repetition must be at least as fast as the slowest of "block".
    """
    rows = [*result["single"], *result["served"]]
    found = [
        f"lazy copied {row['copied_bytes']} bytes" for row in rows if row["mode"] == "lazy" and row["copied_bytes"]
    ]
    served = {(row["exponent"], row["budget_bytes"], row["mode"]): row for row in result["served"]}
    for (exponent, budget, mode), lazy in served.items():
        block = served.get((exponent, budget, "block"))
        if timed and mode == "lazy" and block is not None and max(lazy["runs"]) < min(block["runs"]):
            found.append(
                f"at {budget / GIB:g} GiB, Zipf {exponent:g}: lazy serves {lazy['requests_per_s']:.2f} requests a "
                f"second, block {block['requests_per_s']:.2f}"
            )
    return found
