"""Runs passes of a model over packed tokens: updates the steps, attends in every layer, and samples the next tokens."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import cache, cached_property
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from .._arguments import AppendCapacity, Segments, StepCapacity, TokenSpans
from ..documents import DocumentStore
from .backend import Backend
from .grouping import GroupedAttention
from .hook import AttentionCall, LayersDone, attending
from .measuring import Meter
from .progress import Progress
from .work import SEGMENTS, SPANS, Job, Packed, Work, pack, power_of_two

Tensor = Any

GRAPH_JOBS = 32  # the jobs of a graph, except in decode: one number keeps the captured sizes few
# Each captured pass has steps of its own. One for so many pairs of a token and a page takes 32 MiB with 32 heads.
GRAPH_MASS_PAGES = 1 << 18
MIN_CAPACITY = StepCapacity(1, 1, 1, 1)
_numbers = attrgetter(
    *(field.name for field in fields(StepCapacity))
)  # astuple() takes 26 times as long, in every pass
_CAPTURING = threading.Lock()


class _GrowingStep:
    """A step of :meth:`lazyrope.Attention.plan`. If a pass does not fit, a larger step replaces it."""

    def __init__(self, attention: Any, store: DocumentStore, least: StepCapacity) -> None:
        self._attention = attention
        self._store = store
        self._capacity = least
        self.step: Any = None

    def update(self, packed: Packed, views: dict[str, Tensor], which: str = "segments") -> None:
        """Refills the step with the segments of the pass, or with those of its groups, which are "group"."""
        masses = packed.masses if which == "segments" else None
        names = SEGMENTS if self._attention.spec.states else SEGMENTS[:-1]
        names = names if masses is None else (*names, "mass_tokens")
        segments = Segments(**{name: views[f"{which}.{name}"] for name in names})
        tensors = (views["q_indptr"], views["q_position"], segments, self._store.pages)
        needed = StepCapacity(
            requests=packed.size("q_indptr") - 1,
            segments=packed.size(f"{which}.base"),
            query_tokens=packed.size("q_position"),
            tokens_per_request=packed.max_rows,
            mass_pages=0 if masses is None else masses.room,
        )
        if self.step is None or not _holds(self._capacity, needed):
            capacity = _grown(self._capacity, needed)
            self.step = self._attention.plan(*tensors, page_size=self._store.page_size, capacity=capacity)
            self._capacity = capacity  # set last: without memory for the larger step, the present one stays
        else:
            self.step.update(*tensors)


class _GrowingAppend:
    """An append step of :meth:`lazyrope.Attention.plan_append`. If a pass does not fit, a larger step replaces it.

    It serves all layers, because the slots of tokens do not depend on the attention.
    """

    def __init__(self, attention: Any, store: DocumentStore) -> None:
        self._attention = attention
        self._store = store
        self.step: Any = None

    def update(self, name: str, tokens: int, views: dict[str, Tensor]) -> None:
        spans = TokenSpans(**{column: views[f"{name}.{column}"] for column in SPANS})
        if self.step is None or tokens > self.step.capacity.tokens:
            self.step = self._attention.plan_append(
                spans,
                self._store.pages,
                capacity=AppendCapacity(power_of_two(tokens)),
                page_size=self._store.page_size,
            )
        else:
            self.step.update(spans, self._store.pages)


def _holds(capacity: StepCapacity, needed: StepCapacity) -> bool:
    return all(have >= need for have, need in zip(_numbers(capacity), _numbers(needed), strict=True))


def _grown(capacity: StepCapacity, needed: StepCapacity) -> StepCapacity:
    """Returns a capacity that holds both, with each new number rounded up to a power of two."""
    pairs = zip(_numbers(capacity), _numbers(needed), strict=True)
    return StepCapacity(*(max(have, power_of_two(need)) if need > 0 else have for have, need in pairs))


class Pass:
    """The attention of one pass. It implements :class:`lazyrope.transformers.hook.Layers`.

    Args:
        backend: The kernels of all layers.
        least: The least capacity of the steps.
        measures: True for passes that measure the attention of questions.
    """

    def __init__(self, backend: Backend, least: StepCapacity = MIN_CAPACITY, *, measures: bool = False) -> None:
        self._backend = backend
        self._attentions = backend.measuring if measures else [kernels.attention for kernels in backend.kernels]
        # The plan of a step depends on the mask, so each group of layers has a step.
        self._arguments = [_GrowingStep(attention, backend.store, least) for attention in self._attentions]
        first = backend.kernels[0].attention
        self._append, self._source, self._target = (_GrowingAppend(first, backend.store) for _ in range(3))
        self._moves = False
        self._grouped = GroupedAttention(backend, least.query_tokens)
        self._group_steps = [_GrowingStep(kernels.attention, backend.store, least) for kernels in backend.kernels]
        self._has_groups = False
        self._num_layers: int | None = None
        self._recorded: list[tuple[Job, slice]] = []
        self._meter = Meter(backend.num_layers, backend.store.device, backend.ranks) if measures else None
        self.out: Tensor | None = None
        self.after_layer: Callable[[], object] | None = None

    def update(self, packed: Packed, views: dict[str, Tensor], work: Work) -> None:
        for arguments in self._arguments:
            arguments.update(packed, views)
        self._append.update("append", packed.size("ids"), views)
        self._moves = bool(work.moves)
        if self._moves:
            tokens = sum(move.length for move in work.moves)
            self._source.update("source", tokens, views)
            self._target.update("target", tokens, views)
        self._num_layers = work.num_layers
        self._recorded = _recorded(work)
        self._has_groups = work.has_groups
        if self._has_groups:
            for step in self._group_steps:
                step.update(packed, views, "group")
            self._grouped.update(views)
        if self._meter is not None:
            self._meter.update(packed, views)

    @property
    def memory(self) -> tuple[Any, ...]:
        """The steps of the pass and its room for masses. A captured graph can be replayed as long as they are equal."""
        moves = (self._source.step, self._target.step) if self._moves else ()
        groups = self._group_steps if self._has_groups else ()
        room = None if self._meter is None else self._meter.capacity
        return *(arguments.step for arguments in (*self._arguments, *groups)), self._append.step, *moves, room

    def attend(self, layer: int, call: AttentionCall, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        backend = self._backend
        backend.check(layer, call)
        for job, rows in self._recorded:
            assert job.queries is not None
            job.queries[layer].append(q[rows].clone())
        group = backend.group_of(layer)
        kernels, attention, step = backend.kernels[group], self._attentions[group], self._arguments[group].step
        pools = backend.store.k_pool(layer), backend.store.v_pool(layer)
        scales, reading = backend.scales_of(layer), backend.reading_of(layer)
        sinks = None if call.sinks is None else call.sinks.float()
        kernels.attention.append(k, v, *pools, self._append.step, **scales)
        if self._moves:
            kernels.reposition(*pools, self._source.step, self._target.step)
        mass = None if self._meter is None else self._meter.masses_of(layer)
        masses = {} if mass is None else {"page_mass": mass}
        rest_lse = self._grouped.lse_of_rest(q) if self._has_groups else None
        out, lse = attention(
            q, *pools, step, out=self.out, lse=rest_lse, return_lse=self._has_groups, sinks=sinks, **reading, **masses
        )
        if self._has_groups:
            out = self._grouped.merged(kernels.attention, self._group_steps[group].step, q, pools, out, lse, reading)
        if self.after_layer is not None:
            self.after_layer()
        if layer + 1 == self._num_layers:
            raise LayersDone
        return out

    def finish(self) -> None:
        """Gives questions what the pass has measured, after the last layer."""
        if self._meter is not None:
            self._meter.finish()

    def release_jobs(self) -> None:
        """Drops the jobs of a pass that has ended or failed, so that the recorded queries can be freed."""
        self._recorded = []


def _recorded(work: Work) -> list[tuple[Job, slice]]:
    """Returns the jobs of a pass whose queries are wanted, with their rows."""
    ends = list(accumulate(n for _, n in work.rows))
    rows = [slice(end - n, end) for (_, n), end in zip(work.rows, ends, strict=True)]
    return [(job, at) for (job, _), at in zip(work.rows, rows, strict=True) if job.queries is not None]


class Runner:
    """Runs passes of a model and samples tokens. A temperature of 0 selects the most probable token."""

    def __init__(
        self, model: Any, backend: Backend, *, cuda_graphs: bool, max_graph_tokens: int, progress: Progress
    ) -> None:
        self.model = model
        self._progress = progress
        self.backend = backend
        self.device = backend.store.device
        self._pass = Pass(backend)
        self._graphs = _Graphs(backend, model.dtype, max_graph_tokens) if cuda_graphs else None

    @cached_property
    def _measuring_pass(self) -> Pass:
        return Pass(self.backend, measures=True)

    def run(self, work: Work, temperatures: list[float]) -> list[int]:
        """Runs a pass and returns, for each job, the token after its last one in the pass."""
        # PyTorch takes streams and graphs of the current device.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            return self._run(work, temperatures)

    def _run(self, work: Work, temperatures: list[float]) -> list[int]:
        packed = pack(work, self.backend.store.page_size)
        views = packed.views(self._to_device(packed))
        temperature = torch.tensor(temperatures, dtype=torch.float32).to(self.device)
        # A captured pass serves any temperature, so it always draws noise.
        if self._graphs is not None and (graph := self._graphs.of(work, packed)) is not None:
            return graph.run(self, work, packed, views, temperature)
        layers = self._pass if packed.masses is None else self._measuring_pass
        try:
            logits = self._run_layers(layers, work, packed, views)
        finally:
            layers.release_jobs()
        _store_logits(work, logits[len(work.rows) :])
        chosen = self.sample(logits[: len(work.rows)], temperature if any(temperatures) else None)
        self.backend.ranks.agree(chosen)
        return [int(token) for token in chosen.tolist()]

    def _run_layers(self, layers: Pass, work: Work, packed: Packed, views: dict[str, Tensor]) -> Tensor:
        """Runs the layers of a pass that is not captured, and returns its logits."""
        layers.update(packed, views, work)
        num_layers = self.model.config.num_hidden_layers
        num_layers = min(num_layers, work.num_layers or num_layers)
        with self._progress.layers(work.num_tokens, num_layers) as after_layer:
            layers.after_layer = after_layer
            with _storing_hidden(self.model.base_model, work):
                rows = torch.cat([views["last"], views["kept"]]) if packed.size("kept") else views["last"]
                logits = self.logits(views["ids"], views["positions"], rows, layers)
        layers.finish()
        return logits

    def _to_device(self, packed: Packed) -> Tensor:
        data = torch.from_numpy(packed.data)
        return data.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else data

    def logits(self, ids: Tensor, positions: Tensor, rows: Tensor, layers: Pass) -> Tensor:
        """Returns the logits after some tokens of the pass, as the model computes them: scaled or capped, in Gemma 2.

        A pass that needs only the first layers has no logits. Its result is 0, for a vocabulary of one token.

        Args:
            ids: The token ids, [tokens].
            positions: Their logical positions, [tokens].
            rows: The indices of the tokens whose logits are wanted, [rows].
            layers: The attention of the pass.

        Returns:
            The logits, float32 [rows, vocabulary size].
        """
        arguments = {"input_ids": ids[None], "position_ids": positions[None], "logits_to_keep": rows}
        try:
            with attending(self.model, layers):
                result = self.model(**arguments, use_cache=False)
        except LayersDone:
            return torch.zeros((len(rows), 1), device=self.device)
        return result.logits[0].float()

    @staticmethod
    def sample(logits: Tensor, temperatures: Tensor | None) -> Tensor:
        """Samples a token from each row of logits.

        The index of the greatest logit / temperature + Gumbel noise is a sample of softmax(logits / temperature). A
        CUDA graph can capture this computation.

        Args:
            logits: Logits, float32 [rows, vocabulary size].
            temperatures: The temperature of each row, [rows], float32. 0: the most probable token. None: 0 for all
                rows, without drawing random numbers.

        Returns:
            The tokens, [rows].
        """
        if temperatures is None:
            return logits.argmax(dim=-1)
        noise = -torch.log(torch.empty_like(logits).exponential_())
        temperature = temperatures[:, None]
        return torch.where(temperature > 0, logits / temperature.clamp_min(1e-6) + noise, logits).argmax(dim=-1)


def _store_logits(work: Work, kept: Tensor) -> None:
    """Stores the rows of kept logits, [rows, vocabulary size], in their jobs."""
    at = 0
    for job, n in work.rows:
        if count := len(job.kept(n)):
            job.logits.append(kept[at : at + count].clone())
            at += count


@contextmanager
def _storing_hidden(base_model: Any, work: Work) -> Iterator[None]:
    """Stores the last hidden states of the jobs that ask for them, when the model without its head returns them."""
    if all(job.hidden is None for job, _ in work.rows):
        yield
        return

    def store(_module: Any, _inputs: Any, result: Any) -> None:
        at = 0
        for job, n in work.rows:
            if job.hidden is not None:
                job.hidden.append(result.last_hidden_state[0, at : at + n].clone())
            at += n

    handle = base_model.register_forward_hook(store)
    try:
        yield
    finally:
        handle.remove()


class _Graphs:
    """The captured passes of a model, by size.

    There is one decode pass for each power of two of requests. Other passes are captured up to max_tokens tokens: the
    host takes longer to launch such a pass than the GPU to run it.
    """

    def __init__(self, backend: Backend, dtype: torch.dtype, max_tokens: int) -> None:
        self._backend = backend
        self._dtype = dtype
        self._max_tokens = max_tokens
        self._pool = torch.cuda.graph_pool_handle()  # one memory pool for all graphs, which never run at the same time
        self._graphs: dict[_GraphKey, _Graph] = {}

    def of(self, work: Work, packed: Packed) -> _Graph | None:
        """Returns the graph for a pass, or None if the pass is not captured."""
        is_decode = packed.max_rows == 1 and not work.moves
        if not is_decode and (work.num_tokens > self._max_tokens or len(work.rows) > GRAPH_JOBS):
            return None
        if any(job.hidden is not None or job.logits_from is not None for job, _ in work.rows) or _recorded(work):
            return None
        if packed.masses is not None and packed.masses.room > GRAPH_MASS_PAGES:
            return None
        tokens, measures = power_of_two(work.num_tokens), packed.masses is not None
        key = _GraphKey(tokens, packed.max_rows > 1, bool(work.moves), work.has_groups, measures, work.num_layers)
        if key not in self._graphs:
            self._graphs[key] = _Graph(self._backend, self._dtype, self._pool, key)
        return self._graphs[key]


class _GraphKey(NamedTuple):
    """The properties that the passes of one graph have in common.

    Attributes:
        tokens: The most tokens.
        has_chunks: True if a job may have several tokens.
        has_moves: True if stored tokens are copied before.
        has_groups: True if a job attends to a group of segments apart.
        measures: True if attention to pages is measured.
        num_layers: The first layers of the model that run, or None for all.
    """

    tokens: int
    has_chunks: bool
    has_moves: bool
    has_groups: bool
    measures: bool
    num_layers: int | None

    @property
    def jobs(self) -> int:
        """The most jobs."""
        return min(self.tokens, GRAPH_JOBS) if self.has_chunks else self.tokens


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the stream on which all engines capture: cuBLAS keeps 32 MiB for each stream that it has seen.

    PyTorch assigns its streams round-robin from a pool for each priority. If other code got this stream by chance, its
    work would be captured. Few programs use this priority.
    """
    return torch.cuda.Stream(device, priority=-3)


