"""The scheduler's fills: a fill is a request that computes a missing document, for which other requests wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet


class Fills:
    """The unfinished fills, and the requests whose prompts have their documents. It keeps none of them alive."""

    def __init__(self) -> None:
        self._waiting: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()

    def __contains__(self, request: Any) -> bool:
        return request in self._waiting

    def add(self, fill: Any) -> None:
        """Records a new fill, for which no request waits yet."""
        self._waiting[fill] = WeakSet()

    def wait(self, request: Any, fill: Any) -> None:
        """Records that a request waits for a fill."""
        self._waiting[fill].add(request)

    def abandoned(self, gone: Iterable[Any]) -> list[Any]:
        """Returns the fills that only these requests waited for. The requests are about to be ended.

        A request that has begun to run waits no more: it has found the document, or computes it itself.
        """
        ended = set(gone)
        result = []
        for fill, requests in list(self._waiting.items()):
            if fill.is_finished() or not ended.intersection(requests):
                continue
            if all(request in ended or request.is_finished() or request.num_computed_tokens for request in requests):
                result.append(fill)
        return result
