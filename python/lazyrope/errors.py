"""The errors that lazyrope raises. Each message says what was given, what is allowed and what to do."""

from __future__ import annotations

from typing import Any

__all__ = [
    "CacheError",
    "CompileError",
    "DocumentTooLarge",
    "DriverError",
    "InaccurateMemory",
    "InsertError",
    "KernelFault",
    "SpecError",
    "StoreError",
    "StoreFull",
]


class SpecError(ValueError):
    """An illegal specification or argument: a value, a name, a tensor's dtype, shape, strides or device."""


class CacheError(RuntimeError):
    """LAZYROPE_POLICY=cache_only forbids to compile or to tune, and the cache has no such entry.

    A cache that is absent, read-only, full or damaged is no error otherwise: it is logged, and the kernel is compiled.
    """


class _FieldsError(RuntimeError):
    """An error with named fields. Pickling keeps them."""

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
    """A kernel could not be compiled, or no compiler was found.

    Attributes:
        source: The name or path of the source.
        options: The compiler's options.
        log: The compiler's log, or the directories that were searched for a compiler.
        excerpt: The source lines that the log refers to.
        advice: The recommended remedy.
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
        call: The driver's function.
        code: Its CUresult, or -1 if there is no driver.
        name: The name of the code.
        advice: The recommended remedy.
    """

    _fields: tuple[str, ...] = ("call", "code", "name", "advice")
    call: str
    code: int
    name: str
    advice: str


class KernelFault(DriverError):
    """A kernel broke a rule in the emulator, whether or not a GPU would have tolerated it.

    For example, it read out of bounds or read memory that no thread had written, two threads raced, or all threads
    waited. The message names the rule and the reason, the kernel, the file and line of its source, the block, the warp
    and the lane.

    Attributes:
        rule: The name of the rule, such as "race" or "shared access out of bounds". :attr:`call` is the same.
    """

    _fields = (*DriverError._fields, "rule")
    rule: str


class InaccurateMemory(_FieldsError):
    """A memory of a document is less accurate than its caller allows, or its error is not finite.

    Attributes:
        layer: The first layer with such an error.
        head: The KV head with the greatest error in that layer, or the first whose error is not finite.
        value: The relative error of its output on held-out traces.
    """

    _fields = ("layer", "head", "value")
    layer: int
    head: int
    value: float


class StoreError(RuntimeError):
    """A call of a document store is impossible or illegal now, such as one release too many."""


class DocumentTooLarge(StoreError):
    """A request for pages exceeds the whole budget."""


class StoreFull(StoreError):
    """Too few pages are free or evictable now. The others are referenced, pinned or private."""


class InsertError(StoreError):
    """The document's filler abandoned it."""
