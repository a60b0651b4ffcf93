"""Runs each mutant in a process of its own, as many at a time as there are cores."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutation.mutants import CHOSEN

if TYPE_CHECKING:
    from tests.mutation.trials import Trial  # imports lazyrope

ORIGINAL = 0  # the mutant number that stands for the unchanged kernels
CPU_SECONDS = 60  # many times the duration of a run that is not stuck


@dataclass(frozen=True)
class Seeds:
    """How many thread orders are tried."""

    original: int = 3  # the unchanged kernels must be right for each of them
    mutant: int = 40  # one of them must catch a mutant


@dataclass(frozen=True)
class Verdict:
    caught_by: str  # the emulator's rule that the mutant broke, or another failure; empty if it survived
    trial: str = ""
    text: str = ""


@contextmanager
def mutants_inside(files: dict[str, dict[int, str]]) -> Iterator[ctypes.c_int]:
    """Has the kernels of this process compiled with all mutants inside; yields the number of the active one.

    The caller must enter this context before lazyrope reads its environment.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, command = Path(name), os.environ.get("LAZYROPE_CXX", "c++")
        chosen = folder / "chosen.cpp"
        chosen.write_text(f'extern "C" {{ int {CHOSEN} = {ORIGINAL}; }}\n')
        subprocess.run([*command.split(), "-shared", "-fPIC", "-o", f"{folder}/chosen.so", chosen], check=True)
        library = ctypes.CDLL(f"{folder}/chosen.so", mode=ctypes.RTLD_GLOBAL)
        overlay = folder / "overlay.json"
        overlay.write_text(json.dumps({"declaration": f'extern "C" int {CHOSEN};', "files": files}))
        compiler = Path(__file__).with_name("compiler.py")
        os.environ |= {
            "LAZYROPE_CXX": f"{sys.executable} {compiler} {overlay} {command}",
            "LAZYROPE_CACHE_DIR": "none",
            "LAZYROPE_EMULATOR_RACES": "1",
        }
        yield ctypes.c_int.in_dll(library, CHOSEN)


def judge(
    numbers: Iterable[int],
    trials: Sequence[Trial],
    first: Mapping[int, str],
    chosen: ctypes.c_int,
    report: Callable[[int, Verdict], None],
    seeds: Seeds,
) -> None:
    """Runs the trials with each mutant, its `first` trial first, until one catches it or all seeds are used."""
    waiting = [(number, 0) for number in reversed(list(numbers))]
    running: dict[int, tuple[int, int, int]] = {}
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            number, attempt = waiting.pop()
            order = sorted(trials, key=lambda trial: trial.name != first.get(number))
            pid, pipe = _start(number, order, attempt, chosen)
            running[pid] = (number, attempt, pipe)
        pid, status = os.wait()
        number, attempt, pipe = running.pop(pid)
        verdict = _verdict(status, pipe)
        most = seeds.original if number == ORIGINAL else seeds.mutant
        if not verdict.caught_by and attempt + 1 < most:
            waiting.append((number, attempt + 1))
        else:
            report(number, verdict)


def _start(number: int, trials: Sequence[Trial], seed: int, chosen: ctypes.c_int) -> tuple[int, int]:
    """Starts a process that tries a mutant; returns its id and the pipe that its verdict comes from."""
    sys.stdout.flush()
    read, write = os.pipe()
    pid = os.fork()
    if pid != 0:
        os.close(write)
        return pid, read
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        os.environ["LAZYROPE_EMULATOR_SEED"] = str(seed)  # the first launch reads it
        chosen.value = number
        os.write(write, json.dumps(vars(_try_all(trials))).encode())
    finally:
        os._exit(0)


def _try_all(trials: Sequence[Trial]) -> Verdict:
    import lazyrope

    for trial in trials:
        try:
            trial.run()
        except lazyrope.DriverError as error:
            return Verdict(str(error).split(":")[0], trial.name, str(error)[:2000])
        except AssertionError as error:
            return Verdict("wrong result", trial.name, str(error)[:2000])
    return Verdict("")


def _verdict(status: int, pipe: int) -> Verdict:
    with os.fdopen(pipe) as end:
        text = end.read()
    if text:
        return Verdict(**json.loads(text))
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        raise RuntimeError("the process that tried a mutant ended without a verdict")
    return Verdict(f"ended by signal {-code}")
