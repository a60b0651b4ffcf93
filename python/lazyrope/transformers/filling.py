"""Documents of requests that are not ready, because this engine or another user of the store is filling them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..documents import Document, InsertError
from .work import Job


def documents_of_others(held: Sequence[Document], mine: Collection[Document]) -> tuple[list[Document], list[Document]]:
    """Returns the documents of a request that other users of the store are filling, and those they have given up.

    It looks at all documents: one that was given up may come after one that is still being filled.

    Args:
        held: The documents of the request.
        mine: The documents that this engine is filling.
    """
    awaited, lost = [], []
    for document in held:
        if not document.is_ready and document not in mine:
            try:
                document.wait(0)
            except TimeoutError:
                awaited.append(document)
            except InsertError:
                lost.append(document)
    return awaited, lost


def sees(job: Job, document: Document) -> bool:
    """Returns True if a job reads pages of the document before its own tokens."""
    pages = range(document.first_page, document.first_page + document.num_pages)
    return any(segment.first_page in pages for segment in job.segments)
