"""Checks of the arguments of memories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..errors import SpecError


def as_name(name: str, value: Any, allowed: Sequence[str]) -> str:
    """Returns the value if it is one of the allowed texts.

    Raises:
        SpecError: It is not.
    """
    if not isinstance(value, str) or value not in allowed:
        raise SpecError(f"{name} = {value!r:.80}; it must be one of {', '.join(allowed)}")
    return value


def as_share(name: str, value: Any) -> float:
    """Returns a number between 0 and 1, both excluded.

    Raises:
        SpecError: It is not.
    """
    if not _is_number(value) or not 0 < value < 1:
        raise SpecError(f"{name} = {value!r:.80}; it must be a number between 0 and 1, such as 0.1")
    return float(value)


def as_limit(name: str, value: Any) -> float | None:
    """Returns a positive number, or None.

    Raises:
        SpecError: It is neither.
    """
    if value is not None and (not _is_number(value) or not 0 < value < math.inf):
        raise SpecError(f"{name} = {value!r:.80}; it must be a number greater than 0, or None for no limit")
    return None if value is None else float(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
