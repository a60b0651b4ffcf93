"""Lets vLLM's V2 model runner run on the CPU, where Triton has no compiler: a plug-in of pytest.

Triton's interpreter runs the kernels of the runner on NumPy arrays. vLLM for the CPU looks for a Triton that has a
backend for the CPU, so this module registers one, of which only the presence counts. It must be loaded before vLLM:

    make test-vllm-v2
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")

from triton.backends import backends
from triton.backends.compiler import GPUTarget


class _Driver:
    """A driver that answers what Triton and vLLM ask when kernels are interpreted."""

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: Any) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 1)


backends.clear()
backends["cpu"] = SimpleNamespace(driver=_Driver, compiler=None)

from vllm.v1.sample.ops import topk_topp_sampler  # noqa: E402


def _top_k_top_p(logits: Any, k: Any, p: Any) -> Any:
    return topk_topp_sampler.apply_top_k_top_p_pytorch(logits, k, p)


# The interpreter does not run this kernel. vLLM has the same in PyTorch.
topk_topp_sampler.apply_top_k_top_p_triton = _top_k_top_p
