"""Memories of documents: less than their keys and values, fitted to what will be asked of them.

    memory = lazyrope.memory.build(engine, manual, traces=earlier_questions, budget=1024)
    print(memory.report)
    lazyrope.memory.save(memory, "manual.memory")
    engine.generate("What voids the warranty?", documents=[memory, licence])

A compact memory (:class:`CompactMemory`) has some keys of the document, each with a bias, and fitted values. An
attention-state memory (:class:`StatesMemory`) has the attention of typical queries, which are looked up. A store and an
engine of the memory's kind read it like any document, at any position. Both are approximations. They are good for
requests like the traces that they were fitted to, and worse for others: the page "Memories of documents" says where to
use which.

The package needs PyTorch, and no other package.
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("lazyrope.memory needs PyTorch, which is not installed: pip install torch") from error

from .build import build
from .drift import Audit, Drift
from .files import load, save
from .memories import CompactMemory, Memory, StatesMemory
from .report import LayerReport, Report

__all__ = [
    "Audit",
    "CompactMemory",
    "Drift",
    "LayerReport",
    "Memory",
    "Report",
    "StatesMemory",
    "build",
    "load",
    "save",
]
