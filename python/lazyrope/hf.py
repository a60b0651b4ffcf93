"""Specifications from the published configs of models."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ._core import AttentionSpec
from .errors import SpecError


def spec_from_hf(
    config: str | os.PathLike[str] | Any,
    *,
    dtype: str | None = None,
    query_form: str = "raw",
    layer: int | None = None,
    kv_dtype: str | None = None,
    batch_invariant: bool = False,
    tensor_parallel: int = 1,
) -> AttentionSpec:
    """The attention of a Hugging Face model.

    Args:
        config: a path to a config.json or to the directory that holds one, a dict, or a config object of
            transformers (anything with ``to_dict()``).
        dtype: "bfloat16" or "float16"; the config's own by default.
        query_form: "raw", or "rotated" where the model turns queries and keys before it calls the attention, as
            those of transformers do.
        layer: of models whose layers differ, say in their sliding window: which one, from 0.
        kv_dtype: of the pool: "float8_e4m3fn" or "float8_e5m2"; as dtype by default.
        batch_invariant: what shares a request's step changes no bit of its output.
        tensor_parallel: ranks that divide the heads among them: the spec is that of one, with an equal share of the
            heads. Where there are fewer KV heads than ranks, each is on several.

    Raises:
        SpecError: the config has a model type, RoPE type or key that would change the result and is not
            known, and the message names it; its layers differ and none is given; there is no such file; or the
            heads cannot be divided so.
    """
    return AttentionSpec._from_hf_json(
        _text_of(config), dtype, query_form, layer, kv_dtype, batch_invariant, tensor_parallel
    )


def _text_of(config: Any) -> str:
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
