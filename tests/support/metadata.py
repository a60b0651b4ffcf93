"""Arguments of the calls from tensors by name, as tests change them one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lazyrope
import torch

Tensors = Mapping[str, Any]

SEGMENTS = ("base", "start", "length", "first_page", "lead")
SPANS = ("indptr", "start", "first_page", "lead")


def segments_of(tensors: Tensors) -> lazyrope.Segments:
    return lazyrope.Segments(tensors["segment_indptr"], **{name: tensors.get(name) for name in SEGMENTS})


def step_arguments(tensors: Tensors) -> dict[str, Any]:
    """Those of ``plan`` and ``Step.update``, from "q_indptr", "q_position", "segment_indptr", "base", "start",
    "length", "first_page", "pages" and perhaps "lead"."""
    return {
        "q_indptr": tensors["q_indptr"],
        "q_position": tensors["q_position"],
        "segments": segments_of(tensors),
        "pages": tensors["pages"],
    }


def append_arguments(tensors: Tensors) -> dict[str, Any]:
    """Those of ``plan_append`` and ``AppendStep.update``, from "indptr", "start", "first_page", "pages" and perhaps
    "lead"."""
    return {"spans": lazyrope.TokenSpans(**{name: tensors.get(name) for name in SPANS}), "pages": tensors["pages"]}


def capacity_of(tensors: Tensors, **changes: int) -> lazyrope.StepCapacity:
    """What the tensors of a step take, with some of it changed."""
    fields = {
        "requests": len(tensors["q_indptr"]) - 1,
        "segments": len(tensors["base"]),
        "query_tokens": len(tensors["q_position"]),
    }
    return lazyrope.StepCapacity(**fields | changes)


def one_span(start: int, length: int, lead: int, device: Any) -> lazyrope.TokenSpans:
    """Whose page list begins at index 0."""
    indptr, *columns = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, length], [start], [0], [lead]))
    return lazyrope.TokenSpans(indptr, *columns)
