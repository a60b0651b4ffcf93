"""The models that the engine serves, and the attention of their layers."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from .._core import AttentionSpec, LayerGroup, model_types
from .._layers import num_layers_of, require_equal
from .._precomputed import COMPACT, STATES, argument_of
from ..errors import SpecError
from .limits import allowed_positions, depends_on_length
from .ranks import check_heads, check_is_whole, num_ranks

NO_INTERFACE = "its code does not call the attention interface of transformers"
RECURRENT = "it has layers with a recurrent state, which is not position-free"
OWN_POSITIONS = "its code takes the temperature of queries from their place in a pass, not from their position"
WRAPPER = "the engine serves text models; load a causal language model of its text_config, if there is one"
NO_CLASS = "transformers has no causal language model of this type"
# The model types with attention that from_hf may read and the engine does not serve, with the reason.
NOT_SERVED = {
    **dict.fromkeys(("gptj", "falcon"), NO_INTERFACE),
    "llama4_text": OWN_POSITIONS,
    **dict.fromkeys(("bamba", "falcon_h1", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "minimax"), RECURRENT),
    **dict.fromkeys(("nemotron_h", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), RECURRENT),
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"), NO_CLASS),
    **dict.fromkeys(("glm4v_text", "glm4v_moe_text"), NO_CLASS),
}
MODEL_TYPES = tuple(name for name in model_types() if name not in NOT_SERVED)
# All layers share the pool's pages and the tensors of a pass.
SHARED = ("head_dim", "num_q_heads", "num_kv_heads", "dtype", "kv_dtype")


def layer_groups(
    model: Any,
    kv_dtype: Any = None,
    max_model_len: int | None = None,
    *,
    cascade: bool = False,
    memories: str | None = None,
) -> list[LayerGroup]:
    """Returns the attention of all layers of a model, or of one rank of it, for queries that the model has rotated.

    Args:
        model: A causal language model of transformers.
        kv_dtype: The type of the pool, as in :meth:`lazyrope.AttentionSpec.from_hf`.
        max_model_len: The most positions of a request, which chooses the list of LongRoPE. None: the most that the
            model's config allows.
        cascade: If True, segments that several requests read are read once.
        memories: The kind of memories: keys have biases for "compact", and segments may be memories for "states".

    Raises:
        SpecError: The engine does not support the model. The message says why.
    """
    _check_is_loaded(model)
    _check_type(model)
    dtype = torch.float16 if model.dtype == torch.float16 else torch.bfloat16
    options: dict[str, Any] = {
        "dtype": dtype,
        "query_form": "rotated",
        "kv_dtype": kv_dtype,
        "max_model_len": allowed_positions(model.config, max_model_len),
        "cascade": cascade,
        "key_bias": memories == COMPACT,
        "states": memories == STATES,
    }
    if memories is not None:
        check_is_whole(model, argument_of(memories))
    groups = AttentionSpec.groups_from_hf(model.config, **options)
    if num_ranks(model) > 1:
        check_heads(model, groups[0].spec)
        groups = AttentionSpec.groups_from_hf(model.config, **options, tensor_parallel=num_ranks(model))
    if num_layers_of(groups) != model.config.num_hidden_layers:
        raise SpecError(
            f"{num_layers_of(groups)} of {model.config.num_hidden_layers} layers have attention; the engine supports "
            "models whose layers all have it, for other layers have states that are not position-free"
        )
    require_equal(groups, SHARED)
    return groups


def can_be_captured(model: Any) -> bool:
    """Returns False if the model's code reads numbers back to the host, which no CUDA graph can capture.

    A model that is divided among ranks is not captured either, because its sums over ranks were not tested in graphs.
    transformers marks the classes whose code does not. A loop over experts reads back which experts have tokens, and
    LongRoPE and dynamic scaling read back the greatest position.
    """
    if depends_on_length(model.config) or num_ranks(model) > 1:
        return False
    has_experts = getattr(model, "_can_set_experts_implementation", lambda: False)()
    loops = has_experts and model.config._experts_implementation == "eager"
    return bool(getattr(model, "_can_compile_fullgraph", False)) and not loops


def _check_is_loaded(model: Any) -> None:
    """Raises SpecError for the name of a model, or anything else that is not a causal model of transformers."""
    if not (hasattr(model, "config") and hasattr(model, "get_output_embeddings")):
        name = str(model) if isinstance(model, str | os.PathLike) else "HuggingFaceTB/SmolLM2-135M-Instruct"
        raise SpecError(
            f"model = {model!r:.80}; it must be a loaded model of transformers:\n"
            f"    model = AutoModelForCausalLM.from_pretrained({name!r}, dtype=torch.bfloat16)\n"
            f"    engine = lazyrope.transformers.attach(model, budget=...)"
        )
    if model.get_output_embeddings() is None:
        raise SpecError(f"{type(model).__name__} gives no logits; load the model by AutoModelForCausalLM")
    if others := {str(p.device) for p in model.parameters()} - {str(model.device)}:
        raise SpecError(f"the model is on {model.device} and on {', '.join(sorted(others))}; it must be on one device")


def _check_type(model: Any) -> None:
    """Raises SpecError for a model type that the engine does not support."""
    config = model.config
    model_type = f'model_type = "{config.model_type}" is not supported'
    reason = NOT_SERVED.get(config.model_type)
    if reason is None and config.get_text_config() is not config:
        reason = WRAPPER
    if reason is None and getattr(model, "_is_stateful", False):
        reason = RECURRENT
    if reason is not None:
        raise SpecError(f"{model_type}: {reason}")
    if config.model_type not in MODEL_TYPES:
        raise SpecError(f"{model_type}; allowed are: {', '.join(MODEL_TYPES)}")
    if not _calls_interface(model):
        raise SpecError(
            f"{type(model).__module__}.{type(model).__name__} does not use the attention interface of transformers "
            "(ALL_ATTENTION_FUNCTIONS); load the model with the code of transformers"
        )


def _calls_interface(model: Any) -> bool:
    """Returns True if the code of the model's attention looks functions up in the interface of transformers."""
    layers = {type(module) for module in model.modules() if hasattr(module, "layer_idx")}
    code = [sys.modules.get(base.__module__) for layer in layers for base in layer.__mro__]
    return any(hasattr(module, "ALL_ATTENTION_FUNCTIONS") for module in code)
