"""Makes lazyrope's attention known to vLLM, which calls :func:`register` in each of its processes."""

from __future__ import annotations

import logging

BACKEND = "lazyrope.vllm.backend.AttentionBackend"

logger = logging.getLogger(__name__)


def register() -> None:
    """Registers the attention backend under the name CUSTOM. Nothing changes until vLLM is started with it.

    It is the entry point of the group ``vllm.general_plugins``. It raises nothing, because an error here would stop
    every vLLM of the environment.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != BACKEND:
        logger.warning("the attention backend CUSTOM is %s already; lazyrope leaves it", custom.get_path())
        return
    register_backend(custom, BACKEND)


def register_for_cpu() -> None:
    """Replaces vLLM's attention on the CPU in this process.

    On the CPU, vLLM ignores the choice of a backend, but it looks up the path of its only one.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
