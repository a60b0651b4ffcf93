"""Builds memories, one layer at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .._checks import as_count
from ..errors import InaccurateMemory, SpecError
from .arguments import as_limit, as_name, as_share
from .compact import FITS, SELECTIONS, CompactOptions, compact_heads
from .drift import typical_of
from .memories import (
    CompactMemory,
    Memory,
    StatesMemory,
    compact_bytes,
    stacked_compact,
    stacked_states,
    states_bytes,
)
from .report import LayerReport, Report
from .scores import Scores, States, exact_states
from .states import AVERAGES, LOOKUPS, StateHeads, StatesOptions, cells_of, looked_up, state_heads
from .traces import Source, held_out, key_of, source_of

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor


@dataclass
class _Layer:
    """The tensors of one layer of a source."""

    keys: Tensor
    values: Tensor
    fitted: Tensor
    held: Tensor
    scores: Scores


def build(
    attention: Any,
    document: Any,
    traces: Any = "repeat",
    kind: str = "compact",
    *,
    budget: int,
    exact: int = 4,
    fit: str = "auto",
    selection: str = "auto",
    lookup: str = "group",
    average: str = "log",
    tangent: bool = False,
    two_level: bool = False,
    holdout: float = 0.1,
    seed: int = 0,
    max_error: float | None = None,
) -> Memory:
    """Builds a memory of a document, fitted to the queries of traces.

    Args:
        attention: An engine of :func:`lazyrope.transformers.attach`, which runs the document and the traces. Or a
            kernel of :func:`lazyrope.compile` or :func:`lazyrope.eager.compile`, or a spec: then the document and the
            traces are tensors.
        document: The document's token ids or text. Without an engine: a pair of its keys and values, each
            [tokens, kv_heads, head_dim] with keys rotated by their index, or a list of one pair a layer.
        traces: Texts or lists of token ids that are like what will read the memory: each is run after the document, and
            its queries are what the memory is fitted to. "repeat": the document itself, read a second time. Without an
            engine: queries [traces, q_heads, head_dim], rotated by their positions where the document's token 0 is at
            position 0, or a list of one tensor a layer.
        kind: "compact": keys of the document with biases and fitted values (Attention Matching, arXiv 2602.16284).
            "states": outputs and log-sum-exps of typical queries, looked up by the query (arXiv 2605.18226).
        budget: The tokens that each KV head stores, with the exact ones ("compact"), or the entries of each query head
            ("states").
        exact: The first tokens of the document that are kept as they are. Most models attend strongly to them.
        fit: "compact": "none", "bias" (biases by non-negative least squares), "values" (biases, and values by least
            squares), or "auto": the best of the three for each KV head on held-out traces.
        selection: "compact": the keys of the greatest attention "mass", or of the greatest single weight ("max"), or
            "auto": the better for each KV head on held-out traces.
        lookup: "states": "group": one mean query for the query heads of a KV head; "head": one for each query head.
        average: "states": "log": the mean of log-sum-exps and of outputs; "paper": exponentials are averaged.
        tangent: "states": True: an entry has the gradient of its log-sum-exp, and is corrected by it. Only
            ``Memory.states()`` evaluates it: stores and engines refuse such a memory.
        two_level: "states": True: entries are in cells, and a look-up scans the centres of the cells, and then the
            entries of the nearest cell alone.
        holdout: The share of the trace tokens that nothing is fitted to. Errors are measured on them.
        seed: The seed of the held-out tokens and of k-means.
        max_error: The greatest relative error of the output that any KV head may have on held-out traces, or None.

    Returns:
        The memory. Its ``report`` has the errors on held-out traces. With fit="auto" or selection="auto", these traces
        also choose among the candidates of each KV head, so the errors are slightly optimistic. Beside the document and
        the traces, the construction of a layer takes at most about 2 x 4 x 2^26 bytes of scores, the keys, values and
        queries of all KV heads of the layer in float32, and, for "compact", four matrices of float64
        [kv_heads, budget, budget].

    Raises:
        SpecError: A value is not allowed, the attention has a window, chunks, raw keys or 8-bit pools, or the
            document's own keys and values would take no more bytes than the memory.
        InaccurateMemory: A KV head's error is greater than max_error, or it is not finite.
        StoreFull: The engine's store has no room for the document.
        DocumentTooLarge: The document exceeds the store's budget.
    """
    as_name("kind", kind, ("compact", "states"))
    budget, exact = as_count("budget", budget, least=1), as_count("exact", exact, least=0)
    share, limit = as_share("holdout", holdout), as_limit("max_error", max_error)
    seed = as_count("seed", seed, least=0)
    arguments: dict[str, Any] = {"kind": kind, "budget": budget, "exact": exact, "holdout": share, "seed": seed}
    if kind == "compact":
        arguments |= {
            "fit": as_name("fit", fit, ("auto", *FITS)),
            "selection": as_name("selection", selection, ("auto", *SELECTIONS)),
        }
    else:
        arguments |= {
            "lookup": as_name("lookup", lookup, LOOKUPS),
            "average": as_name("average", average, AVERAGES),
            "tangent": bool(tangent),
            "two_level": bool(two_level),
        }
    source = source_of(attention, document, traces)
    _check_budget(source, arguments)
    return _Builder(source, arguments, limit).build()


class _Builder:
    """Builds one memory."""

    def __init__(self, source: Source, arguments: dict[str, Any], max_error: float | None) -> None:
        self._source = source
        self._arguments = arguments
        self._max_error = max_error
        self._reports: list[LayerReport] = []
        self._bytes: list[tuple[int, int]] = []

    def build(self) -> Memory:
        source, arguments = self._source, self._arguments
        device = source.keys[0].device
        fitted, held = held_out(source.num_traces, arguments["holdout"], arguments["seed"])
        begin, before = _clock(device), _allocated(device)
        fitted, held = fitted.to(device), held.to(device)
        one_layer: Callable[[_Layer], Any] = self._compact if arguments["kind"] == "compact" else self._states
        layers, typical = [], []
        for i, spec in enumerate(source.specs):
            q = source.queries[i]
            layer = _Layer(source.keys[i], source.values[i], q[fitted], q[held], Scores.of(spec))
            layers.append(one_layer(layer))
            typical.append(typical_of(layer.fitted, layer.held, source.keys[i].shape[1], arguments["seed"]))
            self._check_error(i)
        stacked = stacked_compact(layers) if arguments["kind"] == "compact" else stacked_states(layers)
        seconds, peak = _clock(device) - begin, _peak(device, before)
        of_kind = CompactMemory if arguments["kind"] == "compact" else StatesMemory
        return of_kind(
            key=key_of(source, arguments),
            model=source.model,
            num_positions=source.num_tokens,
            scores=[Scores.of(spec) for spec in source.specs],
            arguments=dict(arguments),
            report=self._report(len(fitted), len(held), seconds, peak),
            typical=torch.stack([centres for centres, _ in typical]),
            floor=torch.stack([floor for _, floor in typical]),
            **stacked,
        )

    def _compact(self, layer: _Layer) -> Any:
        names = ("budget", "exact", "fit", "selection")
        options = CompactOptions(**{name: self._arguments[name] for name in names})
        heads = compact_heads(layer.keys, layer.values, layer.fitted, layer.held, layer.scores, options)
        chosen = tuple(", ".join(each) for each in heads.chosen)
        self._reports.append(LayerReport(tuple(heads.output_error), tuple(heads.lse_error), chosen))
        kv_heads, slots, head_dim = heads.keys.shape
        size = compact_bytes(kv_heads, slots, head_dim, heads.keys.element_size())
        self._bytes.append((size, size))
        return heads

    def _states(self, layer: _Layer) -> StateHeads:
        names = ("exact", "lookup", "average", "tangent", "two_level", "seed")
        options = StatesOptions(self._arguments["budget"], **{name: self._arguments[name] for name in names})
        heads = state_heads(layer.keys, layer.values, layer.fitted, layer.scores, options)
        found, _ = looked_up(heads, layer.held, layer.scores)
        output, lse = errors_of(found, layer.held, layer.keys, layer.values, layer.scores)
        self._reports.append(LayerReport(output, lse, (options.lookup,) * len(output)))
        self._bytes.append(states_bytes(heads))
        return heads

    def _check_error(self, layer: int) -> None:
        report = self._reports[layer]
        errors = report.output_error
        for head, values in enumerate(zip(errors, report.lse_error, strict=True)):
            if not all(map(math.isfinite, values)):
                raise InaccurateMemory(
                    f"layer {layer}, KV head {head}: the errors on held-out traces are {values[0]:g} (output) and "
                    f"{values[1]:g} (log-sum-exp): float32 has overflowed. Keep the document itself",
                    layer=layer,
                    head=head,
                    value=values[0],
                )
        head = max(range(len(errors)), key=errors.__getitem__)
        if self._max_error is not None and not errors[head] <= self._max_error:
            raise InaccurateMemory(
                f"layer {layer}, KV head {head}: the relative error of the output on held-out traces is "
                f"{errors[head]:.4g}; max_error is {self._max_error:g}. Give a larger budget or more traces, or keep "
                "the document itself",
                layer=layer,
                head=head,
                value=errors[head],
            )

    def _report(self, fitted: int, held: int, seconds: float, peak: int | None) -> Report:
        total, read = (sum(sizes) for sizes in zip(*self._bytes, strict=True))
        exact = exact_bytes(self._source)
        kind = self._arguments["kind"]
        return Report(kind, tuple(self._reports), total, read, exact, fitted, held, seconds, peak)


def errors_of(
    found: States, q: Tensor, keys: Tensor, values: Tensor, scores: Scores
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns each KV head's errors of states: that of the output, relative, and that of the log-sum-exp, in nats.

    Args:
        found: The states, [q_heads, queries, d] and [q_heads, queries].
        q: The queries, [queries, q_heads, d].
        keys: The document's keys, [tokens, kv_heads, d].
        values: Its values, [tokens, kv_heads, d].
        scores: The scores of the layer.
    """
    group = q.shape[1] // keys.shape[1]
    output, lse = [], []
    for head in range(keys.shape[1]):
        of_head = slice(head * group, (head + 1) * group)
        rows = q[:, of_head].float().transpose(0, 1).flatten(0, 1)
        exact = exact_states(rows, keys[:, head].float(), values[:, head].float(), scores)
        error = found.out[of_head].flatten(0, 1) - exact.out
        output.append(error.norm() / exact.out.norm().clamp_min(1e-30))
        lse.append((found.lse[of_head].flatten() - exact.lse).square().mean().sqrt())
    return tuple(torch.stack(output).tolist()), tuple(torch.stack(lse).tolist())


