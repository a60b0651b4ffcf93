"""The published configs of models, as :meth:`lazyrope.AttentionSpec.from_hf` takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import SpecError


def config_text(config: Any) -> str:
    """Returns the JSON text of a config.json, given by its path or its directory, as a dict, or as a config object of
    transformers.

    Raises:
        SpecError: there is no such file, it is no text, or the config has a number that is infinite or NaN.
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
        raise SpecError(f"{file} is no file; from_hf takes a config.json, its directory, a dict or a config object")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file} cannot be read as text: {error}") from error
