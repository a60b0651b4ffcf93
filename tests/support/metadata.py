"""Makes the arguments of calls from dictionaries of tensors, whose entries tests change one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lazyrope
import torch

Tensors = Mapping[str, Any]

SEGMENTS = ("base", "start", "length", "first_page", "lead", "mask_base", "mass_tokens", "memory")
SPANS = ("indptr", "start", "first_page", "lead")


def segments_of(tensors: Tensors) -> lazyrope.Segments:
    return lazyrope.Segments(tensors["segment_indptr"], **{name: tensors.get(name) for name in SEGMENTS})


def step_arguments(tensors: Tensors) -> dict[str, Any]:
    """Returns the arguments of ``plan`` and ``Step.update``.

    The tensors are "q_indptr", "q_position", "segment_indptr", "base", "start", "length", "first_page", "pages" and,
    optionally, "lead", "mask_base", "mass_tokens" and "memory".
    """
    return {
        "q_indptr": tensors["q_indptr"],
        "q_position": tensors["q_position"],
        "segments": segments_of(tensors),
        "pages": tensors["pages"],
    }


def append_arguments(tensors: Tensors) -> dict[str, Any]:
    """Returns the arguments of ``plan_append`` and ``AppendStep.update``.

    The tensors are "indptr", "start", "first_page", "pages" and, optionally, "lead".
    """
    return {"spans": lazyrope.TokenSpans(**{name: tensors.get(name) for name in SPANS}), "pages": tensors["pages"]}


def capacity_of(tensors: Tensors, **changes: int) -> lazyrope.StepCapacity:
    """Returns the capacity that the tensors of a step need, with ``changes``."""
    fields = {
        "requests": len(tensors["q_indptr"]) - 1,
        "segments": len(tensors["base"]),
        "query_tokens": len(tensors["q_position"]),
    }
    return lazyrope.StepCapacity(**fields | changes)


def one_span(start: int, length: int, lead: int, device: Any) -> lazyrope.TokenSpans:
    """Returns one span whose page list begins at index 0."""
    indptr, *columns = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, length], [start], [0], [lead]))
    return lazyrope.TokenSpans(indptr, *columns)
