"""RoPE variants. Each function returns a :class:`Rope` for :class:`AttentionSpec`.

    spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.neox(1e6))

All functions but :func:`none` take these two arguments:

- ``rotary_dim``: the number of columns that are rotated, from column 0 on. It is a multiple of 4; from 128 on, of 8.
  None: all columns.
- ``attention_factor``: the factor of rotated pairs of queries and of keys, once each. The kernels apply it when
  they rotate, so it does not apply to queries or keys that arrive rotated.
"""

from __future__ import annotations

from collections.abc import Sequence

from ._checks import checked
from ._core import Rope

__all__ = ["Rope", "gptj", "linear", "llama3", "llama3_gptj", "longrope", "neox", "none", "yarn"]


@checked
def none() -> Rope:
    """Returns the variant without rotation."""
    return Rope("none", 0, {})


@checked
def neox(theta: float = 10000.0, *, rotary_dim: int | None = None, attention_factor: float = 1.0) -> Rope:
    """Returns RoPE in GPT-NeoX's pairing, as Llama, Qwen and Mistral have it.

    Columns i and i + rotary_dim / 2 are rotated together, by the angle position x theta^(-2i / rotary_dim) (RoFormer,
    arXiv 2104.09864).

    Args:
        theta: The base of the frequencies.
        rotary_dim: The number of rotated columns. None: head_dim.
        attention_factor: The factor of rotated pairs.
    """
    return _rope("neox", rotary_dim, attention_factor, theta=theta)


@checked
def gptj(theta: float = 10000.0, *, rotary_dim: int | None = None, attention_factor: float = 1.0) -> Rope:
    """Returns RoPE in the pairing of RoFormer (arXiv 2104.09864), as GPT-J, GLM and Cohere have it.

    Columns 2i and 2i + 1 are rotated together, by the angles of :func:`neox`.

    Args:
        theta: The base of the frequencies.
        rotary_dim: The number of rotated columns. None: head_dim.
        attention_factor: The factor of rotated pairs.
    """
    return _rope("gptj", rotary_dim, attention_factor, theta=theta)


@checked
def linear(
    theta: float = 10000.0, *, factor: float, rotary_dim: int | None = None, attention_factor: float = 1.0
) -> Rope:
    """Returns :func:`neox` with position interpolation (arXiv 2306.15595): positions are divided by ``factor``.

    Args:
        theta: The base of the frequencies.
        factor: The divisor of positions.
        rotary_dim: The number of rotated columns. None: head_dim.
        attention_factor: The factor of rotated pairs.
    """
    return _rope("linear", rotary_dim, attention_factor, theta=theta, factor=factor)


@checked
def llama3(
    theta: float = 500000.0,
    *,
    factor: float = 8.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    original_max_position_embeddings: int = 8192,
    rotary_dim: int | None = None,
    attention_factor: float = 1.0,
) -> Rope:
    """Returns :func:`neox` with the frequency scaling of Llama 3.1. The defaults are those of Llama 3.1.

    The scaling depends on a pair's wavelength in tokens. Frequencies of wavelengths above
    original_max_position_embeddings / low_freq_factor are divided by factor. Frequencies of wavelengths below
    original_max_position_embeddings / high_freq_factor stay. The other frequencies are interpolated.

    Args:
        theta: The base of the frequencies.
        factor: The divisor of low frequencies.
        low_freq_factor: The bound of low frequencies, in wavelengths of the original context.
        high_freq_factor: The bound of high frequencies, in wavelengths of the original context.
        original_max_position_embeddings: The context of the model before scaling, in tokens.
        rotary_dim: The number of rotated columns. None: head_dim.
        attention_factor: The factor of rotated pairs.
    """
    return _rope(
        "llama3",
        rotary_dim,
        attention_factor,
        theta=theta,
        factor=factor,
        low_freq_factor=low_freq_factor,
        high_freq_factor=high_freq_factor,
        original_max_position_embeddings=original_max_position_embeddings,
    )


