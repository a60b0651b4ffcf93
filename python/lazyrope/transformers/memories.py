"""Memories among the documents of a request: which requests may read them, and how they get into the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._precomputed import Precomputed
from ..documents import Document, DocumentStore
from ..errors import SpecError
from ..recovery import Recovery

STATES = "states"


def is_memory(document: Any) -> bool:
    """Returns True for a memory of any kind, and False for token ids and text."""
    return isinstance(document, Precomputed) or getattr(document, "kind", None) == STATES


def readable(memory: Any, store: DocumentStore, mode: str, recovery: Recovery) -> Precomputed:
    """Returns a memory that a request may name.

    Raises:
        SpecError: The memory is of a kind that the engine cannot read, the store keeps none, the mode or the recovery
            serves none, or the document's own keys and values would take no more pages.
    """
    if not isinstance(memory, Precomputed):
        raise SpecError(
            f'documents has a memory of kind "{STATES}", which has no keys that the engine could read; build one of '
            'kind "compact", or give the document itself'
        )
    if store.key_bias(0) is None:
        raise SpecError("documents has a memory; make the engine with attach(..., memories=True)")
    if mode != "lazy" or recovery.level != "none":
        raise SpecError(
            f'documents has a memory with mode = "{mode}" and recovery = "{recovery.level}"; a memory cannot be copied '
            'or computed again: give mode="lazy" and recovery="none", or the document itself'
        )
    if -(-len(memory) // store.page_size) >= -(-memory.num_positions // store.page_size):
        raise SpecError(
            f"documents has a memory of {len(memory)} slots for a document of {memory.num_positions} tokens, which "
            f"takes no fewer pages of {store.page_size}: give the document itself"
        )
    return memory


def fill_memories(store: DocumentStore, memories: Sequence[tuple[Document, Precomputed]], salt: str) -> None:
    """Copies memories into the pages of new documents of a salt. If one fails, it and those after it are abandoned."""
    left = list(memories)
    try:
        while left:
            store.fill(*left[0], salt=salt)
            store.commit(left[0][0])
            left.pop(0)
    finally:
        for document, _ in left:
            if not document.is_ready:
                store.abandon(document)
