"""Measures one cell in a running engine."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.vllm_bench.arms import Arm, texts
from tools.vllm_bench.cells import NEAR_LIMIT, Cell
from tools.vllm_bench.load import PER_PROMPT, Client, Prompt, Window, closed_loop, poisson

Row = dict[str, Any]
# The parts of the budget that the copies of live requests may take. The rest holds stored documents.
PRIVATE_PARTS = (0.1, 0.2, 0.35, 0.6, 0.9)
CLEARLY_SLOWER = 0.9  # two trials of equal speed differ by less


@dataclass(frozen=True)
class Times:
    """How long a cell takes.

    Attributes:
        warm_s: The least seconds of load before those that are measured. They fill the cache.
        measure_s: The measured seconds.
        trial_s: The seconds of each trial of a number of requests for "copies", after half as many that do not count.
            After the trials the cache is full, and as many seconds of load are enough before those that are measured.
        repeats: The repetitions of "first_token".
    """

    warm_s: float = 6.0
    measure_s: float = 9.0
    trial_s: float = 3.0
    repeats: int = 9


def measure(arm: Arm, cell: Cell, times: Times, seed: int, closed: Row | None) -> Row:
    """Returns the figures of a cell.

    Args:
        arm: The engine.
        cell: What is measured.
        times: How long.
        seed: The seed of the requests. It is the same for all arms.
        closed: The figures of this arm in the closed loop, for the load "poisson".
    """
    if cell.load == "first_token":
        return _first_tokens(arm, cell, times.repeats)
    if cell.load == "decode":
        return _decode(arm, cell, seed)
    most = min(cell.clients, arm.setup.max_requests)
    limit, rate, warm_s = most, 0.0, times.warm_s
    trials: dict[int, float] = {}
    if cell.load == "poisson":
        if closed is None:
            raise ValueError(f"{cell.name}: the rate of the closed loop is not known")
        limit, rate = closed["max_requests"], NEAR_LIMIT * closed["requests_per_s"]
    elif arm.name == "copies":
        trials = _trials(arm, cell, times, seed, most)
        limit, warm_s = max(trials, key=lambda each: trials[each]), times.trial_s

    def serve(client: Client) -> Window:
        if cell.load == "closed":
            return closed_loop(client, cell.clients, warm_s, times.measure_s)
        return poisson(client, rate, random.Random(seed + 1), warm_s, times.measure_s)

    figures = _serve(arm, cell, seed, limit, serve)
    arm.clear([], cell.budget_gib)
    if cell.load == "poisson":
        figures["arrivals_per_s"] = rate
    if trials:
        figures["trials"] = {str(each): requests_per_s for each, requests_per_s in trials.items()}
    return figures


def _serve(arm: Arm, cell: Cell, seed: int, limit: int, serve: Callable[[Client], Window]) -> Row:
    """Serves a load. The documents that it stores stay in the cache."""
    arm.limit_requests(limit)
    client = Client(arm, arm.corpus.prompts(seed, cell.zipf), cell.answer, time.perf_counter)
    copied = arm.copied_blocks
    window = serve(client)
    figures = window.figures() | {
        "max_requests": limit,
        "copied_blocks": arm.copied_blocks - copied,
        "host_ms": arm.host_ms,
    }
    arm.end(client.open)
    return figures


def _trials(arm: Arm, cell: Cell, times: Times, seed: int, most: int) -> dict[int, float]:
    """Returns the requests a second that copies serve with some numbers of requests at a time.

    Copies of many requests would leave no room for stored documents, and each request would compute its documents. The
    trials begin with a cache that the first number has filled, and each goes on with the documents of the last one.
    Greater numbers follow until one is clearly slower than the best.
    """
    fitting = arm.most_private(cell.budget_gib)
    limits = sorted({max(1, min(most, int(part * fitting))) for part in PRIVATE_PARTS})
    found: dict[int, float] = {}
    for limit in limits:
        warm_s = times.trial_s / 2 if found else times.warm_s

        def load(client: Client, warm_s: float = warm_s) -> Window:
            return closed_loop(client, cell.clients, warm_s, times.trial_s)

        found[limit] = float(_serve(arm, cell, seed, limit, load)["requests_per_s"])
        if found[limit] < CLEARLY_SLOWER * max(found.values()):
            break
    return found


def warm_up(arm: Arm, times: Times) -> None:
    """Runs requests that no cell measures, so that libraries and compilers choose their kernels."""
    client = Client(arm, arm.corpus.prompts(-1, 1.1), 4, time.perf_counter)
    closed_loop(client, min(8, arm.setup.max_requests), times.trial_s, 0.0)
    arm.clear(client.open, arm.setup.pool_gib)


def _answer(arm: Arm, prompt: Prompt, answer: int) -> float:
    """Returns the milliseconds until one request alone is answered."""
    begin = time.perf_counter()
    arm.add("alone", prompt, answer)
    while not any(output.is_finished for output in arm.step()):
        pass
    return 1e3 * (time.perf_counter() - begin)


def _first_tokens(arm: Arm, cell: Cell, repeats: int) -> Row:
    """Measures prompts whose documents are not stored, stored in the same order, and stored in another order."""
    rng = random.Random(1)
    order = list(range(min(PER_PROMPT, arm.setup.documents)))
    runs: dict[str, list[float]] = {"cold_ms": [], "same_order_ms": [], "new_order_ms": []}
    for _ in range(repeats + 1):
        arm.clear([], cell.budget_gib)
        runs["cold_ms"].append(_answer(arm, arm.corpus.prompt(order, rng), 1))
        runs["same_order_ms"].append(_answer(arm, arm.corpus.prompt(order, rng), 1))
        moved = rng.sample(order, len(order))
        if moved[0] == order[0]:  # stock vLLM would find this document
            moved.append(moved.pop(0))
        runs["new_order_ms"].append(_answer(arm, arm.corpus.prompt(moved, rng), 1))
    arm.clear([], cell.budget_gib)
    return {name: statistics.median(values[1:]) for name, values in runs.items()}


def _decode(arm: Arm, cell: Cell, seed: int) -> Row:
    """Measures requests that all decode, from the first tokens of all to the end of the first one."""
    arm.clear([], arm.setup.pool_gib)
    answer = min(cell.answer, arm.setup.answer)
    prompts = iter(texts(arm, seed, cell.clients, arm.setup.context - answer // 2))
    client = Client(arm, prompts, answer, time.perf_counter)
    for _ in range(cell.clients):
        client.send()
    started = Window()
    while len(started.waits) < cell.clients:
        client.step(started)
    arm.clear_host_times()
    window, begin = Window(), time.perf_counter()
    while not client.step(window):
        pass
    window.seconds = time.perf_counter() - begin
    host_ms = arm.host_ms
    arm.clear(client.open, arm.setup.pool_gib)
    figures = window.figures()
    return {name: figures[name] for name in ("tokens_per_s", "step_ms", "seconds", "live")} | {
        "steps": window.steps,
        "host_ms": host_ms,
    }
