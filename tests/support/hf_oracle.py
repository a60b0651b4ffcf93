"""Reads the attention of a config.json from transformers' own modules, without running any attention.

The model's decoder layers are replaced by recorders. A recorder holds the real attention module, whose weights are on
PyTorch's meta device, and takes the mask and the rotary embedding that the real model passes to its layers. So a config
costs milliseconds.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import inspect
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.initialization import no_init_weights
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TOKENS = 40
POSITIONS = torch.tensor([0, 1, 14, 15, 16, 127, 128, 300, 8190, 8191, 8192, 16384, 100_000])
# The decoder layer's class of each model type has a name with one of these endings.
LAYER_NAMES = ("AttentionDecoderLayer", "DecoderLayer", "Block", "Layer")
# The model's class has the layer's prefix and one of these endings: that of the text model comes first.
MODEL_NAMES = ("TextModel", "Model")
# The code of these types rotates the leading columns that the embedding has. That of others needs all columns.
PARTIAL = {"gpt_neox", "phi3", "phi", "stablelm", "nemotron", "glm", "glm4", "glm4_moe", "solar_open", "persimmon"}
PARTIAL |= {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "bamba", "glm4v_text", "glm4v_moe_text"}
# How the code of these types decides whether a layer rotates. The models of others say so by the rotary embedding that
# they pass.
HAS_ROPE: dict[str, Callable[[Any], bool]] = {
    "afmoe": lambda attention: attention.is_local_attention,
    "cohere2": lambda attention: attention.sliding_window is not None,
    "exaone4": lambda attention: attention.sliding_window is None or attention.is_sliding,
    "exaone_moe": lambda attention: attention.sliding_window is None or attention.is_sliding,
}
# The layers of these types are of several classes, or have several mixers of tokens. Their code decides by the config
# which layers have attention.
HYBRID = {"lfm2", "lfm2_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "minimax", "granitemoehybrid", "bamba"}
HYBRID |= {"jamba", "nemotron_h", "falcon_h1"}
# The layers of these types return a tuple.
RETURN_TUPLES = ("GPTJ", "Falcon", "Bamba")


class Unusable(Exception):
    """transformers cannot build or run the model, or its parts contradict each other."""


@dataclass
class Layer:
    """The attention of a layer."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    sinks: bool
    visible: torch.Tensor  # [queries, keys]
    frequencies: torch.Tensor  # radians per token of each pair of columns; empty without RoPE
    attention_factor: float
    dtype: str
    pairing: str  # as AttentionSpec.rope_pairing
    temperature: torch.Tensor  # the factor of queries at POSITIONS


class Recorder(nn.Module):
    """Takes the place of a decoder layer."""

    attention_class: type[nn.Module]
    calls: list[tuple[nn.Module | None, dict[str, Any]]]

    def __init__(self, config: Any, layer_idx: int | None = None, **named: Any) -> None:
        super().__init__()
        with torch.device("meta"):
            self.attention = self.attention_of(config, layer_idx, **named)

    def attention_of(self, config: Any, layer_idx: int | None) -> nn.Module | None:
        return self.attention_class(config, layer_idx)

    def forward(self, hidden_states: torch.Tensor, **named: Any) -> Any:
        self.calls.append((self.attention, named))
        returns_tuple = self.attention_class.__name__.startswith(RETURN_TUPLES)
        return (hidden_states, None) if returns_tuple else hidden_states


class HybridRecorder(Recorder):
    """Takes the place of a layer that may have attention. The real layer says whether it has."""

    layer_class: type[nn.Module]

    def attention_of(self, config: Any, layer_idx: int | None, **named: Any) -> nn.Module | None:
        layer = self.layer_class(config, layer_idx, **named)
        self.block_type = getattr(layer, "block_type", None)
        self.mamba = getattr(layer, "mamba", None)  # Falcon-H1's model writes to it
        return next((module for module in layer.modules() if isinstance(module, self.attention_class)), None)


