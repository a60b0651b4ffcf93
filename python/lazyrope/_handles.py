"""Numbers that represent kernels and steps in the operators of lazyrope.torch, which take tensors and numbers only."""

from __future__ import annotations

import itertools
import secrets
import threading
import weakref
from typing import TypeVar

from .errors import SpecError

_T = TypeVar("_T")

_lock = threading.Lock()
_numbers: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
_objects: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
_unused = itertools.count(2)  # torch.compile specialises code for 0 and 1

_OF_OBJECT = (1 << 32) - 1
# The upper half of an exported handle names the process: another process may load the program.
_process = (1 + secrets.randbelow(1 << 30)) << 32


def exported(handle: int) -> int:
    """Returns a number for the same object that no other process accepts."""
    return _process + handle


def handle_of(thing: object) -> int:
    """Returns the number of an object. It stays the same while the object is alive, and is never reused."""
    with _lock:
        if thing not in _numbers:
            number = next(_unused)
            _numbers[thing] = number
            _objects[number] = thing
        return _numbers[thing]


def find(handle: int, kind: type[_T]) -> _T:
    """Returns the object of that number.

    Raises:
        SpecError: The object is of another kind or no longer alive, or another process exported the number.
    """
    if handle > _OF_OBJECT and handle & ~_OF_OBJECT != _process:
        raise SpecError(
            f"this program was exported by another process and refers to a {kind.__name__} of that process: export it "
            "again in this process, with a kernel and a step of this process"
        )
    handle &= _OF_OBJECT
    found = _objects.get(handle)
    if isinstance(found, kind):
        return found
    owner = "no live object" if found is None else type(found).__name__
    raise SpecError(
        f"handle {handle} belongs to {owner}; it must belong to a live {kind.__name__}: keep that object as long "
        "as compiled code or a graph refers to it"
    )
