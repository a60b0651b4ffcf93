"""tools/check_layers.py names the file and line of each violation, and complains about nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import check_layers

ROOT = Path(__file__).parents[2]

GOOD = {
    "codegen/arch.h": '#include <string>\n#include "codegen/error.h"\n#include "templates/abi/step.h"\n',
    "codegen/error.h": "",
    "cache/key.h": "#include <filesystem>\n",
    "runtime/base/config.cpp": '#include "codegen/arch.h"\nconst char* home = std::getenv("HOME");\n',
    "runtime/step/step.h": '#include <cuda.h>\n#include "cache/key.h"\n#include "templates/abi/step.h"\n',
    "runtime/step/step_layout.cpp": '#include "templates/planner/policy.h"\n',
    "python/module.cpp": '#include "runtime/step/step.h"\n#include "templates/abi/step.h"\n',
    "python/lazyrope/rope.py": "from ._core import Rope\n",
    "tools/lazyrope.cpp": '#include "codegen/arch.h"\n#include "runtime/step/step.h"\n',
    "tests/unit/step_test.cpp": '#include "runtime/step/step.h"\n#include "tests/support/cases.h"\n',
    "tests/support/cases.h": "",
    "tests/isa/replay_test.cpp": '#include "tests/isa/kernels/params.h"\n',
    "tests/isa/kernels/params.h": '#include "abi/step.h"\n',
    "tests/isa/kernels/sync.cuh": '#include "isa/sync.cuh"\n#include "tests/isa/kernels/params.h"\n',
    "templates/abi/step.h": "",
    "templates/isa/types.cuh": '#include "abi/step.h"\n',
    "templates/isa/ptx/sync.cuh": '#include "isa/types.cuh"\n__device__ void f() { asm volatile("x;"); }\n',
    "templates/isa/emu/sync.cuh": '#include "isa/types.cuh"\nint f() { return __builtin_clz(1); }\n',
    "templates/planner/policy.h": '#include "abi/step.h"\n',
    "templates/tile/element.cuh": '#include "isa/sync.cuh"\n',
    "templates/ops/combine.cuh": '#include "abi/step.h"\n#include "ops/softmax.cuh"\n',
    "templates/ops/softmax.cuh": '#include "tile/element.cuh"  // no __shfl_sync\n/* nor\nthreadIdx */\n',
    "templates/family/sm80/tile.cuh": '#include "ops/combine.cuh"\n',
    "templates/kernel/attend.cu.in": '#include "${family}"\n#include "${rope}"\n',
}


def complaints(tmp_path: Path, changes: dict[str, str | None]) -> list[str]:
    for path, text in (GOOD | changes).items():
        if text is not None:
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return check_layers.complaints(check_layers.sources(tmp_path))


def test_a_good_tree_has_no_complaints(tmp_path):
    assert complaints(tmp_path, {}) == []


DOWN = "kernel > family, planner > pipeline > ops > tile > isa > abi"
RUNTIME_DOWN = "runtime > tuning > attention > step > engine > spec > emulator > driver > base"

BAD = [
    (
        "codegen/arch.h",
        '\n#include "runtime/step/step.h"\n',
        'codegen/arch.h:2: codegen must not include "runtime/step/step.h"; it may include: codegen, templates/abi',
    ),
    (
        "codegen/arch.h",
        '#include "templates/ops/combine.cuh"\n',
        'codegen/arch.h:1: codegen must not include "templates/ops/combine.cuh"; '
        "it may include: codegen, templates/abi",
    ),
    ("codegen/arch.h", "#include <cuda.h>\n", "codegen/arch.h:1: codegen must not include <cuda.h>"),
    ("codegen/arch.h", "#  include <fstream>\n", "codegen/arch.h:1: codegen must not include <fstream>"),
    ("cache/key.h", "#include <nvrtc.h>\n", "cache/key.h:1: cache must not include <nvrtc.h>"),
    (
        "cache/key.h",
        '#include "codegen/arch.h"\n',
        'cache/key.h:1: cache must not include "codegen/arch.h"; it may include: cache',
    ),
    (
        "runtime/step/step.h",
        '#include "templates/isa/types.cuh"\n',
        'runtime/step/step.h:1: runtime must not include "templates/isa/types.cuh"; '
        "it may include: runtime, cache, codegen, templates/abi, templates/planner/policy.h",
    ),
    (
        "runtime/step/step.h",
        '#include "abi/step.h"\n',
        'runtime/step/step.h:1: "abi/step.h" is in no layer; give paths from the root, <...> for libraries',
    ),
    (
        "runtime/step/step.h",
        '#include "python/bindings.h"\n',
        'runtime/step/step.h:1: runtime must not include "python/bindings.h"; '
        "it may include: runtime, cache, codegen, templates/abi, templates/planner/policy.h",
    ),
    (
        "python/module.cpp",
        '#include "tools/table.h"\n',
        'python/module.cpp:1: python must not include "tools/table.h"; '
        "it may include: python, cache, codegen, runtime, templates/abi",
    ),
    (
        "tools/lazyrope.cpp",
        '#include "python/bindings.h"\n',
        'tools/lazyrope.cpp:1: tools must not include "python/bindings.h"; '
        "it may include: tools, cache, codegen, runtime, templates/abi",
    ),
    (
        "tests/unit/step_test.cpp",
        '#include "tools/table.h"\n',
        'tests/unit/step_test.cpp:1: tests must not include "tools/table.h"; '
        "it may include: tests, cache, codegen, python, runtime, templates",
    ),
    (
        "tools/lazyrope.cpp",
        '#include "tests/support/cases.h"\n',
        'tools/lazyrope.cpp:1: tools must not include "tests/support/cases.h"; '
        "it may include: tools, cache, codegen, runtime, templates/abi",
    ),
    (
        "python/lazyrope/rope.py",
        "import os\nfrom tests.support import cases\n",
        "python/lazyrope/rope.py:2: python must not import tests.support; only tests may",
    ),
    (
        "templates/ops/combine.cuh",
        '#pragma once\n\n#include "pipeline/ring.cuh"\n',
        f'templates/ops/combine.cuh:3: ops must not include "pipeline/ring.cuh"; downwards is: {DOWN}',
    ),
    (
        "templates/planner/units.cuh",
        '#include "family/sm80/tile.cuh"\n',
        f'templates/planner/units.cuh:1: planner must not include "family/sm80/tile.cuh"; downwards is: {DOWN}',
    ),
    (
        "runtime/engine/engine.h",
        '#include "runtime/step/step.h"\n',
        'runtime/engine/engine.h:1: runtime/engine must not include "runtime/step/step.h"; '
        f"downwards is: {RUNTIME_DOWN}",
    ),
    (
        "runtime/other/file.h",
        '#include "runtime/step/step.h"\n',
        f"runtime/other/file.h:1: runtime/other is on no level of runtime/; these are: {RUNTIME_DOWN}",
    ),
    (
        "templates/abi/step.h",
        '#include "isa/types.cuh"\n',
        f'templates/abi/step.h:1: abi must not include "isa/types.cuh"; downwards is: {DOWN}',
    ),
    (
        "templates/tile/element.cuh",
        '#include "isa/ptx/sync.cuh"\n',
        'templates/tile/element.cuh:1: "isa/ptx/sync.cuh" chooses an instruction set; include "isa/sync.cuh"',
    ),
    (
        "templates/tile/element.cuh",
        '#include "isa/math.cuh"\n',
        'templates/tile/element.cuh:1: "isa/math.cuh" does not exist in templates/',
    ),
    (
        "templates/family/sm80/tile.cuh",
        '#include "${rope}"\n',
        'templates/family/sm80/tile.cuh:1: "${rope}": only files of kernel/ have placeholders',
    ),
    (
        "templates/tile/element.cuh",
        '#include "codegen/arch.h"\n',
        f'templates/tile/element.cuh:1: "codegen/arch.h" is on no level of templates/; these are: {DOWN}',
    ),
    ("templates/abi/step.h", "#include <cstdint>\n", "templates/abi/step.h:1: templates must not include <cstdint>"),
    (
        "templates/isa/ptx/sync.cuh",
        "#include <cuda_fp16.h>\n",
        "templates/isa/ptx/sync.cuh:1: templates must not include <cuda_fp16.h>",
    ),
    (
        "templates/loose.cuh",
        '#include "abi/step.h"\n',
        f"templates/loose.cuh:1: templates/loose.cuh is on no level of templates/; these are: {DOWN}",
    ),
    (
        "runtime/step/step.h",
        'int f();\nauto x = std::getenv("X");\n',
        "runtime/step/step.h:2: getenv: only runtime/base/config.cpp reads the environment",
    ),
    (
        "python/lazyrope/rope.py",
        'import os\nx = os.environ.get("X")\n',
        "python/lazyrope/rope.py:2: environ.get: only runtime/base/config.cpp reads the environment",
    ),
    (
        "tests/isa/kernels/sync.cuh",
        '#include "tile/element.cuh"\n',
        'tests/isa/kernels/sync.cuh:1: conformance kernels must not include "tile/element.cuh"; '
        "they may include: isa, abi, tests/isa/kernels",
    ),
    (
        "tests/isa/kernels/sync.cuh",
        '#include "isa/emu/sync.cuh"\n',
        'tests/isa/kernels/sync.cuh:1: "isa/emu/sync.cuh" chooses an instruction set; include "isa/sync.cuh"',
    ),
    (
        "tests/isa/kernels/sync.cuh",
        '#include "isa/math.cuh"\n',
        'tests/isa/kernels/sync.cuh:1: "isa/math.cuh" does not exist in templates/',
    ),
    (
        "tests/isa/kernels/sync.cuh",
        '#include "tests/isa/kernels/math.cuh"\n',
        'tests/isa/kernels/sync.cuh:1: "tests/isa/kernels/math.cuh" does not exist',
    ),
    (
        "tests/isa/kernels/params.h",
        "#include <cstdint>\n",
        "tests/isa/kernels/params.h:1: conformance kernels must not include <cstdint>",
    ),
    ("cache/key.h", "\n" * 601, "cache/key.h:601: 601 lines; at most 600 are allowed: divide it"),
]


@pytest.mark.parametrize(("path", "text", "complaint"), BAD, ids=[complaint for *_, complaint in BAD])
def test_a_violation_is_reported(tmp_path, path, text, complaint):
    assert complaints(tmp_path, {path: text}) == [complaint]


WORDS = [
    'asm("bar.sync 0;");',
    "int i = threadIdx.x;",
    "__syncthreads();",
    "x = __shfl_down_sync(m, x, 1);",
    "__device__ void f();",
    "int j = blockIdx.x;",
    "atomicAdd(p, 1);",
    "return __builtin_clz(1);",
]


@pytest.mark.parametrize(
    "path", ["templates/tile/element.cuh", "templates/isa/types.cuh", "tests/isa/kernels/sync.cuh"]
)
@pytest.mark.parametrize("word", WORDS)
def test_cuda_outside_isa_ptx_is_reported(tmp_path, word, path):
    (complaint,) = complaints(tmp_path, {path: f"// why\n{word}\n"})
    assert complaint.startswith(f"{path}:2: ")
    assert complaint.endswith(" belongs in templates/isa/ptx")


def test_cuda_in_the_emulator_is_reported(tmp_path):
    (complaint,) = complaints(tmp_path, {"templates/isa/emu/sync.cuh": "void f() { __syncwarp(); }\n"})
    assert complaint == "templates/isa/emu/sync.cuh:1: __syncwarp belongs in templates/isa/ptx"


@pytest.mark.parametrize(("isa", "other"), [("ptx", "emu"), ("emu", "ptx")])
def test_a_header_that_one_isa_lacks_is_reported(tmp_path, isa, other):
    assert complaints(tmp_path, {f"templates/isa/{isa}/math.cuh": ""}) == [
        f"templates/isa/{isa}/math.cuh:1: templates/isa/{other}/math.cuh is missing; both must offer it"
    ]


def test_literals_and_comments_are_not_code(tmp_path):
    text = 'auto a = R"(\n#include "tools/table.h"\n)";\n// getenv\nint n = 10\'000;  /* getenv */ auto b = "getenv";\n'
    assert complaints(tmp_path, {"runtime/step/step.h": text}) == []


def test_the_command_prints_complaints_and_fails(tmp_path):
    complaints(tmp_path, {"cache/key.h": '#include "runtime/step/step.h"\n'})
    command = [sys.executable, ROOT / "tools" / "check_layers.py", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("cache/key.h:1: cache must not include")
    assert result.stdout.endswith("files, 1 complaint\n")


def test_an_empty_tree_fails(tmp_path):
    command = [sys.executable, ROOT / "tools" / "check_layers.py", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "has none of the layers" in result.stderr