def module_of(model_type: str) -> Any:
    config_module = CONFIG_MAPPING[model_type].__module__
    return importlib.import_module(config_module.replace(".configuration_", ".modeling_"))


def keys_of(model_type: str) -> set[str]:
    """Returns the keys that the type's config class declares, and those that its modelling code names."""
    declared = {field.name for field in dataclasses.fields(CONFIG_MAPPING[model_type])}
    source = text_source_of(module_of(model_type))
    named = re.findall(r"\bconfig\.([a-z]\w*)", source) + re.findall(r'attr\([\w.]*config, "([a-z]\w*)"', source)
    return declared | set(named)


def text_source_of(module: Any) -> str:
    """Returns the module's source without its classes for images."""
    layer = class_of(module, *LAYER_NAMES)
    model = class_of(module, *(prefix_of(layer).removesuffix("Text") + ending for ending in MODEL_NAMES))
    if not model.__name__.endswith("TextModel"):
        return inspect.getsource(module)
    of_text = (x for x in vars(module).values() if getattr(x, "__module__", None) == module.__name__)
    prefix = prefix_of(layer)
    own = [x for x in of_text if getattr(x, "__name__", "").startswith(prefix) and "Vision" not in x.__name__]
    multimodal = (prefix.removesuffix("Text") + "Model", prefix.removesuffix("Text") + "ForConditionalGeneration")
    return "".join(inspect.getsource(x) for x in own if x.__name__ not in multimodal)


def class_of(module: Any, *endings: str) -> type:
    """Returns the class that the module defines under a name with one of the endings, in their order."""
    own = [x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__]
    return next(x for ending in endings for x in own if x.__name__.endswith(ending))


def attention_layers(config: dict[str, Any]) -> list[Layer | None]:
    """Returns the attention of each layer, and None for a layer without attention.

    Raises:
        Unusable: transformers cannot build or run such a model.
    """
    try:
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            return _layers(config)
    except Unusable:
        raise
    except Exception as error:
        raise Unusable(f"{type(error).__name__}: {error}") from error


def _layers(config: dict[str, Any]) -> list[Layer | None]:
    model_type = config["model_type"]
    built = CONFIG_MAPPING[model_type].from_dict(copy.deepcopy(config))
    built._attn_implementation = "eager"
    model, calls = recorded(model_type, built)
    rotary = getattr(model, "rotary_emb", None) or getattr(model, "pos_emb", None)
    layers = [
        None if attention is None else layer_of(model_type, attention, named, rotary, built)
        for attention, named in calls
    ]
    check_cache(built, layers)
    return layers


def recorded(model_type: str, config: Any) -> tuple[nn.Module, list[tuple[nn.Module | None, dict[str, Any]]]]:
    """Runs the model with recorders as layers, and returns it and the recorded calls."""
    calls: list[tuple[nn.Module | None, dict[str, Any]]] = []
    module = module_of(model_type)
    layer = class_of(module, *LAYER_NAMES)
    prefix = prefix_of(layer)
    model_class = class_of(module, *(prefix.removesuffix("Text") + ending for ending in MODEL_NAMES))
    fields = {"attention_class": class_of(module, prefix + "Attention"), "calls": calls}
    base = HybridRecorder if model_type in HYBRID else Recorder

    def recorder(replaced: type) -> type:
        return type("RecorderOfType", (base,), fields | {"layer_class": replaced})

    classes = getattr(module, "ALL_DECODER_LAYER_TYPES", {})
    by_name = mock.patch.dict(classes, {name: recorder(replaced) for name, replaced in classes.items()})
    with mock.patch.object(module, layer.__name__, recorder(layer)), by_name, no_init_weights():
        model = model_class(config)
    model(
        inputs_embeds=torch.zeros(1, TOKENS, config.hidden_size),
        attention_mask=torch.ones(1, TOKENS, dtype=torch.int64),
        position_ids=torch.arange(TOKENS)[None],
        use_cache=False,
    )
    return model, calls


