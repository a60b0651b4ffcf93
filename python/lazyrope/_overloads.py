"""Arguments of overloaded methods: tensors by position or name, or one object in their place."""

from __future__ import annotations

from typing import Any

import torch

from ._arguments import Segments
from ._core import Batch
from .errors import SpecError

Tensor = Any


def bound(names: tuple[str, ...], given: tuple[Any, ...], named: dict[str, Any], message: str) -> list[Any]:
    """Returns the arguments of these names. The first are given by position, the others by name."""
    values = dict(zip(names, given, strict=False)) | named
    if len(given) + len(named) != len(names) or set(values) != set(names):
        raise TypeError(message)
    return [values[name] for name in names]


def only(given: tuple[Any, ...], named: dict[str, Any], name: str, kind: type) -> Any:
    """Returns the only argument if it is of this kind or has this name, otherwise None."""
    if len(given) == 1 and isinstance(given[0], kind) and not named:
        return given[0]
    return named[name] if not given and set(named) == {name} else None


def step_tensors(given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Returns q_indptr, q_position, segments and pages: as given, or those of a batch."""
    batch = only(given, named, "batch", Batch)
    if batch is not None:
        return _tensors_of(batch)
    message = "give q_indptr, q_position, segments and pages, or a lazyrope.Batch alone"
    return bound(("q_indptr", "q_position", "segments", "pages"), given, named, message)


def _tensors_of(batch: Batch) -> tuple[Tensor, Tensor, Segments, Tensor]:
    """Returns the arguments of :meth:`EagerStep.update` for the requests of a batch."""
    pages = batch.pages
    if not isinstance(pages, torch.Tensor):
        raise SpecError(f"the batch's pages are a {type(pages).__name__}; they must be a torch.Tensor")
    values = {
        name: torch.tensor(numbers, dtype=torch.int32, device=pages.device) for name, numbers in batch._values.items()
    }
    q_indptr, q_position, indptr = (values.pop(name) for name in ("q_indptr", "q_position", "segment_indptr"))
    return q_indptr, q_position, Segments(indptr, **values), pages
