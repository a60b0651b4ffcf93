"""The most positions of a request. Beyond the positions that a model was trained for, it usually answers nonsense."""

from __future__ import annotations

from typing import Any

from ..errors import SpecError

# With these values of rope_type, the frequencies depend on the length of a request beyond the original context.
LENGTH_DEPENDENT = ("dynamic", "longrope")


def max_positions(config: Any) -> int | None:
    """Returns the most positions that a model's config allows, or None if the config does not say.

    A config with YaRN may state the maximum before or after the extension. Configs with llama3 state the extended one.
    With dynamic NTK scaling and with LongRoPE, the model's code rotates all tokens of a longer request by other
    frequencies than those of a request within the original context. Stored keys would be wrong, so the original context
    is the maximum. So it is with a temperature of queries (Ministral 3): beyond the original context, a document's own
    queries have another temperature than when the document was computed alone.

    Args:
        config: A config of transformers. Of a model of images or audio, its text config counts.
    """
    text = _text_config(config)
    stated: int | None = getattr(text, "max_position_embeddings", None)
    if stated is None:
        return None
    return min(_max_positions_of(rope, stated) for rope in _rope_parameters(text))


def allowed_positions(config: Any, max_model_len: int | None) -> int | None:
    """Returns the most positions of a request: those that the caller asks for, or else those of the model's config.

    Args:
        config: A config of transformers, as for :func:`max_positions`.
        max_model_len: The most positions that the caller asks for. None: :func:`max_positions` decides.

    Raises:
        SpecError: The model's code would compute the documents of so long a request otherwise than those that are
            stored.
    """
    most = max_positions(config)
    if max_model_len is None or most is None or max_model_len <= most:
        return most if max_model_len is None else max_model_len
    for rope in _rope_parameters(_text_config(config)):
        if reason := _dependence_on_length(rope):
            raise SpecError(
                f"max_model_len = {max_model_len}, but {reason} for requests of more than {most} positions, so stored "
                f"documents would be wrong; give at most max_model_len={most}"
            )
    return max_model_len


def depends_on_length(config: Any) -> bool:
    """Returns True if the model's code looks at the greatest position of each pass to choose its frequencies."""
    return any(rope.get("rope_type") in LENGTH_DEPENDENT for rope in _rope_parameters(_text_config(config)))


def _dependence_on_length(rope: dict[str, Any]) -> str | None:
    """Returns what depends on positions beyond the original context, or None."""
    if rope.get("rope_type") in LENGTH_DEPENDENT:
        return f'rope_type = "{rope["rope_type"]}" has other frequencies'
    if rope.get("llama_4_scaling_beta"):
        return "llama_4_scaling_beta gives queries another temperature"
    return None


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Returns the parameters of RoPE, or of RoPE of each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    of_kinds = [value for value in rope.values() if isinstance(value, dict)]
    return of_kinds or [rope]


def _max_positions_of(rope: dict[str, Any], stated: int) -> int:
    original = rope.get("original_max_position_embeddings") or stated
    if rope.get("llama_4_scaling_beta"):
        return min(stated, original)
    if rope.get("rope_type") == "yarn":
        return max(stated, int(original * (rope.get("factor") or 1.0)))
    return min(stated, original) if rope.get("rope_type") == "longrope" else stated


def check_positions(maximum: int, prefix: int, documents: int, prompt: int, new_tokens: int) -> None:
    """Raises SpecError if a request of so many tokens has more positions than the maximum.

    The last new token needs no position, because the model does not read it.
    """
    needed = prefix + documents + prompt + max(0, new_tokens - 1)
    before = f"prefix: {prefix}, documents: {documents}" if prefix else f"documents: {documents}"
    if needed > maximum:
        raise SpecError(
            f"the request needs {needed} positions ({before}, prompt: {prompt}, max_new_tokens: "
            f"{new_tokens}); the engine allows {maximum}. Give fewer documents, or a smaller max_new_tokens. By "
            f"default the limit is the model's own maximum; attach(..., max_model_len={needed}) goes beyond it"
        )
