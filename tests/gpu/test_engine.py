"""The engine's CUDA graphs give the text of plain passes, and each size is captured once."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import attach, passes

from tests.support.serving import assert_agrees, assert_nothing_is_held, run, serve_at_once
from tools.rag.model import tiny_llama


@pytest.fixture
def captures(monkeypatch) -> list[tuple[int, int]]:
    """Returns the sizes (tokens, jobs) of the graphs that were captured."""
    sizes: list[tuple[int, int]] = []
    capture = passes._Graph._capture

    def counted(graph: Any, runner: Any) -> None:
        sizes.append((graph.key.tokens, graph.key.jobs))
        capture(graph, runner)

    monkeypatch.setattr(passes._Graph, "_capture", counted)
    return sizes


GRAPH_TOKENS = pytest.mark.parametrize("max_graph_tokens", [0, 256])


@GRAPH_TOKENS
def test_graphs_give_the_text_of_plain_passes(model, exact, captures, max_graph_tokens):
    engine = attach(model, budget="256MiB", max_requests=8, max_graph_tokens=max_graph_tokens)
    plain = attach(model, budget="256MiB", max_requests=8, cuda_graphs=False)
    for generation in run(engine, 1, 40):
        assert_agrees(generation, plain, exact)
    assert (8, 8) in captures and ((64, 32) in captures) == (max_graph_tokens > 0)
    assert_nothing_is_held(engine)


@GRAPH_TOKENS
def test_a_graph_is_captured_once(model, captures, max_graph_tokens):
    """Requests differ in context and documents, but steps grow in the first rounds only."""
    engine = attach(model, budget="256MiB", max_requests=8, max_graph_tokens=max_graph_tokens)
    for seed in range(4):
        run(engine, seed, 30)
    before = len(captures)
    for seed in range(4):
        run(engine, seed, 30)
    assert len(captures) == before
    assert len(set(captures)) <= 12, "too many sizes"


def test_the_only_graph_can_be_captured_again(model, captures):
    """More documents than before need a new capture, which reuses the memory of the replaced graph."""
    engine = attach(model, budget="256MiB", max_requests=1, max_graph_tokens=0)
    for count in (1, 9, 40):
        engine.generate([1, 2], [[3, n] for n in range(count)], max_new_tokens=4, stop=[]).result()
    assert captures == [(1, 1)] * 3


def test_garbage_is_not_collected_during_a_capture(model, captures, monkeypatch):
    """Collecting a graph during a capture would break the capture and the random number generator."""

    def graph_in_a_cycle():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.zeros(1, device="cuda").add_(1)
        return [graph]

    old = [graph_in_a_cycle()]
    sample = passes.Runner.sample

    def sample_and_leave_garbage(*args):
        if torch.cuda.is_current_stream_capturing() and old:
            cycle = old.pop()
            cycle.append(cycle)
            del cycle
            _ = [[n] for n in range(5000)]  # enough to trigger the collector if it were enabled
        return sample(*args)

    monkeypatch.setattr(passes.Runner, "sample", staticmethod(sample_and_leave_garbage))
    generation = attach(model, budget="256MiB").generate([1, 2, 3], max_new_tokens=8, stop=[])
    assert len(generation.result()) == 8 and captures and not old
    torch.rand(1, device="cuda")


def test_engines_of_several_models_capture_in_threads(captures):
    """The work of one thread must not break the capture of another."""
    engines = [attach(tiny_llama(dtype=torch.bfloat16, device="cuda", seed=i), budget="64MiB") for i in range(4)]
    with ThreadPoolExecutor(len(engines)) as threads:
        for seed in range(3):
            list(threads.map(lambda engine, seed=seed: run(engine, seed, 10), engines))
    assert len(captures) >= 4 * len(engines)
    for engine in engines:
        assert_nothing_is_held(engine)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_engines_on_two_gpus_agree_with_plain_passes(model, exact, captures):
    engines = [attach(copy.deepcopy(model).to(f"cuda:{i}"), budget="64MiB") for i in range(2)]
    alone = attach(model, budget="64MiB", cuda_graphs=False)
    serve_at_once(engines, alone, exact, rounds=5, count=20)
    assert len(captures) > 10


def test_streams_of_other_threads_are_not_captured(model, captures):
    """PyTorch takes its streams from a ring, so another thread may get the stream of a capture."""
    done = threading.Event()
    failures: list[Exception] = []

    def use_streams() -> None:
        x = torch.ones(1000, device="cuda")
        try:
            while not done.is_set():
                stream = torch.cuda.Stream()
                with torch.cuda.stream(stream):
                    x + 1
                torch.cuda.current_stream().wait_stream(stream)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=use_streams)
    thread.start()
    try:
        for seed in range(3):
            run(attach(model, budget="64MiB"), seed, 20)
    finally:
        done.set()
        thread.join()
    assert not failures and len(captures) > 10


def test_deleting_an_engine_frees_its_memory(model):
    """The memory is freed at once, without a garbage collection."""
    run(attach(model, budget="64MiB", max_requests=8), 1, 30)  # libraries allocate their permanent memory here
    before = torch.cuda.memory_allocated()
    engine = attach(model, budget="256MiB", max_requests=8)
    generations = run(engine, 1, 30)
    assert torch.cuda.memory_allocated() > before + (200 << 20)
    del engine, generations
    assert torch.cuda.memory_allocated() <= before + (20 << 20)


def test_memory_does_not_grow_from_request_to_request(model):
    engine = attach(model, budget="256MiB", max_requests=8)
    run(engine, 1, 30)
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        run(engine, 1, 30)
    assert torch.cuda.memory_allocated() <= before
