"""The most positions of a request. Beyond the positions that a model was trained for, it usually answers nonsense."""

from __future__ import annotations

from typing import Any

from ..errors import SpecError


def max_positions(config: Any) -> int | None:
    """Returns the most positions that a model's config allows, or None if the config does not say.

    A config with YaRN may state the maximum before or after the extension. Configs with llama3 state the extended one.
    """
    stated: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if stated is None or rope.get("rope_type") != "yarn":
        return stated
    original = rope.get("original_max_position_embeddings") or stated
    return max(stated, int(original * rope.get("factor", 1.0)))


def check_positions(maximum: int, documents: int, prompt: int, new_tokens: int) -> None:
    """Raises SpecError if a request of so many tokens has more positions than the maximum.

    The last new token needs no position, because the model does not read it.
    """
    needed = documents + prompt + max(0, new_tokens - 1)
    if needed > maximum:
        raise SpecError(
            f"the request needs {needed} positions (documents: {documents}, prompt: {prompt}, max_new_tokens: "
            f"{new_tokens}); the engine allows {maximum}. Give fewer documents, or a smaller max_new_tokens. By "
            f"default the limit is the model's own maximum; attach(..., max_model_len={needed}) goes beyond it"
        )
