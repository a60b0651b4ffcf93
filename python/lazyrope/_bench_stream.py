"""How long the GPU takes to read as many bytes as a row does."""

from __future__ import annotations

from ._bench_timer import Call, Memory


def stream_call(memory: Memory, num_bytes: int) -> Call:
    """PyTorch's sum over num_bytes of the GPU's memory; for few of them, mostly the time of its two launches."""
    import torch

    data = memory.numbers(max(2, num_bytes // 2), "bfloat16").view(torch.float32)
    return lambda: data.sum()
