"""The levels of recovery as an engine serves them, beside the slow reference of tools/quality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lazyrope.recovery import Recovery

from tools.quality.reference import Reference, Temperature

# The arguments of each level, for an engine with a prefix.
LEVELS: dict[str, dict[str, Any]] = {
    "none": {},
    "prefix": {},
    "first_page": {"overlay_tokens": 16},
    "guided": {"overlay_tokens": 16, "share": 0.4},
    "ape": {"attention_temperature": 0.9, "lse_scale": 0.9},
}


def reference_logits(
    reference: Reference,
    prompt: Sequence[int],
    documents: Sequence[Sequence[int]],
    recovery: Recovery,
    recomputed: Sequence[Sequence[int]],
) -> torch.Tensor:
    """Returns the logits of a prompt, [tokens, vocabulary size], by the slow reference.

    Args:
        reference: The reference of the served model.
        prompt: The tokens of the prompt.
        documents: The tokens of each document.
        recovery: The level and its parameters.
        recomputed: The indices of the tokens of each document that the engine computed again.
    """
    stored = reference.store(recovery.shown_prefix, documents, behind_prefix=True)
    again = [tokens[i] for tokens, own in zip(stored.documents(), recomputed, strict=True) for i in own]
    is_ape = recovery.level == "ape"
    by = Temperature(recovery.attention_temperature, recovery.lse_scale) if is_ape else None
    return reference.read(stored, prompt, again, by).logits


def kl_divergence(exact: torch.Tensor, given: torch.Tensor) -> float:
    """Returns the mean of KL(exact || given) over the rows of two tensors of logits, in nats."""
    both = [logits.float().log_softmax(-1) for logits in (given, exact)]
    return float(torch.nn.functional.kl_div(*both, log_target=True, reduction="batchmean"))
