"""RoPE variants: each function returns a :class:`Rope` for :class:`AttentionSpec`.

All take ``rotary_dim``, the columns that turn, from the first on (all of them by default; a multiple of 4, from 128 on
of 8), and all but :func:`none` ``attention_factor``, which multiplies the rotated pairs of queries and of keys once
each, where it is the kernels that rotate them.
"""

from __future__ import annotations

from ._core import Rope

__all__ = ["Rope", "gptj", "linear", "llama3", "neox", "none", "yarn"]


def none() -> Rope:
    """No rotation."""
    return Rope("none", 0, {})


def neox(theta: float = 10000.0, *, rotary_dim: int | None = None, attention_factor: float = 1.0) -> Rope:
    """Column i turns with column i + rotary_dim / 2 by position x theta^(-2i / rotary_dim) (RoFormer, arXiv
    2104.09864, in GPT-NeoX's pairing: Llama, Qwen, Mistral). ``theta``: base of the frequencies."""
    return _rope("neox", rotary_dim, attention_factor, theta=theta)


def gptj(theta: float = 10000.0, *, rotary_dim: int | None = None, attention_factor: float = 1.0) -> Rope:
    """Column 2i turns with column 2i + 1, by the same angles as :func:`neox` (RoFormer's own pairing: GPT-J, GLM,
    Cohere)."""
    return _rope("gptj", rotary_dim, attention_factor, theta=theta)


def linear(
    theta: float = 10000.0, *, factor: float, rotary_dim: int | None = None, attention_factor: float = 1.0
) -> Rope:
    """:func:`neox` with positions divided by ``factor`` (position interpolation, arXiv 2306.15595)."""
    return _rope("linear", rotary_dim, attention_factor, theta=theta, factor=factor)


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
    """:func:`neox` with Llama 3.1's scaling: waves longer than original_max_position_embeddings / low_freq_factor
    tokens are slowed by factor, those shorter than / high_freq_factor are kept, and those between are interpolated.
    The defaults are Llama 3.1's."""
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
    """:func:`neox` with YaRN's scaling (arXiv 2309.00071; gpt-oss, Qwen beyond 32k): pairs that turn more than
    beta_fast times within original_max_position_embeddings tokens are kept, those that turn less than beta_slow times
    are slowed by factor, and those between are interpolated, from a whole pair to a whole pair if truncate says so.
    ``attention_factor`` is 0.1 ln(factor) + 1 by default."""
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


def _rope(variant: str, rotary_dim: int | None, attention_factor: float, /, **parameters: float) -> Rope:
    if attention_factor != 1.0:
        parameters["attention_factor"] = attention_factor
    return Rope(variant, rotary_dim, parameters)
