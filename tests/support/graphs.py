"""Captures passes of the engine without a GPU: a replay runs the pass again on the tensors of its capture."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lazyrope.transformers import Engine, passes

from tests.support.serving import make_engine


class FakeGraphs:
    """Replaces the capture of CUDA graphs on the CPU.

    Attributes:
        captures: The key of each capture, in their order.
        replays: The key of each replay.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.captures: list[Any] = []
        self.replays: list[Any] = []
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
        patch.setattr(passes._Graph, "_capture", lambda graph, runner: self._capture(graph, runner))

    def engine(self, model: Any, **options: Any) -> Engine:
        """Returns an engine on the CPU that captures its passes."""
        plain = make_engine(model, **options)
        for name in ("arch", "budget", "page_size"):
            options.pop(name, None)
        return Engine(model, plain.store, plain._runner.backend, cuda_graphs=True, **options)

    def _capture(self, graph: Any, runner: passes.Runner) -> None:
        self.captures.append(graph.key)
        graph._forward(runner)
        captured, addresses = graph._pass.memory, _addresses(graph)

        def replay() -> None:
            assert graph._pass.memory == captured and _addresses(graph) == addresses
            self.replays.append(graph.key)
            if graph._pass._meter is not None:
                graph._pass._meter._masses.fill_(torch.nan)  # the replay must write all that is read after it
            graph._chosen = graph._forward(runner)

        graph._graph, graph._captured = SimpleNamespace(replay=replay), captured


def _addresses(graph: Any) -> list[int]:
    """Returns where the tensors are that a graph reads and writes, beside those of its steps."""
    tensors = [graph._ids, graph._positions, graph._last, graph._temperatures, graph._pass.out]
    if graph._pass._meter is not None:
        tensors.append(graph._pass._meter._masses)
    return [tensor.data_ptr() for tensor in tensors]
