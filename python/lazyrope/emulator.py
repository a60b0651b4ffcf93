"""How kernels run without a GPU (``arch="emu:sm_80"``), and what the emulator sees of them.

    with lazyrope.emulator.options(seed=3, races=True):
        kernel(q, k_pool, v_pool, step)  # in another order of threads, with a look for races
    with lazyrope.emulator.profile() as profile:
        kernel(q, k_pool, v_pool, step)
    print(profile)  # bank conflicts and sectors of each line of the kernels' text

What a kernel may not do, and a GPU might let pass, raises :class:`lazyrope.KernelFault`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from . import _core
from .errors import SpecError

__all__ = ["Profile", "ProfileLine", "options", "profile"]


@dataclass(frozen=True)
class ProfileLine:
    """What the memory instructions of one line of a kernel came to.

    Attributes:
        kernel: its function, as in :attr:`lazyrope.CompiledKernel.entry`.
        file: of the library's templates.
        line: in that file, from 1.
        text: of the line.
        instruction: "ld.shared.b128", "ldmatrix.x4", "cp.async 16", ...
        executions: by warps; of a bulk copy, by lanes.
        lanes: that took part, in all executions; at most 32 x executions.
        wavefronts: passes over shared memory that a GPU needs.
        ideal_wavefronts: that it would need without bank conflicts.
        sectors: of 32 bytes of global memory that were touched; what is read twice counts twice.
        ideal_sectors: that the same bytes would fill.
        cache_lines: of 128 bytes of global memory that were touched, in the host's tensors, which may begin inside one.
        bytes: that lanes read or wrote; of a bulk copy, those of global memory.
    """

    kernel: str
    file: str
    line: int
    text: str
    instruction: str
    executions: int
    lanes: int
    wavefronts: int
    ideal_wavefronts: int
    sectors: int
    ideal_sectors: int
    cache_lines: int
    bytes: int


class Profile:
    """What the launches of a :func:`profile` came to; as text, a table whose first lines take the most beyond their
    ideal. To be read while no kernel runs."""

    def __init__(self) -> None:
        self._counts = _core.Profile()

    @property
    def lines(self) -> list[ProfileLine]:
        """By kernel, file, line and instruction."""
        return [ProfileLine(**fields) for fields in self._counts.lines()]

    def __repr__(self) -> str:
        return repr(self._counts)

    def __str__(self) -> str:
        return self._counts.table()


@contextmanager
def options(
    *, seed: int | None = None, races: bool | None = None, resident_threads: int | None = None
) -> Iterator[None]:
    """How this process's kernels run in the emulator while the ``with`` lasts.

    Args:
        seed: of the random order in which threads take turns, 0 to 2^64 - 1. The same seed gives the same order. By
            default it stays what it is: LAZYROPE_EMULATOR_SEED, or 0.
        races: whether to look for accesses to the same memory that no barrier orders, which takes longer. By default
            it stays what it is: LAZYROPE_EMULATOR_RACES, or False.
        resident_threads: of a launch, that are there at a time, at least 1: as many whole CTAs as have no more, but
            one at the least. The next begins when one has ended. By default it stays what it is: 1024.

    Raises:
        SpecError: the seed or the number of threads is out of range, or this build has no emulator.
    """
    if seed is not None and not 0 <= seed < 2**64:
        raise SpecError(f"seed = {seed}; it must be at least 0 and less than 2^64")
    if resident_threads is not None and not 1 <= resident_threads < 2**31:
        raise SpecError(f"resident_threads = {resident_threads}; it must be at least 1 and less than 2^31")
    changes = {"seed": seed, "races": races, "resident_threads": resident_threads}
    with _changed({name: value for name, value in changes.items() if value is not None}):
        yield


@contextmanager
def profile() -> Iterator[Profile]:
    """Counts what the memory accesses of this process's kernels would cost a GPU, while the ``with`` lasts: of those in
    the emulator, which it slows down. Inside another, the inner one counts.

    Raises:
        SpecError: this build has no emulator.
    """
    counted = Profile()
    with _changed({"profile": counted._counts}):
        yield counted


@contextmanager
def _changed(changes: dict[str, object]) -> Iterator[None]:
    before = _core.emulator_options()
    _core.set_emulator_options(**(before | changes))
    try:
        yield
    finally:
        _core.set_emulator_options(**before)
