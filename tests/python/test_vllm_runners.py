"""Tests how a worker learns the requests of a pass from vLLM's model runners. It needs no vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lazyrope.vllm.runners import request_names


def test_the_v1_runner_has_the_requests_in_its_batch():
    runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=["a", "b"]))
    names = request_names(runner, is_v2=False)
    assert names() == ["a", "b"]
    runner.input_batch = SimpleNamespace(req_ids=["c"])  # vLLM makes a new batch when the pool is allocated
    assert names() == ["c"]


def test_the_v2_runner_sorts_the_requests_of_each_pass():
    calls: list[Any] = []
    seen: list[Any] = []

    def prepare(input_batch: Any, *args: Any, **options: Any) -> str:
        calls.append((input_batch.req_ids, args, options))
        seen.append(names())  # metadata is built in here
        return "metadata"

    state = SimpleNamespace(prepare_attn=prepare)
    runner = SimpleNamespace(model_state=state)
    names = request_names(runner, is_v2=True)
    assert state.prepare_attn(SimpleNamespace(req_ids=["b", "a"]), "mode", for_capture=False) == "metadata"
    names = request_names(runner, is_v2=True)  # before each pass, without another layer of observation
    assert state.prepare_attn(SimpleNamespace(req_ids=["c"]), "mode") == "metadata"
    assert seen == [["b", "a"], ["c"]]
    assert calls == [(["b", "a"], ("mode",), {"for_capture": False}), (["c"], ("mode",), {})]
