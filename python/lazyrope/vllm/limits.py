"""Refuses, when vLLM starts, what the plug-in does not serve. Each refusal has its reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._core import AttentionSpec, LayerGroup
from ..errors import SpecError
from .releases import current_release

START = "--attention-backend CUSTOM --scheduler-cls lazyrope.vllm.Scheduler --worker-cls lazyrope.vllm.Worker"


def check_config(config: Any) -> None:
    """Refuses settings with which documents would give wrong results.

    Args:
        config: The VllmConfig.

    Raises:
        SpecError: The release of vLLM, or a setting, is not served. The message names all such settings.
    """
    current_release()
    found = list(_refused(config))
    if found:
        raise SpecError("lazyrope.vllm cannot serve this configuration: " + "; ".join(found))


def check_pool(pool: Any) -> None:
    """Refuses pools whose layers do not share one block table.

    Args:
        pool: The KVCacheConfig.

    Raises:
        SpecError: There are several groups of layers, or a group has no full attention.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = pool.kv_cache_groups
    kinds = sorted({type(group.kv_cache_spec).__name__ for group in groups})
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        raise SpecError(
            f"lazyrope.vllm cannot serve this model: its layers have {len(groups)} block tables ({', '.join(kinds)}), "
            "and a document needs one of full attention. For a model of which some layers have a sliding window and "
            "others none, give --disable-hybrid-kv-cache-manager"
        )


def layer_specs(config: Any, *, cascade: bool = False) -> dict[int, AttentionSpec]:
    """Returns the attention of every layer of the model, as one rank computes it.

    Args:
        config: The VllmConfig.
        cascade: If True, tokens that several requests of a step read are read once.

    Raises:
        SpecError: lazyrope does not know the model, or its attention depends on absolute positions.
    """
    model = config.model_config
    groups = AttentionSpec.groups_from_hf(
        model.hf_text_config,
        dtype=_dtype_name(model.dtype),
        query_form="rotated",
        kv_dtype=_pool_dtype(config.cache_config.cache_dtype),
        tensor_parallel=config.parallel_config.tensor_parallel_size,
        max_model_len=model.max_model_len,
        cascade=cascade,
    )
    for group in groups:
        _check_moves(group)
    return {layer: group.spec for group in groups for layer in group.layers}


def _check_moves(group: LayerGroup) -> None:
    """Refuses attention that a padded prompt changes: vLLM counts positions with the padding of documents."""
    spec = group.spec
    what = "a temperature by position" if spec.temperature is not None else "chunks" if spec.mask == "chunked" else None
    if what is not None:
        raise SpecError(
            f"lazyrope.vllm cannot serve this model: layer {group.layers[0]} has {what}, which depends on absolute "
            "positions, and documents are padded to whole blocks"
        )


def _dtype_name(dtype: Any) -> Any:
    """Returns the name of a dtype. In plain PyTorch on the CPU, float32 works like the others."""
    name = str(dtype).removeprefix("torch.")
    return "bfloat16" if name == "float32" else name


def _pool_dtype(name: str) -> Any:
    """Returns the type of a pool of 8 bits by vLLM's name, or None for a pool of the model's dtype."""
    known = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
    if name not in (*known, "auto", "bfloat16", "float16", "float32"):
        raise SpecError(f"--kv-cache-dtype {name}; lazyrope.vllm serves: auto, bfloat16, float16, {', '.join(known)}")
    return known.get(name)


def _refused(config: Any) -> Iterator[str]:
    model, parallel = config.model_config, config.parallel_config
    backend = getattr(config.attention_config.backend, "name", None)
    size = config.cache_config.block_size
    events = config.kv_events_config
    is_float32 = str(model.dtype) == "torch.float32" and config.device_config.device_type != "cpu"
    for is_refused, reason in (
        (backend != "CUSTOM", f"the attention backend is {backend}; start vLLM with {START}"),
        (
            config.speculative_config is not None,
            "with speculative decoding, the host does not know how long requests are",
        ),
        (config.kv_transfer_config is not None, "a KV connector loads blocks without saying at which positions"),
        (events is not None and events.enable_kv_cache_events, "KV events cannot express the hashes of documents"),
        (parallel.decode_context_parallel_size > 1, "decode context parallelism divides blocks among ranks"),
        (parallel.prefill_context_parallel_size > 1, "prefill context parallelism divides prompts among ranks"),
        (
            parallel.pipeline_parallel_size > 1,
            "with pipeline parallelism, vLLM's V1 model runner does not support a scheduler that plans a pass ahead, "
            "and its V2 model runner was not tested",
        ),
        (parallel.use_ubatching, "microbatches (--enable-dbo) divide the rows of a pass"),
        (size is not None and size % 16 != 0, f"--block-size {size} is not a multiple of 16"),
        (is_float32, "the kernels of a GPU compute in bfloat16 and float16; give --dtype bfloat16 or float16"),
        (model.runner_type != "generate", "only models that generate text are served"),
        (model.is_encoder_decoder, "an encoder-decoder model has no document before its question"),
        (model.is_multimodal_model, "images and audio are not served"),
        (model.use_mla, "MLA stores latent vectors in place of keys"),
        (model.uses_mrope, "M-RoPE has several positions for each token"),
        (model.is_hybrid, "a recurrent state depends on everything before it"),
    ):
        if is_refused:
            yield reason
