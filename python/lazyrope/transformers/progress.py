"""Progress bars for work that takes long on a CPU. They appear on a terminal only, so logs and pipes stay clean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

DELAY = 1.0  # seconds: work that is shorter shows no bar
MIN_TOKENS = 64  # a pass of fewer tokens shows no bar


class Progress:
    """The bars of one engine, on stderr. A bar disappears when its work is done."""

    def __init__(self, wanted: bool | None, *, is_slow: bool) -> None:
        """Makes the bars.

        Args:
            wanted: True: bars wherever stderr leads. False: none. None: bars if the device is slow and stderr is a
                terminal.
            is_slow: True if the model is on a CPU.
        """
        self._wanted = wanted
        self._is_slow = is_slow

    @property
    def is_shown(self) -> bool:
        """True if bars are shown now. The answer may change, for a program may redirect stderr."""
        if self._wanted is not None:
            return self._wanted
        return self._is_slow and sys.stderr is not None and sys.stderr.isatty()

    @contextmanager
    def layers(self, tokens: int, count: int) -> Iterator[Callable[[], object] | None]:
        """Shows the layers of one pass. Its value is a function to call after each layer, or None without a bar.

        A pass of few tokens is not shown. It only decodes, as a rule, and the new tokens are its progress.
        """
        if tokens < MIN_TOKENS or not self.is_shown:
            yield None
            return
        with self._bar(desc=f"pass of {tokens} tokens", total=count, unit="layer") as bar:
            yield bar.update

    def generated(self, tokens: Iterable[T], total: int) -> Iterable[T]:
        """Returns the tokens, and shows their number while they are generated."""
        if not self.is_shown:
            return tokens
        shown: Iterable[T] = self._bar(tokens, desc="generate", total=total, unit="token")
        return shown

    @staticmethod
    def _bar(*tokens: Any, **options: Any) -> Any:
        from tqdm import tqdm  # here, because tqdm starts a thread with its first bar

        return tqdm(*tokens, leave=False, delay=DELAY, **options)
