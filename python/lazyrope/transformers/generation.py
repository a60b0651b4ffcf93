"""The requests of an engine as its callers see them: generations with streamed tokens, and scores of given tokens."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from .._precomputed import Precomputed
from ..documents import Document, PageRun
from ..errors import SpecError
from ..recovery import Composition, Recovery, compose
from .layout import Guide, Layout
from .work import Job

if TYPE_CHECKING:
    from .engine import Engine

Tensor = Any
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # tokenizers decode an incomplete character to it


@dataclass(eq=False)
class Generation:
    """A request and its generated tokens.

    Iteration runs passes of the engine and yields each token when it is generated. A generation holds its pages until
    it ends. To end it early, call :meth:`cancel` or use it in a ``with`` statement.

    Example:
        ```python
        with engine.generate("Summarise it.", documents=[manual]) as generation:
            for piece in generation.pieces():
                print(piece, end="")
        ```

    Attributes:
        engine: The engine that runs it.
        prompt: The token ids of the request's own text, which follows its documents.
        documents: The token ids of each document, or a memory, in the order in which the prompt sees them.
        max_new_tokens: The most tokens that are generated.
        mode: "lazy", "block", "recompute" or "full", as in :func:`lazyrope.transformers.attach`.
        recovery: The level of recovery, as in :mod:`lazyrope.recovery`.
        temperature: 0: the most probable token. Otherwise a sample of softmax(logits / temperature).
        stop: The token ids that end the text. They are not part of it.
        salt: The salt of its documents' keys.
        scored: True for a request of :meth:`Engine.score`.
        num_logits: The last tokens of the prompt whose logits are kept.
        recorded: True if the queries of the prompt are kept.
        question: The tokens of the prompt whose attention chooses the pages of level "guided".
        tokens: The generated token ids.
        finish_reason: None while the request is not finished, then "stop", "length", "cancelled" or "error".
        error: The error that ended the request, if finish_reason is "error".
        arrival: The time at which the request was queued, by time.perf_counter().
        first_token: The time of its first token, or None.
        finished: The time of its end, or None.
        hits: The number of its documents that were stored, or being stored, when the request was admitted. A document
            that is only an overlay in this request does not count.
    """

    engine: Engine = field(repr=False)
    prompt: list[int]
    documents: list[list[int] | Precomputed]
    max_new_tokens: int
    mode: str
    recovery: Recovery
    temperature: float
    stop: frozenset[int]
    salt: str
    scored: bool = False
    num_logits: int = 0
    recorded: bool = False
    question: range = range(0)
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: BaseException | None = None
    arrival: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    finished: float | None = None
    hits: int = 0
    _layout: Layout | None = field(default=None, repr=False)
    _held: list[Document] = field(default_factory=list, repr=False)
    _run: PageRun | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Counts the token ids, which may be too many to be read."""
        return (
            f"Generation(prompt_tokens={len(self.prompt)}, num_documents={len(self.documents)}, "
            f"document_tokens={sum(map(len, self.documents))}, tokens={len(self.tokens)}, "
            f"max_new_tokens={self.max_new_tokens}, mode={self.mode!r}, recovery={self.recovery.level!r}, "
            f"finish_reason={self.finish_reason!r})"
        )

    @property
    def is_done(self) -> bool:
        """True if the request has ended, for any reason."""
        return self.finish_reason is not None

    def __iter__(self) -> Iterator[int]:
        at = 0
        while True:
            was_done = self.is_done  # read first: all tokens of a finished request are there
            while at < len(self.tokens):
                yield self.tokens[at]
                at += 1
            if was_done:
                break
            self.engine._advance(self, at)
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def result(self) -> list[int]:
        """Runs passes until the request ends, and returns all its tokens.

        Raises:
            Exception: The error that ended the request.
        """
        return list(self._waited_for())

    def text(self) -> str:
        """Runs passes until the request ends, and returns its text.

        Raises:
            SpecError: The engine has no tokenizer.
            Exception: The error that ended the request.
        """
        for _ in self._waited_for():
            pass
        return self._decoded(0, len(self.tokens))

    def pieces(self) -> Iterator[str]:
        """Yields the text in pieces as it is generated. A piece has whole characters, which may take several tokens.

        Raises:
            SpecError: The engine has no tokenizer.
            Exception: The error that ended the request.
        """
        # A token's text depends on the tokens before it. The tokens of the previous piece are enough, so they are
        # decoded again with each new one.
        first, given = 0, 0
        for _ in self:
            piece = self._decoded_after(first, given)
            if piece and not piece.endswith(UNFINISHED):
                yield piece
                first, given = given, len(self.tokens)
        if rest := self._decoded_after(first, given):
            yield rest

    def _waited_for(self) -> Iterable[int]:
        """Returns the iterator over the tokens for callers that see none of them before the last."""
        return self.engine._progress.generated(self, self.max_new_tokens) if self.max_new_tokens else self

    def _decoded_after(self, first: int, given: int) -> str:
        """Returns the text that the tokens from `given` on add to the text from `first` on."""
        return self._decoded(first, len(self.tokens))[len(self._decoded(first, given)) :]

    def _decoded(self, first: int, end: int) -> str:
        if self.engine.tokenizer is None:
            raise SpecError("there is no tokenizer; attach(model, tokenizer=...)")
        return str(self.engine.tokenizer.decode(self.tokens[first:end], skip_special_tokens=True))

    def cancel(self) -> None:
        """Ends the request now and frees its pages."""
        self.engine.cancel(self)

    @cached_property
    def _composition(self) -> Composition:
        """The parts of the request. It is made once, though a request that waits for room asks before every pass."""
        return compose(self.documents, self.recovery)

    @property
    def recomputed(self) -> list[list[int]]:
        """For each document, the indices of its tokens that the prompt sees computed again, by the request's level.

        Some of level "first_page" may have been stored. It is empty until the request is admitted, and the lists are
        empty until level "guided" has chosen.
        """
        return [list(indices) for indices in self._layout.recomputed] if self._layout else []

    @property
    def _own(self) -> Job:
        assert self._layout is not None
        return self._layout.own

    @property
    def _guide(self) -> Guide | None:
        assert self._layout is not None
        return self._layout.guide

    @property
    def _fills(self) -> list[Job]:
        assert self._layout is not None
        return self._layout.fills


