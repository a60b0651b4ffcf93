"""Runs every row of tests/support/bad_inputs.json, as tests/unit/bad_inputs_test.cpp does in C++."""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lazyrope
import pytest
import torch

from tests.support.metadata import append_arguments, capacity_of, step_arguments

TABLE = json.loads((Path(__file__).parents[1] / "support" / "bad_inputs.json").read_text())
BASE = TABLE["base"]
HAS_GPU = torch.cuda.is_available()

Row = dict[str, Any]

# This program compiles in a new process, which reads the environment again, and prints the result or the error.
COMPILE = """
import base64, json, pickle, sys, lazyrope
arguments = json.loads(sys.argv[1])
try:
    spec = lazyrope.AttentionSpec(rope=lazyrope.Rope(**arguments["rope"]), **arguments["spec"])
    config = None
    if arguments["config"]:
        default = lazyrope.configs(spec, arguments["arch"])[0]
        names = [name for name in dir(default.decode) if not name.startswith("_")]
        fields = {name: getattr(default.decode, name) for name in names} | arguments["config"]
        config = lazyrope.KernelConfig(decode=lazyrope.TileConfig(**fields), prefill=default.prefill)
    result = lazyrope.compile(spec, arguments["arch"], config=config).from_cache
except Exception as error:
    result = error
print(base64.b64encode(pickle.dumps(result)).decode())
"""


