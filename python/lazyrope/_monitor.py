"""A lock and a condition for state that stays consistent if an exception ends a change between any two bytecodes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from ._trace import traced
from .errors import SpecError, StoreError

P = ParamSpec("P")
Result = TypeVar("Result")


class Guarded(Protocol):
    """An object with a monitor, which repairs its state if an exception ends one of its methods."""

    _monitor: Monitor

    def _repair(self) -> None: ...


Owner = TypeVar("Owner", bound=Guarded)


def exclusive(method: Callable[Concatenate[Owner, P], Result]) -> Callable[Concatenate[Owner, P], Result]:
    """Runs a method under the lock of its object's monitor. The object repairs itself if an exception ends it."""

    @functools.wraps(method)
    def call(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        work = functools.partial(traced, method.__qualname__, functools.partial(method, self, *args, **kwargs))
        return self._monitor.run(work, self._repair)

    return call


class Monitor:
    """Runs work under a lock. Ctrl-C or a failed allocation at any bytecode leaves the lock free.

    Attributes:
        changed: The condition that threads wait for in their work.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self._is_mine: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]

    def run(self, work: Callable[[], Result], repair: Callable[[], None] = lambda: None) -> Result:
        """Returns work(). Work may call this function again.

        Args:
            work: A function that runs under the lock.
            repair: A function that runs under the lock after work has raised an exception. It does not run after an
                error of lazyrope, for a call that is refused has changed nothing.
        """
        if self._is_mine():
            return work()  # the outer call repairs
        try:
            # The lock's own __enter__ has no bytecodes, unlike the condition's.
            with self._lock:
                return self._run_or_repair(work, repair)
        except BaseException:
            # The with statement keeps its lock if the exception comes between its body and the release.
            while self._is_mine():
                self._lock.release()
            raise

    def _run_or_repair(self, work: Callable[[], Result], repair: Callable[[], None]) -> Result:
        try:
            return work()
        except (SpecError, StoreError):
            raise
        except BaseException:
            if not self._is_mine():  # Condition.wait was interrupted before it took the lock again
                self._lock.acquire()
            repair()
            raise
