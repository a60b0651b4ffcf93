"""Serves tiny models from documents, and checks the results."""

from __future__ import annotations

import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from lazyrope.recovery import PageChoice
from lazyrope.transformers import Engine, attach

from tests.conftest import HAS_GPU
from tools.rag import reference

MODES = ("lazy", "block", "recompute")
# On the CPU, fp32 makes errors larger than rounding visible. The kernels support bf16 and fp16 only.
DTYPE = torch.bfloat16 if HAS_GPU else torch.float32


def make_engine(model: Any, **options: Any) -> Engine:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return attach(model, **{"budget": "64MiB", **options})


def recorded_masses(patch: pytest.MonkeyPatch) -> list[list[float]]:
    """Returns a list to which each choice of guided pages, from now on, adds the masses by which it chooses."""
    given: list[list[float]] = []
    tokens = PageChoice.tokens

    def record(choice: PageChoice, scores: Any) -> list[int]:
        given.append(list(scores))
        return tokens(choice, scores)

    patch.setattr(PageChoice, "tokens", record)
    return given


def as_dtype(model: Any, dtype: torch.dtype) -> Any:
    """Casts the weights. The frequencies of the rotation stay in fp32, as in every model."""
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model = model.to(dtype)
    model.model.rotary_emb.inv_freq = frequencies
    return model


def random_tokens(rng: random.Random, tokens: int) -> list[int]:
    return [rng.randrange(1024) for _ in range(tokens)]


def logits(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.lm_head(hidden).float()


def random_token_lists(seed: int, *lengths: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [random_tokens(rng, n) for n in lengths]


def assert_near(given: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor | None = None) -> None:
    """Checks that the error is within fp32 rounding, or twice the error of eager computation in the same dtype."""
    error = ((given.float() - exact).norm() / exact.norm()).item()
    eager_error = ((eager.float() - exact).norm() / exact.norm()).item() if eager is not None else 0.0
    assert error <= max(1e-4, 2 * eager_error), f"error {error:.2e}, eager {eager_error:.2e}"


def run(engine: Engine, seed: int, count: int, longest: int = 200) -> list[Any]:
    """Serves random requests together. No document is longer than `longest`, and no answer than an eighth of it."""
    rng = random.Random(seed)
    corpus = [random_tokens(rng, rng.randint(1, longest)) for _ in range(9)]
    generations = [
        engine.generate(
            random_tokens(rng, rng.randint(1, 30)),
            rng.sample(corpus, rng.randint(0, 4)),
            max_new_tokens=rng.randint(1, longest // 8),
            mode=rng.choice(["lazy", "block", "recompute"]),
            stop=[],
        )
        for _ in range(count)
    ]
    engine.run()
    return generations


def serve_at_once(engines: list[Engine], alone: Engine, exact: Any, rounds: int, **sizes: int) -> None:
    """Serves the same requests by several engines, a thread each, and compares with those of :func:`assert_agrees`.

    Args:
        engines: The engines that are compared.
        alone: An engine that serves no other request, and captures no graphs.
        exact: Its model in fp32.
        rounds: How often all engines serve requests, other ones each time.
        sizes: The arguments of :func:`run`.
    """
    with ThreadPoolExecutor(len(engines)) as threads:
        for seed in range(rounds):
            for generations in threads.map(lambda engine, seed=seed: run(engine, seed, **sizes), engines):
                for generation in generations:
                    assert_agrees(generation, alone, exact)


def assert_nothing_is_held(engine: Engine) -> None:
    stats = engine.store.stats
    assert stats.private_bytes == 0 and stats.referenced == 0 and engine.num_running == engine.num_waiting == 0
    engine.store.check()


def budget_of(model: Any, tokens: int) -> int:
    """Returns the bytes of the keys and values of `tokens` tokens."""
    config = model.config
    return tokens * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * DTYPE.itemsize


def assert_agrees(generation: Any, alone: Engine, exact: Any) -> None:
    """Checks that a generation has the tokens of the "recompute" mode up to the first near tie.

    `alone` is an engine that serves no other request. `exact` is its model in fp32. At the first token that differs,
    the two best logits of `exact` must be closer than the model's dtype can tell apart. The limit follows from the
    error of eager computation at this token.
    """
    prompt, documents = generation.prompt, generation.documents
    full = alone.generate(prompt, documents, mode="recompute", max_new_tokens=generation.max_new_tokens, stop=[])
    tokens, expected = generation.tokens, full.result()
    if tokens == expected:
        return
    at = next(i for i, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b)
    common = [*prompt, *tokens[:at]]
    exact_logits, eager_logits = (
        logits(m, reference.hidden_states(m, common, documents)[-1]) for m in (exact, alone.model)
    )
    best = exact_logits.topk(2).values
    # 4 standard deviations for each of the two modes
    limit = max(1e-3, 8 * (eager_logits - exact_logits).std().item())
    assert best[0] - best[1] < limit, f"{tokens} and {expected}: the best logits are {best.tolist()}, limit {limit:.3f}"
