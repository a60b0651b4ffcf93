"""The errors that lazyrope raises. Each says what was given, what is allowed and what to do."""

from __future__ import annotations

from typing import Any

__all__ = [
    "CacheError",
    "CompileError",
    "DocumentTooLarge",
    "DriverError",
    "InsertError",
    "KernelFault",
    "SpecError",
    "StoreError",
    "StoreFull",
]


class SpecError(ValueError):
    """An illegal specification or argument: a value, a name, a tensor's dtype, shape, strides or device."""


class CacheError(RuntimeError):
    """A kernel is not in the cache, and LAZYROPE_POLICY=cache_only forbids compiling it. Otherwise a cache that is
    corrupt, full, read-only or absent is a logged miss."""


class _FieldsError(RuntimeError):
    """An error with named fields that survives pickling."""

    _fields: tuple[str, ...] = ()

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        for name in self._fields:
            setattr(self, name, fields.get(name))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), {name: getattr(self, name) for name in self._fields})


def _rebuild(kind: type[_FieldsError], message: str, fields: dict[str, Any]) -> _FieldsError:
    return kind(message, **fields)


class CompileError(_FieldsError):
    """A kernel could not be compiled, or there is no compiler to compile it with.

    Attributes:
        source: name or path of the source.
        options: what the compiler was given.
        log: the compiler's own words, or the places where one was looked for.
        excerpt: the lines that the log complains about.
        advice: what to do.
    """

    _fields = ("source", "options", "log", "excerpt", "advice")
    source: str
    options: list[str]
    log: str
    excerpt: str
    advice: str


class DriverError(_FieldsError):
    """A call of the CUDA driver failed, or there is no usable driver.

    Attributes:
        call: the driver's function.
        code: its CUresult; -1 where there is no driver to return one.
        name: the code's name.
        advice: what to do.
    """

    _fields: tuple[str, ...] = ("call", "code", "name", "advice")
    call: str
    code: int
    name: str
    advice: str


class KernelFault(DriverError):
    """A kernel did in the emulator what it may not do, whether or not a GPU would have let it pass: it read out of
    bounds, or what nobody had written; two threads raced; all waited. The text says which rule it broke and how, the
    kernel, the file and line of its text, the block, the warp and the lane.

    Attributes:
        rule: its name, e.g. "race" or "shared access out of bounds"; :attr:`call` is the same.
    """

    _fields = (*DriverError._fields, "rule")
    rule: str


class StoreError(RuntimeError):
    """A document store cannot do what was asked, or was asked out of turn: one release too many, a second free."""


class DocumentTooLarge(StoreError):
    """More pages are needed than the whole budget has."""


class StoreFull(StoreError):
    """Too few pages are free or evictable now; the others are referenced, pinned or private."""


class InsertError(StoreError):
    """The document's filler abandoned it."""
