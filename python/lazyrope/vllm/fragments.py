"""Limits the segments of a request, because the steps of captured graphs have room for a fixed number.

A document whose blocks several requests have written, such as one that grows from request to request, is a segment for
each home. A request that would see too many segments takes fewer of the blocks that it finds in the cache, and computes
the rest itself. What it has computed itself is one segment for each document.
"""

from __future__ import annotations

import numpy as np

from .homes import Homes
from .layout import PromptLayout
from .plan import RequestView
from .prompts import MAX_DOCUMENTS

# A document is an overlay and the rest of it. Documents that begin alike share their first blocks, so that the rest of
# each is two segments.
SEGMENTS_PER_REQUEST = 3 * MAX_DOCUMENTS + 56


def num_blocks_to_take(layout: PromptLayout, homes: Homes, limit: int) -> int:
    """Returns how many of the blocks that a request has found it takes.

    Args:
        layout: The documents of the request.
        homes: The homes of the found blocks, int32 [blocks].
        limit: The most segments that the request may see, at least two for each document and one more.
    """
    # Segments begin where homes break, where a document or an overlay begins, and at the question and its own tokens.
    breaks = int(np.count_nonzero(np.diff(homes) != layout.block_size))
    if 3 + breaks + 2 * len(layout.lengths) <= limit:  # most requests need not be counted
        return len(homes)
    taken = len(homes)
    while taken and len(RequestView(layout, homes[:taken]).seen_by_question[0]) > limit:
        taken //= 2
    return taken