def exact_bytes(source: Source) -> int:
    """Returns the bytes of the document's own keys and values."""
    return sum(x.numel() * x.element_size() for x in (*source.keys, *source.values))


def _check_budget(source: Source, arguments: dict[str, Any]) -> None:
    budget, exact, tokens = arguments["budget"], arguments["exact"], source.num_tokens
    spec, itemsize = source.specs[0], source.keys[0].element_size()
    layers = len(source.specs)
    if arguments["kind"] == "states":
        fitted, _ = held_out(source.num_traces, arguments["holdout"], arguments["seed"])
        if budget > len(fitted):
            raise SpecError(f"budget = {budget} entries; {len(fitted)} trace tokens are fitted to. Give more traces")
        if exact >= tokens:
            raise SpecError(f"exact = {exact}; the document has {tokens} tokens, and entries cover the others")
        keys = spec.num_kv_heads if arguments["lookup"] == "group" else spec.num_q_heads
        columns = 2 if arguments["tangent"] else 1
        cells, most = cells_of(budget) if arguments["two_level"] else (1, budget)
        states = spec.num_q_heads * (columns * spec.head_dim * itemsize + 4)
        size = cells * most * (keys * spec.head_dim * itemsize + states)
        if arguments["two_level"]:
            size += keys * cells * spec.head_dim * itemsize
        size += 2 * spec.num_kv_heads * exact * spec.head_dim * itemsize
    else:
        if budget <= exact or budget > tokens:
            raise SpecError(f"budget = {budget}; it must be more than exact = {exact}, and at most {tokens} tokens")
        size = compact_bytes(spec.num_kv_heads, budget, spec.head_dim, itemsize)
    if layers * size >= exact_bytes(source):
        raise SpecError(
            f"budget = {budget}: the memory would take {layers * size} bytes, and the document's own keys and values "
            f"take {exact_bytes(source)}. Store the document, or give a smaller budget"
        )


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _allocated(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))


def _peak(device: torch.device, before: int) -> int | None:
    return int(torch.cuda.max_memory_allocated(device)) - before if device.type == "cuda" else None