class _Graph:
    """A captured pass, which serves all passes with its key."""

    def __init__(self, backend: Backend, dtype: torch.dtype, pool: Any, key: _GraphKey) -> None:
        device, spec, tokens, jobs = backend.store.device, backend.spec, key.tokens, key.jobs
        self.key = key
        self._pool = pool
        # The capacity covers all passes of this size, so that larger ones do not force another capture. The numbers of
        # segments and of pages that are measured may grow.
        capacity = StepCapacity(jobs, 1, tokens, tokens if key.has_chunks else 1)
        self._pass = Pass(backend, capacity, measures=key.measures)
        # The kernels do not write rows beyond the pass's tokens, so these rows must hold finite numbers.
        self._pass.out = torch.zeros((tokens, spec.num_q_heads, spec.head_dim), dtype=dtype, device=device)
        self._ids, self._positions = (torch.zeros(tokens, dtype=torch.int32, device=device) for _ in range(2))
        self._last = torch.zeros(jobs, dtype=torch.int32, device=device)
        self._temperatures = torch.zeros(jobs, dtype=torch.float32, device=device)
        self._captured: tuple[Any, ...] | None = None
        self._graph: Any = None
        self._chosen: Tensor = None

    def run(
        self, runner: Runner, work: Work, packed: Packed, views: dict[str, Tensor], temperatures: Tensor
    ) -> list[int]:
        tokens, jobs = work.num_tokens, len(work.rows)
        self._pass.update(packed, views, work)
        self._ids[:tokens].copy_(views["ids"])
        self._positions[:tokens].copy_(views["positions"])
        self._last[:jobs].copy_(views["last"])
        self._temperatures[:jobs].copy_(temperatures)
        if self._captured != self._pass.memory:
            self._capture(runner)
        self._graph.replay()
        self._pass.finish()
        return [int(token) for token in self._chosen[:jobs].tolist()]

    def _forward(self, runner: Runner) -> Tensor:
        return runner.sample(runner.logits(self._ids, self._positions, self._last, self._pass), self._temperatures)

    def _capture(self, runner: Runner) -> None:
        stream = _capture_stream(runner.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # a warm-up: libraries allocate and choose kernels before the capture
            self._forward(runner)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # "thread_local" lets other threads allocate during the capture.
        with (
            _paused_garbage_collection(),
            torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"),
        ):
            self._chosen = self._forward(runner)
        self._graph = graph  # the old graph stays alive until here, for the pool's memory is freed with its last graph
        self._captured = self._pass.memory


@contextmanager
def _paused_garbage_collection() -> Iterator[None]:
    """Pauses garbage collection, which might destroy another graph: that breaks a capture."""
    with _CAPTURING:  # one capture at a time, for there is one garbage collector
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()
