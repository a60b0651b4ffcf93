"""Checks of the arguments of an engine's requests."""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from .._keys import int64_array
from ..errors import SpecError


def is_finite(value: object) -> bool:
    try:
        return math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def as_int(value: Any) -> int | None:
    """Returns an integer of any type, such as numpy's, as an int. Returns None for all else, and for a bool."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


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


def check_documents(documents: object) -> None:
    is_list = isinstance(documents, Iterable) and not isinstance(documents, str | bytes)
    check("documents", documents, is_list, "a list of texts or of token ids; a single one is [text]")


def check(name: str, value: object, condition: bool, allowed: str) -> None:
    if not condition:
        raise SpecError(f"{name} = {value!r:.80}; it must be {allowed}")


def token_ids(name: str, text: str | Sequence[int], tokenizer: Any, vocab_size: int) -> list[int]:
    """Returns the token ids of an argument that is text or token ids.

    Raises:
        SpecError: It is neither, it is text without a tokenizer, or an id is not in the vocabulary.
    """
    if isinstance(text, str):
        if tokenizer is None:
            raise SpecError(f"{name} is text; give token ids, or attach(model, tokenizer=...)")
        ids = array("q", tokenizer.encode(text, add_special_tokens=False))
    else:
        check(name, text, hasattr(text, "__len__"), "text or token ids")
        ids = int64_array(text) if len(text) > 0 else array("q")
    check(name, text, not ids or (min(ids) >= 0 and max(ids) < vocab_size), f"token ids of 0 to {vocab_size - 1}")
    return ids.tolist()


def end_ids(model: Any) -> list[int]:
    """Returns the end-of-sequence ids of a model."""
    config = model.generation_config or model.config
    ends = config.eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
