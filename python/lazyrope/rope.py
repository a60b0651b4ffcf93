"""RoPE variants: each function returns a :class:`Rope` for :class:`AttentionSpec`."""

from __future__ import annotations

from ._core import Rope

__all__ = ["Rope", "llama3", "neox", "none"]


def none() -> Rope:
    """No rotation."""
    return Rope("none", 0, {})


def neox(theta: float = 10000.0, *, rotary_dim: int | None = None) -> Rope:
    """Column i turns with column i + rotary_dim / 2 by position x theta^(-2i / rotary_dim) (RoFormer,
    arXiv 2104.09864, in GPT-NeoX's pairing: Llama, Qwen, Mistral).

    Args:
        theta: base of the frequencies.
        rotary_dim: columns that turn, from the first on; all of them by default.
    """
    return Rope("neox", rotary_dim, {"theta": theta})


def llama3(
    theta: float = 500000.0,
    *,
    factor: float = 8.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    original_max_position_embeddings: int = 8192,
    rotary_dim: int | None = None,
) -> Rope:
    """:func:`neox` with Llama 3.1's scaling: waves longer than original_max_position_embeddings /
    low_freq_factor tokens are slowed by factor, those shorter than / high_freq_factor are kept, and those
    between are interpolated. The defaults are Llama 3.1's."""
    return Rope(
        "llama3",
        rotary_dim,
        {
            "theta": theta,
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_position_embeddings,
        },
    )
