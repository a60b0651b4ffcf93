"""The requests of a load, and the clients that send them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

QUESTION = 32
PER_PROMPT = 5
MOST_WARM = 4  # the longest warm-up of a closed loop, as a multiple of the shortest
FIRST_TOKENS = 100  # tokens are drawn from the vocabulary after these, which may be special


@dataclass(frozen=True)
class Prompt:
    """The tokens of a prompt, and how many of them belong to each document."""

    tokens: list[int]
    lengths: list[int]


@dataclass(frozen=True)
class Output:
    """The report of an engine about a request after a pass.

    Attributes:
        name: The request.
        tokens: The new tokens of its answer.
        cached: The tokens of its prompt that were found in the cache.
        is_finished: True if no more tokens follow.
    """

    name: str
    tokens: int
    cached: int
    is_finished: bool


class Engine(Protocol):
    """An engine, as a load needs it."""

    def add(self, name: str, prompt: Prompt, answer: int) -> None: ...

    def step(self) -> list[Output]: ...

    @property
    def num_live(self) -> int: ...

    @property
    def computed_tokens(self) -> int:
        """The tokens that all passes have computed so far."""


class Corpus:
    """Random documents, and prompts over them."""

    def __init__(self, documents: int, tokens: int, vocabulary: int) -> None:
        rng = np.random.default_rng(0)
        self._vocabulary = vocabulary
        self._documents = rng.integers(FIRST_TOKENS, vocabulary, (documents, tokens)).tolist()
        # The most popular documents are the same in all runs, and they are not the first ones.
        self._by_rank = random.Random(0).sample(range(documents), documents)

    def prompts(self, seed: int, zipf: float, question: int = QUESTION) -> Iterator[Prompt]:
        """Yields prompts over distinct documents for ever."""
        rng = random.Random(seed)
        weights = [1.0 / (rank + 1) ** zipf for rank in range(len(self._by_rank))]
        while True:
            chosen: list[int] = []
            while len(chosen) < min(PER_PROMPT, len(self._documents)):
                (document,) = rng.choices(self._by_rank, weights)
                if document not in chosen:
                    chosen.append(document)
            yield self.prompt(chosen, rng, question)

    def prompt(self, order: list[int], rng: random.Random, question: int = QUESTION) -> Prompt:
        documents = [self._documents[i] for i in order]
        own = self.text(rng, question)
        return Prompt([token for text in (*documents, own) for token in text], [len(text) for text in documents])

    def text(self, rng: random.Random, tokens: int) -> list[int]:
        return [rng.randrange(FIRST_TOKENS, self._vocabulary) for _ in range(tokens)]


@dataclass
class _Sent:
    arrival: float
    prompt_tokens: int


@dataclass
class Window:
    """The counts and times of a measured load."""

    seconds: float = 0.0
    warm_s: float = 0.0  # seconds of the load before these
    finished: int = 0
    tokens: int = 0
    waits: list[float] = field(default_factory=list)  # seconds from arrival to the first token
    cached: int = 0
    prompt_tokens: int = 0
    live: list[int] = field(default_factory=list)
    steps: int = 0
    computed: int = 0

    def figures(self) -> dict[str, Any]:
        """Returns the figures of a cell. Times to the first token are those of requests whose first token came."""
        result: dict[str, Any] = {
            "requests_per_s": self.finished / self.seconds,
            "tokens_per_s": self.tokens / self.seconds,
            "finished": self.finished,
            "first_tokens": len(self.waits),
            "hit_rate": self.cached / self.prompt_tokens if self.prompt_tokens else None,
            "live": statistics.mean(self.live) if self.live else 0.0,
            "step_ms": 1e3 * self.seconds / max(1, self.steps),
            "tokens_per_step": self.computed / max(1, self.steps),
            "seconds": self.seconds,
            "warm_s": self.warm_s,
        }
        for percent in (50, 90, 99):
            wait = float(np.percentile(self.waits, percent)) if self.waits else None
            result[f"ttft_p{percent}_ms"] = None if wait is None else 1e3 * wait
        return result


class Client:
    """Sends requests, and counts those that an engine answers."""

    def __init__(self, engine: Engine, prompts: Iterator[Prompt], answer: int, clock: Callable[[], float]) -> None:
        self._engine, self._prompts, self._answer, self._clock = engine, prompts, answer, clock
        self._open: dict[str, _Sent] = {}
        self._count = 0

    @property
    def open(self) -> list[str]:
        """The requests that are not answered yet."""
        return list(self._open)

    def send(self, arrival: float | None = None) -> None:
        """Sends a request that arrived now, or earlier while the engine was in a pass."""
        prompt = next(self._prompts)
        self._count += 1
        name = f"r{self._count}"
        self._open[name] = _Sent(self._clock() if arrival is None else arrival, len(prompt.tokens))
        self._engine.add(name, prompt, self._answer)

    def step(self, window: Window | None) -> int:
        """Runs a pass. Returns the number of requests that it finished."""
        computed = self._engine.computed_tokens
        outputs = self._engine.step()
        now = self._clock()
        finished = 0
        for output in outputs:
            sent = self._open[output.name]
            is_first = sent.prompt_tokens > 0 and output.tokens > 0
            if window is not None:
                window.tokens += output.tokens
                if is_first:
                    window.waits.append(now - sent.arrival)
                    window.cached += output.cached
                    window.prompt_tokens += sent.prompt_tokens
            if is_first:
                sent.prompt_tokens = 0  # the first token is counted
            if output.is_finished:
                finished += 1
                del self._open[output.name]
        if window is not None:
            window.finished += finished
            window.steps += 1
            window.computed += self._engine.computed_tokens - computed
            window.live.append(self._engine.num_live)
        return finished


def closed_loop(
    client: Client, clients: int, warm_s: float, measure_s: float, clock: Callable[[], float] = time.perf_counter
) -> Window:
    """Serves clients that each send the next request when the last one is answered.

    The warm-up is not measured. It goes on until each client could have had an answer, for at most MOST_WARM times
    `warm_s`.
    """
    window = Window()

    def serve(target: Window | None) -> int:
        finished = client.step(target)
        for _ in range(finished):
            client.send()
        return finished

    for _ in range(clients):
        client.send()
    begin, answered = clock(), 0
    while (spent := clock() - begin) < warm_s or (answered < clients and spent < MOST_WARM * warm_s):
        answered += serve(None)
    window.warm_s = spent
    begin = clock()
    while (spent := clock() - begin) < measure_s:
        serve(window)
    window.seconds = spent
    return window


def poisson(
    client: Client,
    rate: float,
    rng: random.Random,
    warm_s: float,
    measure_s: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Window:
    """Serves requests that arrive at random, `rate` in a second on average, whether or not others are answered."""
    window = Window()
    begin = clock()
    arrival = begin + rng.expovariate(rate)
    measured_from = begin + warm_s
    while (now := clock()) < measured_from + measure_s:
        while arrival <= now:
            client.send(arrival)
            arrival += rng.expovariate(rate)
        if client.open:
            client.step(window if now >= measured_from else None)
        else:
            sleep(min(1e-3, max(0.0, arrival - now)))
    window.seconds, window.warm_s = clock() - measured_from, warm_s
    return window
