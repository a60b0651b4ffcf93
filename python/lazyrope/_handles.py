"""Numbers that stand for kernels and steps where only tensors and numbers pass: in the operators of lazyrope.torch."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TypeVar

from .errors import SpecError

_T = TypeVar("_T")

_lock = threading.Lock()
_numbers: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
_objects: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
_unused = itertools.count(2)  # compilers take 0 and 1 for constants


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
        SpecError: it is of another kind, or lives no more.
    """
    found = _objects.get(handle)
    if isinstance(found, kind):
        return found
    owner = "nothing that lives" if found is None else type(found).__name__
    raise SpecError(
        f"handle {handle} belongs to {owner}; it must belong to a living {kind.__name__}: keep that as long as "
        "compiled code or a graph refers to it"
    )
