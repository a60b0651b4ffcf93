"""Reads the published configs of models for :meth:`lazyrope.AttentionSpec.from_hf`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import SpecError


def config_text(config: Any) -> str:
    """Returns the JSON text of a model's config.

    Args:
        config: A path to a config.json or to its directory, a dict, or a config object of transformers.

    Raises:
        SpecError: The file does not exist or is no text, or the config has a number that is infinite or NaN.
    """
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if isinstance(config, dict):
        try:
            return json.dumps(config, default=str, allow_nan=False)
        except ValueError as error:
            raise SpecError(f"the config has a number that is infinite or NaN: {error}") from error
    try:
        path = Path(config)
    except TypeError:
        raise SpecError(
            f"from_hf takes a config.json, its directory, a dict or a config object, not {type(config).__name__}"
        ) from None
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise SpecError(f"{file} is not a file; from_hf takes a config.json, its directory, a dict or a config object")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file} cannot be read as text: {error}") from error