def prefix_of(layer: type) -> str:
    return next(layer.__name__.removesuffix(name) for name in LAYER_NAMES if layer.__name__.endswith(name))


def layer_of(model_type: str, attention: Any, named: dict[str, Any], rotary: Any, config: Any) -> Layer:
    head_dim = getattr(attention, "head_size", None) or attention.head_dim
    q_heads, kv_heads = heads_of(model_type, attention, head_dim, config)
    frequencies, factor = rope_of(model_type, attention, named, rotary, head_dim)
    visible = named["attention_mask"][0, 0] == 0
    window = getattr(attention, "sliding_window", None) if getattr(attention, "is_sliding", True) else None
    if window is not None:
        offset = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)[None]
        if not torch.equal(visible, (offset >= 0) & (offset < window)):
            raise Unusable("the layer's window is not that of its mask")
    elif hasattr(attention, "sliding_window") and not torch.equal(visible, visible.new_ones(TOKENS, TOKENS).tril()):
        raise Unusable("the layer has no window, but its mask has one")
    if not attention.is_causal:
        raise Unusable("the layer is not causal")
    return Layer(
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=scale_of(attention),
        softcap=getattr(attention, "attn_logit_softcapping", None),
        sinks=hasattr(attention, "sinks"),
        visible=visible,
        frequencies=frequencies,
        attention_factor=factor,
        dtype=str(config.dtype).removeprefix("torch."),
        pairing=pairing_of(model_type, frequencies),
        temperature=temperature_of(model_type, attention),
    )


