"""Measures what each kind of memory costs in a real model's output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import lazyrope
import torch
from lazyrope.memory import Memory, build
from lazyrope.memory.scores import Scores, States
from lazyrope.memory.states import StatesOptions, looked_up, state_heads

from tools.memory.attention import Over, compute, logits_after, queries_after, states_over
from tools.memory.texts import Text

ITEMSIZE = 2  # bytes are counted in bfloat16, as a model serves; the measurement is in float32


@dataclass(frozen=True)
class Row:
    """One way of keeping a document, beside attention over all of it.

    Attributes:
        method: The name of the way.
        kilobytes: Its bytes for each layer and KV head, in units of 1000 bytes.
        read: The bytes of them that a step of decoding reads.
        kl: The mean of KL(exact || method) over the test tokens, in nats.
        nll: The mean negative log-likelihood of the test tokens.
        top1: The share of test tokens with the same most probable next token.
        seconds: The time of the construction, all layers.
    """

    method: str
    kilobytes: float
    read: float
    kl: float
    nll: float
    top1: float
    seconds: float = 0.0


# The arguments of build() by the name of the method. Budgets of compact memories have 4 exact tokens among them.
COMPACT = {"compact keys 64": 68, "compact keys 256": 260, "compact keys 768": 772}
STATES: dict[str, dict[str, Any]] = {
    "states, K = 256, as in the paper": {"budget": 256, "exact": 0, "lookup": "head", "average": "paper"},
    "states, K = 256 + sinks, mean of l, tangent": {"budget": 256, "lookup": "head", "tangent": True},
    "states, K = 256 + sinks, mean of l": {"budget": 256, "lookup": "head"},
    "states, K = 380 + sinks, a key a group": {"budget": 380},
    "states, K = 512 + sinks, a key a group": {"budget": 512},
    "states, K = 512 + sinks, a key a group, two levels": {"budget": 512, "two_level": True},
}


class Bench:
    """Measures the methods over one text."""

    def __init__(self, model: Any, text: Text) -> None:
        self._model = model
        self._text = text
        config = model.config
        self._heads = config.num_key_value_heads, config.num_hidden_layers
        self._spec = lazyrope.AttentionSpec(
            head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
            num_q_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            rope=lazyrope.rope.neox(),
            query_form="rotated",
        )
        self._document = compute(model, text.prefix)
        self._exact = self._logits([_exact(k, v) for k, v in self._layers()])
        self._queries: dict[tuple[int, ...], list[torch.Tensor]] = {}

    def rows(self, foreign: list[int] | None = None) -> Iterator[Row]:
        """Yields the results of all methods.

        Args:
            foreign: The tokens of other traces, to which some memories are fitted as well.
        """
        yield self._row("exact", [_exact(k, v) for k, v in self._layers()], self._bytes(len(self._text.prefix)))
        yield self._row("no prefix at all", None, 0)
        yield self._sinks_and_recent("sinks + the last 764 tokens", 764)
        yield from self._fitted(self._text.traces, "", [*COMPACT], [*STATES])
        yield self._all_states(self._text.traces)
        yield self._unfitted("the 772 keys of most mass, not fitted", 772)
        if foreign is not None:
            suffix = ", foreign traces"
            yield from self._fitted(foreign, suffix, [*COMPACT][1:], [*STATES][:2])

    def _layers(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self._document.keys, self._document.values, strict=True)

    def _logits(self, over: list[Over] | None) -> torch.Tensor:
        return logits_after(self._model, self._text.test, len(self._text.prefix), over).log_softmax(-1)

    def _bytes(self, tokens: int) -> int:
        return tokens * 2 * self._spec.head_dim * ITEMSIZE

    def _row(self, method: str, over: list[Over] | None, size: float, read: float | None = None, **rest: Any) -> Row:
        found = self._exact if method == "exact" else self._logits(over)
        kl = (self._exact.exp() * (self._exact - found)).sum(-1).mean()
        following = torch.tensor(self._text.test[1:], device=found.device)
        nll = -found[:-1].gather(1, following[:, None]).mean()
        top1 = (found.argmax(-1) == self._exact.argmax(-1)).float().mean()
        read = size if read is None else read
        return Row(method, size / 1000, read / 1000, float(kl), float(nll), float(top1), **rest)

    def _sinks_and_recent(self, method: str, recent: int) -> Row:
        over = [_exact(*(torch.cat([x[:, :4], x[:, -recent:]], dim=1) for x in layer)) for layer in self._layers()]
        return self._row(method, over, self._bytes(recent + 4))

    def _unfitted(self, method: str, budget: int) -> Row:
        memory = self._build(self._text.traces, budget=budget, fit="none", selection="mass")
        return self._row(method, _over(memory), self._bytes(budget), seconds=memory.report.seconds)

    def _fitted(self, traces: list[int], suffix: str, compact: list[str], states: list[str]) -> Iterator[Row]:
        for method in states:
            yield self._memory_row(method + suffix, self._build(traces, kind="states", **STATES[method]))
        for method in compact:
            yield self._memory_row(method + suffix, self._build(traces, budget=COMPACT[method]))

    def _all_states(self, traces: list[int]) -> Row:
        """Returns the row of a state for each trace token. It is larger than the document, so build() refuses it."""
        options = StatesOptions(len(traces), exact=0, lookup="head")
        scores = Scores.of(self._spec)

        def over(layer: int) -> Over:
            k, v = (x[layer].transpose(0, 1) for x in (self._document.keys, self._document.values))
            heads = state_heads(k, v, self._traced(traces)[layer], scores, options)
            return lambda q: looked_up(heads, q.transpose(0, 1), scores)[0]

        group = self._spec.group_size
        size = group * len(traces) * (2 * self._spec.head_dim * ITEMSIZE + 4)
        read = group * (len(traces) + 1) * self._spec.head_dim * ITEMSIZE
        layers = self._model.config.num_hidden_layers
        return self._row(f"all {len(traces)} states", [over(layer) for layer in range(layers)], size, read)

    def _traced(self, traces: list[int]) -> list[torch.Tensor]:
        """Returns the queries of traces over the document."""
        key = tuple(traces)
        if key not in self._queries:
            self._queries[key] = queries_after(self._model, traces, self._document)
        return self._queries[key]

    def _build(self, traces: list[int], **arguments: Any) -> Memory:
        document = [(k.transpose(0, 1), v.transpose(0, 1)) for k, v in self._layers()]
        return build(self._spec, document, self._traced(traces), **arguments)

    def _memory_row(self, method: str, memory: Memory) -> Row:
        # Reports count float32 here. A log-sum-exp and a bias take four bytes in any dtype.
        kv_heads, layers = self._heads
        size, read = (x / kv_heads / layers for x in _bytes_in_bfloat16(memory))
        return self._row(method, _over(memory), size, read, seconds=memory.report.seconds)


def _bytes_in_bfloat16(memory: Memory) -> tuple[float, float]:
    fixed = sum(x.numel() * 4 for name, x in memory.tensors().items() if name in ("bias", "lse"))
    total = (memory.report.num_bytes - fixed) / 2 + fixed
    if memory.kind == "compact":
        return total, total
    entries = memory.lse[0].numel()  # type: ignore[attr-defined]
    found = fixed / entries * memory.lse.shape[1] if entries else 0  # type: ignore[attr-defined]
    return total, (memory.report.read_bytes - found) / 2 + found


def _exact(k: torch.Tensor, v: torch.Tensor) -> Over:
    return lambda q: states_over(q, k, v)


def _over(memory: Memory) -> list[Over]:
    def of_layer(layer: int) -> Callable[[torch.Tensor], States]:
        return lambda q: memory.states(layer, q.transpose(0, 1))

    return [of_layer(layer) for layer in range(memory.num_layers)]


def measure(model: Any, text: Text, foreign: list[int] | None) -> dict[str, Any]:
    """Returns the rows over one text, and the seconds that they took."""
    begin = time.perf_counter()
    rows = [asdict(row) for row in Bench(model, text).rows(foreign)]
    return {"rows": rows, "seconds": time.perf_counter() - begin}