@dataclass(frozen=True)
class Scores:
    """The model's last hidden states over given tokens. The model's lm_head computes logits from them.

    Attributes:
        documents: The hidden states of each document, [tokens, hidden size]. None if the document was stored, or being
            computed, before.
        prompt: The hidden states of the prompt, [tokens, hidden size].
        overlays: The hidden states of the tokens of each document that levels "first_page" and "guided" of
            :mod:`lazyrope.recovery` compute again, [tokens, hidden size]. None if there are none, or if they were
            stored, or being computed, before.
        recomputed: The indices in each document of these tokens, also of those that were stored before.
        logits: The logits after the last tokens of the prompt, as many as were asked for, float32 [tokens, vocabulary
            size]. None if none were.
    """

    documents: list[Tensor | None]
    prompt: Tensor
    overlays: list[Tensor | None]
    recomputed: list[list[int]]
    logits: Tensor | None = None

    @classmethod
    def _of(cls, layout: Layout) -> Scores:
        """Returns the scores of a request that has ended."""

        def hidden(job: Job | None) -> Tensor | None:
            return torch.cat(job.hidden) if job and job.hidden else None

        own, again = layout.own, hidden(layout.again)
        counts = [len(indices) for indices in layout.recomputed]
        return cls(
            documents=[hidden(job) for job in layout.documents],
            prompt=hidden(own),
            overlays=[hidden(job) for job in layout.overlays]
            if again is None
            else [part if len(part) else None for part in again.split(counts)],
            recomputed=[list(indices) for indices in layout.recomputed],
            logits=torch.cat(own.logits) if own.logits else None,
        )
