"""Checks of the arguments of an engine's requests."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable

from ..errors import SpecError


def is_finite(value: object) -> bool:
    try:
        return math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def is_text(value: object) -> bool:
    """Returns True for text that UTF-8 can encode: it has no lone surrogates."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def stop_ids(stop: object) -> frozenset[int]:
    is_list = isinstance(stop, Iterable) and not isinstance(stop, str | bytes)
    ids = list(stop) if is_list and isinstance(stop, Iterable) else []
    is_of_ids = is_list and all(hasattr(i, "__index__") for i in ids)
    check("stop", stop, is_of_ids, "a list of token ids, such as [tokenizer.eos_token_id]")
    return frozenset(map(operator.index, ids))


def check(name: str, value: object, condition: bool, allowed: str) -> None:
    if not condition:
        raise SpecError(f"{name} = {value!r:.80}; it must be {allowed}")
