"""Numbers that stand for kernels and steps where only tensors and numbers pass: in the operators of lazyrope.torch."""

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
_unused = itertools.count(2)  # compilers take 0 and 1 for constants

_OF_OBJECT = (1 << 32) - 1
# Programs that are exported can be loaded where the same numbers stand for other things.
_process = (1 + secrets.randbelow(1 << 30)) << 32


def exported(handle: int) -> int:
    """The same number, as only this process takes it."""
    return _process + handle


def handle_of(thing: object) -> int:
    """The number of an object: the same while it lives, and never another's."""
    with _lock:
        if thing not in _numbers:
            number = next(_unused)
            _numbers[thing] = number
            _objects[number] = thing
        return _numbers[thing]


def find(handle: int, kind: type[_T]) -> _T:
    """The object of that number.

    Raises:
        SpecError: it is of another kind, or lives no more; or it was exported by another process.
    """
    if handle > _OF_OBJECT and handle & ~_OF_OBJECT != _process:
        raise SpecError(
            f"this program was exported by another process, where it refers to a {kind.__name__} that lives there: "
            "export it again in this one, with a kernel and a step of this one"
        )
    handle &= _OF_OBJECT
    found = _objects.get(handle)
    if isinstance(found, kind):
        return found
    owner = "nothing that lives" if found is None else type(found).__name__
    raise SpecError(
        f"handle {handle} belongs to {owner}; it must belong to a living {kind.__name__}: keep that as long as "
        "compiled code or a graph refers to it"
    )