def heads_of(model_type: str, attention: Any, head_dim: int, config: Any) -> tuple[int, int]:
    """Returns the numbers of query heads and KV heads, from the widths of the projections."""
    if model_type == "gptj":
        return attention.num_attention_heads, attention.num_attention_heads
    if model_type in ("gpt_neox", "persimmon"):
        heads = attention.query_key_value.out_features // (3 * head_dim)
        return heads, heads
    if model_type.startswith(("qwen3_next", "qwen3_5")):  # q_proj has a gate beside each query head
        return attention.o_proj.in_features // head_dim, attention.k_proj.out_features // head_dim
    if model_type == "falcon":
        heads, kv_heads = attention.num_heads, attention.num_kv_heads
        width = attention.query_key_value.out_features
    elif model_type == "phi3":
        heads, kv_heads = config.num_attention_heads, attention.num_key_value_heads
        width = attention.qkv_proj.out_features
    else:
        heads, kv_heads = (x.out_features // head_dim for x in (attention.q_proj, attention.k_proj))
        width = (heads + 2 * kv_heads) * head_dim
    if width != (heads + 2 * kv_heads) * head_dim or heads % kv_heads:
        raise Unusable("the heads do not fit the projection")
    return heads, kv_heads


def scale_of(attention: Any) -> float:
    if hasattr(attention, "scale_attn"):
        return 1.0 / float(attention.scale_attn)
    return float(attention.scaling if hasattr(attention, "scaling") else attention.inv_norm_factor)


def rope_of(
    model_type: str, attention: Any, named: dict[str, Any], rotary: Any, head_dim: int
) -> tuple[torch.Tensor, float]:
    """Returns the radians per token of each pair of columns, and the factor of cosine and sine."""
    if model_type == "gptj":
        if not 0 < attention.rotary_dim <= head_dim:
            raise Unusable("the rotated columns do not fit the head")
        sine = module_of("gptj").create_sinusoidal_positions(2, attention.pos_embd_dim)[1].double()
        return torch.asin(sine[: attention.rotary_dim // 2]).nan_to_num(math.pi / 2), 1.0
    has_rope = HAS_ROPE.get(model_type, lambda attention: getattr(attention, "use_rope", True))
    if not has_rope(attention) or named.get("position_embeddings") is None:
        return torch.zeros(0, dtype=torch.float64), 1.0
    columns = named["position_embeddings"][0].shape[-1] * (2 if model_type in ("gpt_oss", "llama4_text") else 1)
    if columns > head_dim or (columns < head_dim and model_type not in PARTIAL):
        raise Unusable(f"{columns} rotated columns do not fit head_dim {head_dim}")
    if isinstance(rotary.rope_type, dict):
        return rope_of_kind(attention, rotary)
    if rotary.rope_type == "longrope":
        return longrope_of(model_type, named, rotary)
    return rotary.inv_freq.double(), float(rotary.attention_scaling)


def rope_of_kind(attention: Any, rotary: Any) -> tuple[torch.Tensor, float]:
    """Returns the RoPE of the kind of the layer, whose rotary embedding has one for each kind."""
    kind = attention.config.layer_types[attention.layer_idx]
    if rotary.rope_type[kind] == "longrope":
        run_to_end(rotary, kind)
    return getattr(rotary, f"{kind}_inv_freq").double(), float(getattr(rotary, f"{kind}_attention_scaling"))


def run_to_end(rotary: Any, *kind: str) -> None:
    """Computes the model's last position, so that LongRoPE chooses its list for requests of the greatest length."""
    last = torch.tensor([[rotary.config.max_position_embeddings - 1]])
    rotary(torch.zeros(1), last, *kind)


def longrope_of(model_type: str, named: dict[str, Any], rotary: Any) -> tuple[torch.Tensor, float]:
    run_to_end(rotary)
    if model_type == "phimoe":  # its factor is not attention_scaling; the cosine of position 0 has it
        return rotary.inv_freq.double(), float(named["position_embeddings"][0][0, 0, 0])
    return rotary.inv_freq.double(), float(rotary.attention_scaling)


def temperature_of(model_type: str, attention: Any) -> torch.Tensor:
    if model_type == "ministral3":
        rope = attention.config.rope_parameters
        given = rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings")
        return module_of(model_type).get_llama_4_attn_scale(POSITIONS[None], *given).flatten()
    if model_type == "llama4_text" and attention.attn_temperature_tuning and not attention.use_rope:
        # The code has no function for this formula.
        return torch.log1p(torch.floor((POSITIONS + 1.0) / attention.floor_scale)) * attention.attn_scale + 1.0
    return torch.ones(len(POSITIONS))


def pairing_of(model_type: str, frequencies: torch.Tensor) -> str:
    if not len(frequencies):
        return "none"
    if model_type in ("gptj", "llama4_text"):  # Llama 4 multiplies complex numbers of neighbouring columns
        return "interleaved"
    return "interleaved" if partner_of_first_column(module_of(model_type)) == 1 else "half"


def partner_of_first_column(module: Any) -> int:
    """Returns the column that the module's RoPE rotates together with column 0, of 16."""
    if not hasattr(module, "apply_rotary_pos_emb"):
        return 8
    first = torch.zeros(1, 1, 1, 16)
    first[..., 0] = 1.0
    columns = 8 if module.__name__.endswith("gpt_oss") else 16
    cos, sin = torch.full((1, 1, columns), 0.5), torch.full((1, 1, columns), 0.25)
    rotated = module.apply_rotary_pos_emb(first, first, cos, sin)[0].flatten()
    return int(rotated.nonzero()[-1])


def check_cache(config: Any, layers: list[Layer | None]) -> None:
    """Raises Unusable if the cache that generation uses drops keys that the mask shows."""
    kinds, named = get_layer_types_and_kwargs(config)
    if len(kinds) != len(layers):
        raise Unusable("layers share a cache")
    for kind, layer in zip(kinds, layers, strict=True):
        has_window = layer is not None and kind not in ("full_attention", "hybrid")
        if has_window and (named.get("sliding_window") or 0) < TOKENS and bool(layer.visible[-1].all()):
            raise Unusable("the cache has a window, but the mask has none")
