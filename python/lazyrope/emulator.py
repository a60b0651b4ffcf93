"""Options and profiles of the emulator, which runs kernels without a GPU (``arch="emu:sm_80"``).

    with lazyrope.emulator.options(seed=3, races=True):
        kernel(q, k_pool, v_pool, step)  # runs threads in another order and checks for races
    with lazyrope.emulator.profile() as profile:
        kernel(q, k_pool, v_pool, step)
    print(profile)  # bank conflicts and sectors of each line of the kernels' source

A kernel that breaks a rule raises :class:`lazyrope.KernelFault`, even if a GPU might tolerate it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from . import _core
from ._checks import checked
from .errors import SpecError

__all__ = ["Profile", "ProfileLine", "options", "profile"]


@dataclass(frozen=True)
class ProfileLine:
    """The counts of one memory instruction on one line of a kernel.

    Attributes:
        kernel: The kernel's function, as in :attr:`lazyrope.CompiledKernel.entry`.
        file: The file of the library's templates.
        line: The line in that file, from 1.
        text: The text of the line.
        instruction: The instruction, such as "ld.shared.b128", "ldmatrix.x4" or "cp.async 16".
        executions: Warp executions; for bulk copies, lane executions.
        lanes: The active lanes of all executions, at most 32 x executions.
        wavefronts: The passes over shared memory that a GPU needs.
        ideal_wavefronts: The passes that it would need without bank conflicts.
        sectors: The accessed sectors of 32 bytes of global memory. A sector that is read twice counts twice.
        ideal_sectors: The sectors that the same bytes would fill.
        cache_lines: The accessed lines of 128 bytes of global memory. Host tensors need not be aligned to 128 bytes,
            so a GPU may count fewer.
        bytes: The bytes that lanes read or wrote. For a bulk copy, only bytes of global memory count.
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
    """The counts of all launches within a :func:`profile`.

    ``str(profile)`` is a table, sorted by the excess over the ideal, the greatest first. Read a profile while no kernel
    runs.
    """

    def __init__(self) -> None:
        self._counts = _core.Profile()

    @property
    def lines(self) -> list[ProfileLine]:
        """The counts, sorted by kernel, file, line and instruction."""
        return [ProfileLine(**fields) for fields in self._counts.lines()]

    def __repr__(self) -> str:
        return repr(self._counts)

    def __str__(self) -> str:
        return self._counts.table()


@checked
@contextmanager
def options(
    *, seed: int | None = None, races: bool | None = None, resident_threads: int | None = None
) -> Iterator[None]:
    """Sets options of this process's emulator for the duration of the ``with`` statement.

    An option that is not given does not change.

    Args:
        seed: The seed of the random order in which threads run, 0 to 2^64 - 1. The same seed gives the same order. At
            first it is LAZYROPE_EMULATOR_SEED, or 0.
        races: If True, conflicting accesses that no synchronisation orders are errors. Kernels then run slower. At
            first it is LAZYROPE_EMULATOR_RACES, or False.
        resident_threads: The most threads of a launch that run concurrently, at least 1. CTAs are resident as a
            whole, at least one at a time; the next CTA begins when another has ended. At first it is 1024.

    Raises:
        SpecError: The seed or the number of threads is out of range, or this build has no emulator.
    """
    if seed is not None and not 0 <= seed < 2**64:
        raise SpecError(f"seed = {seed}; it must be at least 0 and less than 2^64")
    if resident_threads is not None and not 1 <= resident_threads < 2**31:
        raise SpecError(f"resident_threads = {resident_threads}; it must be at least 1 and less than 2^31")
    changes = {"seed": seed, "races": races, "resident_threads": resident_threads}
    with _changed({name: value for name, value in changes.items() if value is not None}):
        yield


@checked
@contextmanager
def profile() -> Iterator[Profile]:
    """Counts the memory accesses of this process's kernels in the emulator, for the duration of the ``with`` statement.

    The counts say how many wavefronts and sectors a GPU would need. Kernels run slower meanwhile. If two profiles are
    nested, the inner one counts.

    Raises:
        SpecError: This build has no emulator.
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