@checked
def llama3_gptj(
    theta: float = 500000.0,
    *,
    factor: float = 16.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 1.0,
    original_max_position_embeddings: int = 8192,
    rotary_dim: int | None = None,
    attention_factor: float = 1.0,
) -> Rope:
    """Returns :func:`gptj` with the frequency scaling of :func:`llama3`. The defaults are those of Llama 4 Scout.

    Args:
        theta: The base of the frequencies.
        factor: The divisor of low frequencies.
        low_freq_factor: The bound of low frequencies, in wavelengths of the original context.
        high_freq_factor: The bound of high frequencies, at least low_freq_factor.
        original_max_position_embeddings: The context of the model before scaling, in tokens.
        rotary_dim: The number of rotated columns. None: head_dim.
        attention_factor: The factor of rotated pairs.
    """
    return _rope(
        "llama3_gptj",
        rotary_dim,
        attention_factor,
        theta=theta,
        factor=factor,
        low_freq_factor=low_freq_factor,
        high_freq_factor=high_freq_factor,
        original_max_position_embeddings=original_max_position_embeddings,
    )


@checked
def yarn(
    theta: float = 10000.0,
    *,
    factor: float,
    original_max_position_embeddings: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    rotary_dim: int | None = None,
    attention_factor: float | None = None,
) -> Rope:
    """Returns :func:`neox` with the frequency scaling of YaRN (arXiv 2309.00071), as gpt-oss and long Qwen have it.

    The scaling depends on a pair's revolutions within original_max_position_embeddings tokens. Frequencies of pairs
    with more than beta_fast revolutions stay. Frequencies of pairs with less than beta_slow revolutions are divided by
    factor. The other frequencies are interpolated by the pair's index.

    Args:
        theta: The base of the frequencies.
        factor: The divisor of low frequencies.
        original_max_position_embeddings: The context of the model before scaling, in tokens.
        beta_fast: The revolutions from which frequencies stay.
        beta_slow: The revolutions up to which frequencies are divided.
        truncate: If True, the interpolation begins and ends at whole pairs.
        rotary_dim: The number of rotated columns. None: head_dim.
        attention_factor: The factor of rotated pairs. The default is 0.1 ln(factor) + 1.
    """
    given = {} if attention_factor is None else {"attention_factor": attention_factor}
    return _rope(
        "yarn",
        rotary_dim,
        1.0,
        theta=theta,
        factor=factor,
        original_max_position_embeddings=original_max_position_embeddings,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        truncate=float(truncate),
        **given,
    )


@checked
def longrope(
    theta: float = 10000.0,
    *,
    factors: Sequence[float],
    rotary_dim: int | None = None,
    attention_factor: float = 1.0,
) -> Rope:
    """Returns :func:`neox` with a divisor for each pair (LongRoPE, arXiv 2402.13753), as Phi-3 and Phi-4-mini have.

    Models have two lists: one for requests within the original context, and one for longer requests. A spec has one of
    them, because stored keys are rotated with it. :meth:`AttentionSpec.from_hf` chooses by ``max_model_len``.

    Args:
        theta: The base of the frequencies.
        factors: The divisor of each pair's frequency, 0.001 to 1e6: rotary_dim / 2 numbers.
        rotary_dim: The number of rotated columns. None: head_dim.
        attention_factor: The factor of rotated pairs.
    """
    rope = _rope("longrope", rotary_dim, attention_factor, theta=theta)
    return Rope(rope.variant, rope.rotary_dim, rope.parameters, {"factors": [float(x) for x in factors]})


def _rope(variant: str, rotary_dim: int | None, attention_factor: float, /, **parameters: float) -> Rope:
    if attention_factor != 1.0:
        parameters["attention_factor"] = attention_factor
    return Rope(variant, rotary_dim, parameters)
