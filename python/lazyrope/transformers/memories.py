"""Memories among the documents of a request: which requests may read them, and how they get into the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._batch import MAX_MEMORIES
from .._precomputed import STATES, Precomputed, argument_of
from ..documents import Document, DocumentStore
from ..errors import SpecError
from ..recovery import Recovery


def is_memory(document: Any) -> bool:
    """Returns True for a memory of any kind, and False for token ids and text."""
    return isinstance(document, Precomputed)


def readable(memory: Precomputed, store: DocumentStore, mode: str, recovery: Recovery) -> Precomputed:
    """Returns a memory that a request may name.

    Raises:
        SpecError: The store keeps none of its kind, the kernels have no such look-up, the mode or the recovery serves
            none, or the document's own keys and values would take no more pages.
    """
    slot_logits = store.entry_lse(0) if memory.kind == STATES else store.key_bias(0)
    if slot_logits is None:
        raise SpecError(
            f'documents has a memory of kind "{memory.kind}"; make the engine with '
            f"attach(..., {argument_of(memory.kind)})"
        )
    if mode != "lazy" or recovery.level != "none":
        raise SpecError(
            f'documents has a memory with mode = "{mode}" and recovery = "{recovery.level}"; a memory cannot be copied '
            'or computed again: give mode="lazy" and recovery="none", or the document itself'
        )
    if why := memory.refusal():
        raise SpecError(f"documents has a memory {why}")
    if -(-len(memory) // store.page_size) >= -(-memory.num_positions // store.page_size):
        raise SpecError(
            f"documents has a memory of {len(memory)} slots for a document of {memory.num_positions} tokens, which "
            f"takes no fewer pages of {store.page_size}: give the document itself"
        )
    return memory


def check_number(documents: Sequence[Any]) -> None:
    """Raises SpecError if a request has more memories of attention states than its rows have look-ups."""
    count = sum(is_memory(document) and document.kind == STATES for document in documents)
    if count > MAX_MEMORIES:
        raise SpecError(
            f'documents has {count} memories of kind "{STATES}"; a request has at most {MAX_MEMORIES}: give fewer, or '
            "build one of several documents together"
        )


def can_measure(store: DocumentStore) -> bool:
    """Returns True if the kernels that read the store also measure attention to pages, as level "guided" needs it."""
    return store.entry_lse(0) is None


def check_measures(store: DocumentStore, recovery: Recovery) -> None:
    """Raises SpecError if the kernels cannot measure the attention that the recovery needs."""
    if recovery.level == "guided" and not can_measure(store):
        raise SpecError(
            'recovery = "guided" in an engine with memories="states"; its kernels do not measure attention to pages: '
            "give another level, or make another engine"
        )


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
