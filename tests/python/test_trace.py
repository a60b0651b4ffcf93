"""``LAZYROPE_TRACE`` writes calls as JSON in Chrome's trace format."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import lazyrope
import pytest

from tools.markdown import code_blocks

README = Path(__file__).parents[2] / "README.md"
STORE = """
from lazyrope.documents import DocumentStore
store = DocumentStore(spec, num_layers=1, budget="1MiB", model="tiny", device=device)
store.acquire([1, 2, 3])
try:
    kernel(q, k_pool, v_pool, step, out=q)
except lazyrope.SpecError:
    pass
"""


def run(code: str, trace: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LAZYROPE_TRACE": str(trace)}
    return subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=False)


@pytest.mark.skipif("emu:sm_80" not in lazyrope.archs(), reason="this build has no emulator")
def test_a_trace_has_each_call_with_shapes_and_durations(tmp_path):
    trace = tmp_path / "trace.json"
    (example,) = code_blocks(README.read_text(), "python")
    result = run(example + STORE, trace)
    assert result.returncode == 0, result.stderr
    events = json.loads(trace.read_text())
    names = {event["name"] for event in events}
    expected = {"compile", "get a kernel", "load a kernel", "plan", "plan an append", "append", "attend"}
    assert names == expected | {"DocumentStore.acquire"}
    for event in events:
        assert event["ph"] == "X" and event["dur"] >= 0 and event["pid"] == events[0]["pid"]
    first, *_, last = [event for event in events if event["name"] == "attend"]
    assert first["args"] == {"q": "bfloat16 [2, 32, 128]", "k_pool": first["args"]["k_pool"]}
    assert first["args"]["k_pool"].startswith("bfloat16 [")
    assert last["args"]["failed"]
    # A call contains the calls that it makes.
    (compiled,) = [event for event in events if event["name"] == "compile"]
    kernels = [event for event in events if event["name"] == "get a kernel"]
    assert len(kernels) == 5 and {event["args"]["from"] for event in kernels} <= {"disk", "compiler"}
    assert all(compiled["ts"] <= event["ts"] <= compiled["ts"] + compiled["dur"] for event in kernels)
    before = len(events)
    run(example, trace)
    assert len(json.loads(trace.read_text())) > before


def test_a_file_that_is_no_trace_is_left_alone(tmp_path):
    trace = tmp_path / "notes.txt"
    trace.write_text("precious")
    code = "import lazyrope\nlazyrope.compile(lazyrope.AttentionSpec(head_dim=64, num_q_heads=2, num_kv_heads=1, "
    code += "rope=lazyrope.rope.none()), 'sm_80')"
    result = run(code, trace)
    assert trace.read_text() == "precious"
    assert f"there is no trace: {trace} is there already and is not a trace; remove it" in result.stderr
