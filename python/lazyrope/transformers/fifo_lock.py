"""A lock that threads get in the order in which they asked for it."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any


class FifoLock:
    """A lock like :class:`threading.Lock` that serves threads first come, first served.

    So a thread that runs pass after pass cannot keep other threads waiting.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._is_taken = False

    def __enter__(self) -> None:
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return
            waiter = threading.Lock()
            waiter.acquire()
            self._waiting.append(waiter)
        try:
            waiter.acquire()
        except BaseException:  # Ctrl-C: leave the queue, or release the lock if this thread has just got it
            with self._mutex:
                is_waiting = waiter in self._waiting
                if is_waiting:
                    self._waiting.remove(waiter)
            if not is_waiting:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False


_devices: dict[str, FifoLock] = {}


def device_lock(device: Any) -> FifoLock:
    """Returns the lock of a torch.device. All engines on the device share it."""
    return _devices.setdefault(str(device), FifoLock())
