"""Where the documents of a request are in the prompt that vLLM runs, and where the question sees them.

The prompt of vLLM is *padded*: every document begins at a block, so that its blocks do not depend on its place. The
last token of a document is repeated up to the end of its last block. After the documents comes the request's *tail*:
the overlays, which are the first tokens of documents once more, and then the question. The question sees the documents
without the padding, one directly after the other and the last one directly before the question. It sees the overlay of
a document in place of the document's first tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ..errors import SpecError


@dataclass(frozen=True)
class PromptLayout:
    """The documents of a padded prompt.

    Attributes:
        lengths: The tokens of each document without padding, each at least 1. There may be no document.
        block_size: The slots of a block, at least 1.
        has_prefix: True: the first document is a prefix, and all others are computed after it.
        overlay_tokens: The first tokens of each document that are computed again in the tail, at least 0. The prefix
            and the document after it have no overlay: nothing that they have not seen comes before them.
    """

    lengths: tuple[int, ...]
    block_size: int
    has_prefix: bool = False
    overlay_tokens: int = 0

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise SpecError(f"block_size is {self.block_size}; it must be at least 1")
        for i, length in enumerate(self.lengths):
            if length < 1:
                raise SpecError(f"document {i} has {length} tokens; a document has at least one")

    @cached_property
    def padded_lengths(self) -> tuple[int, ...]:
        """The tokens of each document with padding, multiples of block_size."""
        return tuple(-(-length // self.block_size) * self.block_size for length in self.lengths)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The position in the padded prompt at which each document begins."""
        return tuple(accumulate(self.padded_lengths, initial=0))[:-1]

    @cached_property
    def tail(self) -> int:
        """The position in the padded prompt after all documents, at which the overlays begin."""
        return sum(self.padded_lengths)

    @cached_property
    def overlays(self) -> tuple[int, ...]:
        """The tokens of each document's overlay, 0 where there is none."""
        first = 2 if self.has_prefix else 1
        return tuple(min(self.overlay_tokens, n) if i >= first else 0 for i, n in enumerate(self.lengths))

    @cached_property
    def overlay_starts(self) -> tuple[int, ...]:
        """The position in the padded prompt at which each document's overlay begins."""
        return tuple(accumulate(self.overlays, initial=self.tail))[:-1]

    @cached_property
    def question(self) -> int:
        """The position in the padded prompt at which the question begins."""
        return self.tail + sum(self.overlays)

    @cached_property
    def seen_from(self) -> tuple[int, ...]:
        """The position at which the question sees each document begin.

        The last document ends at the question, the one before it ends at the last document, and so on.
        """
        left = self.question - sum(self.lengths)
        return tuple(accumulate(self.lengths, initial=left))[:-1]

    def padded(self, tokens: Sequence[int]) -> list[int]:
        """Returns a prompt with its documents padded, and with the overlays.

        Args:
            tokens: The documents, one after the other, and then the question.

        Raises:
            SpecError: The documents have more tokens than are given.
        """
        total = sum(self.lengths)
        if total > len(tokens):
            raise SpecError(
                f"the documents have {total} tokens ({', '.join(map(str, self.lengths))}), and the prompt has "
                f"{len(tokens)}; the prompt is all documents and then the question"
            )
        result: list[int] = []
        overlays: list[int] = []
        begin = 0
        for length, padded, overlay in zip(self.lengths, self.padded_lengths, self.overlays, strict=True):
            document = tokens[begin : begin + length]
            result += document
            result += [document[-1]] * (padded - length)
            overlays += document[:overlay]
            begin += length
        return [*result, *overlays, *tokens[begin:]]
