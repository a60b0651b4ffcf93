"""Reads the published configs of models for :meth:`lazyrope.AttentionSpec.from_hf`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import SpecError

MAX_BYTES = 8 << 20  # as kMaxConfigBytes of runtime/spec/config_json.h


def config_text(config: Any) -> str:
    """Returns the JSON text of a model's config.

    NaN and infinite numbers are written as Python's json module writes them. The library refuses them only in keys
    that it reads.

    Args:
        config: A path to a config.json or to its directory, a dict, or a config object of transformers.

    Raises:
        SpecError: The file does not exist, is too large or is no text, or the object cannot be written as JSON.
    """
    if callable(getattr(config, "to_dict", None)):
        config = _dict_of(config)
    if isinstance(config, dict):
        return _json_of(config)
    try:
        path = Path(config)
    except TypeError:
        raise SpecError(
            f"from_hf takes a config.json, its directory, a dict or a config object, not {type(config).__name__}"
        ) from None
    try:
        return _text_of(path / "config.json" if path.is_dir() else path)
    except SpecError:
        raise
    except (OSError, ValueError) as error:
        raise SpecError(f"{_shown(path)} cannot be read as text: {_shown(error)}") from error


def _shown(value: object) -> str:
    """Returns at most 300 characters that any terminal can print."""
    text = str(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


def _dict_of(config: Any) -> Any:
    try:
        return config.to_dict()
    except Exception as error:
        raise SpecError(f"to_dict() of {type(config).__name__} failed: {_shown(error)}") from error


def _json_of(config: dict[Any, Any]) -> str:
    """Writes objects that JSON lacks, such as a dtype of PyTorch, as their str()."""
    try:
        return json.dumps(config, default=str)
    except RecursionError as error:
        raise SpecError("the config cannot be written as JSON: it is nested too deep") from error
    except Exception as error:  # str() of a value may raise anything
        raise SpecError(f"the config cannot be written as JSON: {_shown(error)}") from error


def _text_of(file: Path) -> str:
    if not file.is_file():  # a FIFO is no file either: to open it would wait for its writer
        raise SpecError(
            f"{_shown(file)} is not a file; from_hf takes a config.json, its directory, a dict or a config object"
        )
    with file.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SpecError(f"{_shown(file)} has more than {MAX_BYTES} bytes; that is not the config of a model")
    return content.decode("utf-8")
