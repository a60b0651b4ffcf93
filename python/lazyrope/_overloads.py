"""Arguments of the methods of :mod:`lazyrope.eager`: overloads, and checks of types and tensors."""

from __future__ import annotations

from typing import Any

import torch

from ._arguments import Segments
from ._checks import described, near, type_name
from ._core import Batch
from .errors import SpecError

Tensor = Any
Ints = list[int]


def bound(names: tuple[str, ...], given: tuple[Any, ...], named: dict[str, Any], message: str) -> list[Any]:
    """Returns the arguments of these names. The first are given by position, the others by name."""
    for name in named:
        if name not in names:
            meant = near(name, names)
            raise TypeError(f"there is no argument {name!r}{f': did you mean {meant!r}?' if meant else ''}; {message}")
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
    q_indptr, q_position, segments, pages = bound(
        ("q_indptr", "q_position", "segments", "pages"), given, named, message
    )
    check_type("segments", segments, Segments)
    return q_indptr, q_position, segments, pages


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


def check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {described(value)}; it must be a {type_name(kind)}")


def check_tensor(name: str, tensor: Tensor) -> None:
    check_type(name, tensor, torch.Tensor)


def check_ints(name: str, tensor: Tensor, dtype: Any = torch.int32) -> None:
    check_tensor(name, tensor)
    if tensor.dtype != dtype or tensor.dim() != 1:
        wanted = str(dtype).removeprefix("torch.")
        raise SpecError(f"{name} is {tensor.dtype} {list(tensor.shape)}; it must be {wanted} and one-dimensional")


def ints(name: str, tensor: Tensor) -> Ints:
    check_ints(name, tensor)
    return [int(value) for value in tensor.tolist()]


def check_format(page_size: int, layout: str) -> None:
    if page_size < 16 or page_size % 16:
        raise SpecError(f"page_size = {page_size}; it must be a positive multiple of 16")
    if layout not in ("NHD", "HND"):
        raise SpecError(f'layout = "{layout}"; it must be "NHD" or "HND"')
