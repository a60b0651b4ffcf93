"""A lock that is handed over in the order in which it was asked for."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any


class Turns:
    """As :class:`threading.Lock`, but nobody is overtaken: a thread that runs pass after pass keeps no other out."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._is_taken = False

    def __enter__(self) -> None:
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:  # interrupted: give up the place, or the turn that came in that very moment
            with self._mutex:
                is_waiting = turn in self._waiting
                if is_waiting:
                    self._waiting.remove(turn)
            if not is_waiting:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False


_devices: dict[str, Turns] = {}


def of_device(device: Any) -> Turns:
    """The one lock of a device (a torch.device)."""
    return _devices.setdefault(str(device), Turns())