def compile_elsewhere(row: Row, directory: Path) -> bool:
    """Compiles in a new process and returns whether the kernels came from the cache.

    Raises the error of that process, whose warnings go to stderr.
    """
    spec = dict(BASE["spec"])
    arguments = {"rope": spec.pop("rope"), "spec": spec, "arch": row["arch"], "config": row.get("config")}
    variables = {"LAZYROPE_CACHE_DIR": "none"} | row.get("environment", {})
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAZYROPE_")}
    environment |= {name: value.replace("{dir}", str(directory)) for name, value in variables.items()}
    command = [sys.executable, "-c", COMPILE, json.dumps(arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr}"
    sys.stderr.write(done.stderr)
    result = pickle.loads(base64.b64decode(done.stdout))
    if isinstance(result, Exception):
        raise result
    return result


def damage(directory: Path, how: str) -> None:
    for path in directory.iterdir():
        content = path.read_bytes()
        damaged = {"none": content, "truncate": content[: len(content) // 2], "flip": content[:-1] + b"~"}
        path.write_bytes(damaged[how])


class Interpreter:
    """Runs the action of one row."""

    def __init__(self, row: Row, build: Callable[..., lazyrope.Attention], device: str, directory: Path) -> None:
        self.row, self.change = row, row.get("change", {})
        self.build, self.device, self.directory = build, device, directory
        self.check = row.get("check", False)

    def run(self) -> None:
        getattr(self, self.row["do"])()

    def spec(self) -> lazyrope.AttentionSpec:
        fields = BASE["spec"] | self.row.get("spec", {})
        if self.row["do"] == "spec":
            fields |= self.change
        return lazyrope.AttentionSpec(rope=lazyrope.Rope(**fields.pop("rope")), **fields)

    def compile(self) -> None:
        if "damage" in self.row:
            compile_elsewhere(self.row, self.directory)
            damage(self.directory, self.row["damage"])
        from_cache = compile_elsewhere(self.row, self.directory)
        assert from_cache == self.row.get("from_cache", from_cache)

    def kernel(self) -> lazyrope.Attention:
        if "arch" in self.row:
            return lazyrope.compile(self.spec(), self.row["arch"])
        return self.build(self.spec())

    def tensor(self, name: str, values: torch.Tensor) -> torch.Tensor | None:
        """Returns `values` with the row's dtype, shape, strides, offset or device."""
        change = self.change.get(name, {})
        if change is None:
            return None
        device = self.other_device() if "device" in change else self.device
        dtype = getattr(torch, change["dtype"]) if "dtype" in change else values.dtype
        values = values.to(device, dtype)
        shape = change.get("shape", list(values.shape))
        if not {"shape", "strides", "offset"} & change.keys():
            return values
        strides = change.get("strides", torch.empty(shape).stride())
        memory = torch.zeros(1 << 17, dtype=dtype, device=device)
        return memory.as_strided(shape, strides, change.get("offset", 0))

    def other_device(self) -> str:
        if not HAS_GPU:
            pytest.skip("there is no other device")
        return "cpu"

    def ints(self, group: str, change: Row | None = None) -> dict[str, torch.Tensor | None]:
        result = {}
        for name, values in BASE[group].items():
            given = self.change.get(name) if change is None else None
            values = given if isinstance(given, list) else values
            tensor = torch.tensor(values, dtype=torch.int32, device=self.device)
            result[name] = tensor if isinstance(given, list) or change is not None else self.tensor(name, tensor)
        return result

    def data(self, *names: str) -> list[torch.Tensor | None]:
        def zeros(name: str) -> torch.Tensor:
            dtype = torch.float32 if name in ("lse", "sinks") else torch.bfloat16
            return torch.zeros(BASE["tensors"][name], dtype=dtype)

        return [self.tensor(name, zeros(name)) for name in names]

    def options(self, *names: str) -> Row:
        return {name: self.change[name] for name in names if name in self.change}

    def plan(self) -> lazyrope.Step:
        tensors, options = self.ints("step"), self.options("page_size", "layout")
        if "capacity" in self.change:
            options["capacity"] = capacity_of(tensors, **self.change["capacity"])
        return self.kernel().plan(**step_arguments(tensors), **options, check=self.check)

    def update(self) -> None:
        step = self.kernel().plan(**step_arguments(self.ints("step", change={})))
        step.update(**step_arguments(self.ints("step")), check=self.check)

    def attend(self) -> None:
        kernel = self.kernel()
        step = kernel.plan(**step_arguments(self.ints("step")), **self.options("page_size", "layout"))
        q, k_pool, v_pool, out, lse = self.data("q", "k_pool", "v_pool", "out", "lse")
        takes_sinks = kernel.spec.sinks or "sinks" in self.change
        (sinks,) = self.data("sinks") if takes_sinks else (None,)
        kernel(q, k_pool, v_pool, step, out=out, lse=lse, sinks=sinks, check=self.check)

    def plan_append(self, check: bool | None = None) -> lazyrope.AppendStep:
        check = self.check if check is None else check
        capacity = lazyrope.AppendCapacity(self.change.get("tokens", 11))
        return self.kernel().plan_append(**append_arguments(self.ints("append")), capacity=capacity, check=check)

    def append(self) -> None:
        step = self.plan_append(check=False)
        self.kernel().append(*self.data("k", "v", "k_pool", "v_pool"), step, check=self.check)

    def reposition(self) -> None:
        mover = lazyrope.compile_reposition(self.spec(), self.row.get("arch", None if HAS_GPU else "emu:sm_80"))
        capacity = lazyrope.AppendCapacity(self.change.get("tokens", 11))
        options = {"capacity": capacity} | self.options("page_size", "layout")
        source = self.kernel().plan_append(**append_arguments(self.ints("append")), **options)
        target = self.kernel().plan_append(
            **append_arguments(self.ints("target", change={})), capacity=lazyrope.AppendCapacity(11)
        )
        mover(*self.data("k_pool", "v_pool"), source, target, check=self.check)


@pytest.fixture
def interpret(build, device, tmp_path):
    return lambda row: Interpreter(row, build, device, tmp_path).run()


@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: row["name"])
def test_bad_input_gets_its_error(row, interpret, capfd):
    if row.get("only", "python") != "python":
        pytest.skip("Python has no such thing")
    if row.get("needs") == "no gpu" and HAS_GPU:
        pytest.skip("there is a GPU")
    if (row.get("arch") or "").startswith("emu") and row["arch"] not in lazyrope.archs():
        pytest.skip("built without the emulator")
    if row["error"] is None:
        interpret(row)
        text = capfd.readouterr().err
        assert bool(text) == bool(row["says"])
    else:
        with pytest.raises(getattr(lazyrope, row["error"])) as raised:
            interpret(row)
        text = str(raised.value)
        assert_survives_pickling(raised.value)
    for part in row["says"]:
        assert part in text


@pytest.mark.parametrize("action", ["spec", "plan", "update", "attend", "plan_append", "append", "reposition"])
def test_the_unchanged_base_is_accepted(action, interpret):
    """Without a change the action succeeds, so a row's error comes from its change."""
    interpret({"do": action, "check": True})


def assert_survives_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)
    assert vars(again) == vars(error)


def test_errors_survive_pickling_with_their_fields():
    assert_survives_pickling(lazyrope.SpecError("head_dim = 72"))
    assert_survives_pickling(lazyrope.CacheError("cannot list"))
    compile_error = lazyrope.CompileError(
        "failed", source="a.cu", options=["-O3"], log="log", excerpt="1", advice="fix"
    )
    assert_survives_pickling(compile_error)
    assert compile_error.options == ["-O3"] and compile_error.advice == "fix"
    driver_error = lazyrope.DriverError("failed", call="cuInit", code=100, name="CUDA_ERROR_NO_DEVICE", advice="look")
    assert_survives_pickling(driver_error)
    assert driver_error.code == 100 and driver_error.call == "cuInit"


def test_errors_of_frameworks_and_casts_are_one_line(build, device):
    kernel = build(lazyrope.AttentionSpec(head_dim=64, num_q_heads=4, num_kv_heads=2, rope=lazyrope.rope.none()))
    zero, none = (torch.zeros(n, dtype=torch.int32, device=device) for n in (1, 0))

    def error_of(*q_indptr: Any, **named: Any) -> str:
        with pytest.raises(lazyrope.SpecError) as error:
            kernel.plan(*q_indptr, none, lazyrope.Segments(zero, none, none, none, none), none, **named)
        return str(error.value)

    assert error_of(zero, capacity={1: 2}) == "capacity is a dict; it must be a lazyrope.StepCapacity"
    assert error_of(none) == "q_indptr has no element; it must have one more than requests"
    meta = error_of(torch.zeros(1, dtype=torch.int32, device="meta"))
    assert meta.startswith("q_indptr (Tensor) cannot be used as a tensor: ") and "\n" not in meta
    with pytest.raises(lazyrope.SpecError, match='rope_theta = "NaN" has the wrong type'):
        lazyrope.AttentionSpec.from_hf(
            {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "rope_theta": float("nan")}
        )
