"""Fixtures that run the same tests on a GPU, or in the emulator if there is none."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lazyrope
import pytest
import torch

from tests.support.cases import PHASES, Setting
from tests.support.covering import EMULATED, FACTORS, STEPS, all_pairs, covered, numbered_steps, race_checked, spread
from tests.support.executed import Executed

RANDOM_STEP = "::test_random_step["
HAS_GPU = torch.cuda.is_available()
ARCH = None if HAS_GPU else "emu:sm_80"
if not HAS_GPU:
    torch.set_num_threads(1)  # with small tensors on a busy machine, threads mostly wait for each other


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases", type=int, default=800 if HAS_GPU else EMULATED, help="settings whose random steps are compared"
    )
    parser.addoption("--requests", type=int, default=1000, help="random requests through a tiny model")
    parser.addoption("--seed", type=int, default=2606, help="seed of the random steps")
    parser.addoption("--soak", action="store_true", help="run all tests, not only samples (make soak)")


def shared_list(config: pytest.Config) -> list[tuple[int, Setting]]:
    steps_each = STEPS if HAS_GPU or config.getoption("soak") else len(PHASES)
    return numbered_steps(config.getoption("cases"), config.getoption("seed"), steps_each)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "numbered_setting" in metafunc.fixturenames:
        steps = shared_list(metafunc.config)
        with_races = set(race_checked(steps)) if "executed" in metafunc.fixturenames else set[int]()
        metafunc.parametrize(
            "numbered_setting",
            [pytest.param(step, marks=[pytest.mark.races] if step[0] in with_races else []) for step in steps],
            ids=[str(seed) for seed, _ in steps],
        )


def runs_all(config: pytest.Config, sample: pytest.Mark) -> bool:
    """Returns whether a test with the marker `sample` runs with all its parameters.

    The emulator is slow, so without a GPU `make test` runs samples. A test that runs no kernel is as slow with a GPU.
    """
    return config.getoption("soak") or (HAS_GPU and sample.kwargs.get("runs_kernels", True))


def values_of_parameters(item: pytest.Item) -> dict[str, str]:
    """Returns a text for each parameter of a test: equal values have equal texts."""
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else {name: repr(value) for name, value in callspec.params.items()}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the parameters that are not in the sample of a test with the marker `sample`.

    The sample is the same each time. Where a test has several parameters, it has many different values of each.
    """
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample and not runs_all(config, sample):
            tests[item.nodeid.partition("[")[0]].append(item)
    left_out = set[pytest.Item]()
    for name, of_test in tests.items():
        size = of_test[0].get_closest_marker("sample").args[0]
        chosen = spread([values_of_parameters(item) for item in of_test], size, name)
        left_out |= {item for i, item in enumerate(of_test) if i not in chosen}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the device, the random steps that passed and the pairs that they cover, with -q too."""
    device_name = torch.cuda.get_device_name() if HAS_GPU else "the emulator (no GPU)"
    steps = dict(shared_list(config))
    passed = [steps[seed] for seed in steps.keys() & passed_steps(terminalreporter)]
    pairs = all_pairs()
    terminalreporter.write_line(
        f"kernels ran on: {device_name}; passed {len(passed)} of the {len(steps)} random steps of "
        f"{config.getoption('cases')} settings, seed {config.getoption('seed')}, which cover "
        f"{len(covered(passed) & pairs)} of {len(pairs)} pairs of factors"
    )


def passed_steps(terminalreporter: pytest.TerminalReporter) -> set[int]:
    """Returns the seeds of the random steps of test_attention.py that passed."""
    names = (report.nodeid for report in terminalreporter.stats.get("passed", []))
    return {int(name.removesuffix("]").partition(RANDOM_STEP)[2]) for name in names if RANDOM_STEP in name}


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if HAS_GPU else "cpu"


@pytest.fixture(scope="session")
def build() -> Callable[..., lazyrope.Attention]:
    """Returns lazyrope.compile for the device that the tests run on."""

    def compile_here(spec: lazyrope.AttentionSpec, **options: object) -> lazyrope.Attention:
        return lazyrope.compile(spec, arch=ARCH, **options)

    return compile_here


@pytest.fixture(scope="session")
def compiled_ahead(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiles the kernels of the random steps that were selected, on all cores, while the first of them run."""
    settings = [item.callspec.params["numbered_setting"][1] for item in random_steps(request.session)]
    specs = {repr(spec): spec for spec in (setting.spec() for setting in settings)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for spec in specs.values():
            pool.submit(lazyrope.compile, spec, ARCH, threads=1)
        yield
        pool.shutdown(cancel_futures=True)


def random_steps(session: pytest.Session) -> list[Any]:
    """Returns the collected tests that run kernels on a step of the shared list."""
    return [
        item for item in session.items if {"numbered_setting", "executed"} <= set(getattr(item, "fixturenames", ()))
    ]


@pytest.fixture(scope="module")
def executed() -> Executed:
    """Returns the record of the settings and kernels that the module's tests have run so far."""
    return Executed()


def values_of(settings: Iterable[Setting]) -> dict[str, set[Any]]:
    return {name: {getattr(setting, name) for setting in settings} for name in FACTORS}


def assert_steps_cover_all(request: pytest.FixtureRequest, executed: Executed, kernels: int) -> None:
    """Checks that the module's random steps used every value, each rank's heads and at least `kernels` kernels."""
    asked = shared_list(request.config)
    selected = [item for item in random_steps(request.session) if item.module is request.module]
    if len(selected) < len(asked) or request.config.getoption("cases") < EMULATED:
        pytest.skip("not all of the module's random steps were selected")
    worker = getattr(request.config, "workerinput", None)  # that of a process of pytest-xdist
    if worker is not None and "--dist=loadfile" not in worker["mainargv"]:
        pytest.skip("several processes of pytest-xdist may divide the module's random steps")
    assert len(executed.settings) == len(asked) >= EMULATED * len(PHASES)
    assert len(executed.kernels) >= kernels
    assert values_of(executed.settings) == {name: set(values) for name, values in FACTORS.items()}
    assert {(8, 1), (16, 2), (4, 1)} <= {(s.group * s.kv_heads, s.kv_heads) for s in executed.settings}


@pytest.fixture(scope="session")
def command() -> str:
    """Returns the path of the command: LAZYROPE_COMMAND, or the one on PATH."""
    path = os.environ.get("LAZYROPE_COMMAND") or shutil.which("lazyrope")
    if path is None or not os.access(path, os.X_OK):
        pytest.fail(
            f"the command is {path}: set LAZYROPE_COMMAND to the one built (<build>/tools/lazyrope) or install lazyrope"
        )
    return path


@pytest.fixture(scope="module")
def model() -> Any:
    """Returns a tiny Llama, in fp32 on the CPU, so that errors larger than rounding show, and in bf16 on a GPU."""
    return _tiny_model()


@pytest.fixture(scope="module")
def exact() -> Any:
    """Returns the same model with fp32 weights."""
    from tests.support.serving import as_dtype

    return as_dtype(_tiny_model(), torch.float32)


def _tiny_model() -> Any:
    pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")
    from tests.support.serving import DTYPE
    from tools.rag.model import tiny_llama

    return tiny_llama(dtype=DTYPE, device="cuda" if HAS_GPU else "cpu")
