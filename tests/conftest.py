"""Where tests run: on a GPU if there is one, in the emulator otherwise. What is checked is the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lazyrope
import pytest
import torch

from tests.support.covering import all_pairs, covered, covering_settings

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    torch.set_num_threads(1)  # for small tensors, and on a busy machine, threads mostly wait for each other


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=800 if HAS_GPU else 32, help="random steps to compare with fp64")
    parser.addoption(
        "--requests", type=int, default=1000 if HAS_GPU else 10000, help="random requests through a tiny model"
    )
    parser.addoption("--seed", type=int, default=2606, help="of the random steps")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "numbered_setting" in metafunc.fixturenames:
        seed = metafunc.config.getoption("seed")
        settings = covering_settings(metafunc.config.getoption("cases"), seed)
        numbered = [(seed + i, setting) for i, setting in enumerate(settings)]
        metafunc.parametrize("numbered_setting", numbered, ids=[str(n) for n, _ in numbered])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Where kernels ran, on what seeds, and what of the covering array they covered; also with -q."""
    seed, count = config.getoption("seed"), config.getoption("cases")
    settings = covering_settings(count, seed)
    pairs = all_pairs()
    place = torch.cuda.get_device_name() if HAS_GPU else "the emulator (no GPU)"
    terminalreporter.write_line(
        f"kernels ran on: {place}; {len(settings)} random steps, seeds {seed} to {seed + len(settings) - 1}, "
        f"{len(covered(settings) & pairs)} of {len(pairs)} pairs of factors covered"
    )


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if HAS_GPU else "cpu"


@pytest.fixture(scope="session")
def build() -> Callable[..., lazyrope.Attention]:
    """lazyrope.compile for the place where tests run."""

    def compile_here(spec: lazyrope.AttentionSpec, **options: object) -> lazyrope.Attention:
        return lazyrope.compile(spec, arch=None if HAS_GPU else "emu:sm_80", **options)

    return compile_here


@pytest.fixture(scope="session")
def compiled_ahead(request: pytest.FixtureRequest) -> Iterator[None]:
    """For a GPU, compiles the random steps' kernels on all cores while the first of them run."""
    if not HAS_GPU:
        yield
        return
    settings = covering_settings(request.config.getoption("cases"), request.config.getoption("seed"))
    pool = ThreadPoolExecutor(os.cpu_count())
    for setting in settings:
        pool.submit(lazyrope.compile, setting.spec())
    yield
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def command() -> str:
    """The binary that LAZYROPE_COMMAND names, or else the one on PATH."""
    path = os.environ.get("LAZYROPE_COMMAND") or shutil.which("lazyrope")
    if path is None or not os.access(path, os.X_OK):
        pytest.fail(
            f"the command is {path}: set LAZYROPE_COMMAND to the one built (<build>/tools/lazyrope) or install lazyrope"
        )
    return path


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny Llama: fp32 on the CPU, where what differs in more than rounding differs visibly; bf16 on a GPU."""
    return _tiny_model()


@pytest.fixture(scope="module")
def exact() -> Any:
    """The same weights in fp32."""
    from tests.support.serving import as_dtype

    return as_dtype(_tiny_model(), torch.float32)


def _tiny_model() -> Any:
    pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")
    from tests.support.serving import DTYPE
    from tools.rag.model import tiny_llama

    return tiny_llama(dtype=DTYPE, device="cuda" if HAS_GPU else "cpu")
