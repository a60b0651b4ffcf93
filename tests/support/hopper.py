"""The factors of random settings of Hopper's kernels, which the emulator runs."""

from __future__ import annotations

from typing import Any

FACTORS: dict[str, tuple[Any, ...]] = {
    "head_dim": (64, 72, 80, 96, 112, 128, 160, 192, 256),
    "group": (1, 3, 4, 8, 16),
    "dtype": ("bfloat16", "float16"),
    "page_size": (16, 32, 64),
    "layout": ("NHD", "HND"),
    "query_form": ("raw", "rotated"),
    "rope": ("none", "neox", "gptj", "llama3", "yarn", "partial neox", "attention factor"),
    "phase": ("chunk", "prefill", "mixed"),
    "mask": ("causal", "full", "sliding_window", "chunked"),
    "kv_heads": (1, 2, 3),
    "scores": ("plain", "scale", "softcap", "sinks", "temperature"),
    "batch_invariant": (False, True),
}
