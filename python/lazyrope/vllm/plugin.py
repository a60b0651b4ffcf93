"""Makes lazyrope's attention known to vLLM, which calls :func:`register` in each of its processes."""

from __future__ import annotations

import logging

from .requests import check_on_arrival

BACKEND = "lazyrope.vllm.backend.AttentionBackend"

logger = logging.getLogger(__name__)


def register() -> None:
    """Registers the attention backend under the name CUSTOM, and the check of requests that have documents.

    Nothing else changes until vLLM is started with them. It is the entry point of the group ``vllm.general_plugins``.
    It raises nothing, because an error here would stop every vLLM of the environment.
    """
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    check_on_arrival(current_platform)
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
