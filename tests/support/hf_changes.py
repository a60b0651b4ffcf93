"""Configs of each model type of from_hf, and changes of each key that could matter to attention."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

ABSENT = ...  # the value of a removed key
LAYERS = 4
FULL, SLIDING = "full_attention", "sliding_attention"

COMMON = {"vocab_size": 8, "intermediate_size": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": LAYERS, "max_position_embeddings": 512}
GROUPED = COMMON | HEADS | {"num_key_value_heads": 2}
BASES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": GROUPED | {"sliding_window": 16, "head_dim": 64},
    "qwen2": GROUPED | {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
    "qwen3": GROUPED | {"use_sliding_window": False, "sliding_window": None, "head_dim": 64},
    "gemma2": GROUPED | {"sliding_window": 16, "head_dim": 64},
    "phi3": GROUPED | {"sliding_window": 16, "rope_theta": 1e4, "partial_rotary_factor": 0.75},
    "gptj": COMMON | {"n_embd": 512, "n_head": 8, "n_layer": LAYERS, "n_positions": 64, "rotary_dim": 32, "n_inner": 8},
    "gpt_neox": COMMON | HEADS | {"rotary_pct": 0.25, "rotary_emb_base": 10000},
    "falcon": COMMON | HEADS | {"multi_query": True, "ffn_hidden_size": 8},
    "starcoder2": GROUPED | {"sliding_window": 16, "rope_theta": 1e5},
    "smollm3": GROUPED | {"use_sliding_window": False, "sliding_window": None, "rope_theta": 2e6},
    "olmo2": GROUPED | {"rope_theta": 5e5, "rope_scaling": None},
    "gpt_oss": GROUPED | {"sliding_window": 16, "head_dim": 64, "num_local_experts": 2, "num_experts_per_tok": 1},
    "mixtral": GROUPED | {"sliding_window": 16, "rope_theta": 1e6},
    "qwen3_moe": GROUPED | {"use_sliding_window": False, "sliding_window": None, "head_dim": 64},
    "dots1": GROUPED | {"sliding_window": None},
    "cwm": GROUPED | {"sliding_window": 16, "head_dim": 64},
    "cohere2": GROUPED | {"sliding_window": 16, "rope_theta": 5e4},
    "exaone4": GROUPED | {"sliding_window": 16, "sliding_window_pattern": 4},
    "arcee": GROUPED | {"head_dim": 64},
    "jais2": GROUPED | {"head_dim": 64},
    "olmo": GROUPED,
    "olmoe": GROUPED,
    "flex_olmo": GROUPED,
    "bitnet": GROUPED,
    "apertus": GROUPED,
    "gemma": GROUPED | {"head_dim": 64},
    "seed_oss": GROUPED | {"head_dim": 64},
    "hy_v3": GROUPED | {"head_dim": 64},
    "minimax_m2": GROUPED | {"head_dim": 64},
    "ernie4_5": GROUPED | {"head_dim": 64},
    "ernie4_5_moe": GROUPED,
    "cohere": GROUPED,
    "helium": GROUPED | {"head_dim": 64},
    "granite": GROUPED | {"attention_multiplier": 0.015625},
    "granitemoe": GROUPED | {"attention_multiplier": 0.015625},
    "granitemoeshared": GROUPED | {"attention_multiplier": 0.015625},
    "phi": GROUPED | {"partial_rotary_factor": 0.5},
    "stablelm": GROUPED | {"partial_rotary_factor": 0.25},
    "nemotron": GROUPED | {"partial_rotary_factor": 0.5, "head_dim": 64},
    "glm": GROUPED | {"partial_rotary_factor": 0.5, "head_dim": 64},
    "glm4": GROUPED | {"partial_rotary_factor": 0.5, "head_dim": 64},
    "glm4_moe": GROUPED | {"partial_rotary_factor": 0.5, "head_dim": 64},
    "solar_open": GROUPED | {"head_dim": 64},
}

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
CONTEXT = {"original_max_position_embeddings": 128}
ROPES: list[Any] = [
    None,
    {},
    {"rope_theta": 5e5},
    {"rope_type": "default", "rope_theta": 5e5},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 2, "rope_theta": 1e6},
    {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
    LLAMA3 | CONTEXT,
    LLAMA3,
    LLAMA3 | {"original_max_position_embeddings": None},
    YARN | CONTEXT,
    YARN,
    YARN | CONTEXT | {"factor": None},
    YARN | CONTEXT | {"truncate": False},
    YARN | CONTEXT | {"truncate": None, "beta_fast": 0, "beta_slow": None},
    YARN | CONTEXT | {"mscale": 1.5, "mscale_all_dim": 0.75, "beta_fast": 16},
    YARN | CONTEXT | {"attention_factor": 1.25, "mscale": 1.5},
    YARN | {"type": "linear"},
    {"rope_type": "yarn"} | CONTEXT,
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32} | CONTEXT,
    {"rope_type": "proportional", "rope_theta": 1e4},
    {FULL: {"rope_type": "default", "rope_theta": 1e6}, SLIDING: {"rope_type": "default", "rope_theta": 1e4}},
    "default",
]

# The values of each key. Numbers are small, so that a model is quick to build.
VALUES: dict[str, list[Any]] = {
    "hidden_size": [768, 1024, None],
    "num_attention_heads": [4, 16, 1],
    "num_key_value_heads": [None, 1, 4, 8, 3],
    "num_hidden_layers": [2, 5],
    "head_dim": [None, 64, 128, 96],
    "n_embd": [768, 1024],
    "n_head": [4, 16],
    "n_layer": [2],
    "n_embed": [512, 768, None],
    "num_kv_heads": [None, 2, 8],
    "multi_query": [True, False, None],
    "new_decoder_architecture": [True, False, None],
    "alibi": [True, False, None],
    "is_causal": [True, False, None],
    "use_bidirectional_attention": [True, False, None],
    "sliding_window": [None, 8, 24, 0],
    "sliding_window_pattern": [None, 2, 4],
    "use_sliding_window": [True, False, None],
    "max_window_layers": [0, 3, 28],
    "layer_types": [
        None,
        [FULL] * LAYERS,
        [SLIDING] * LAYERS,
        [FULL, SLIDING] * 2,
        [FULL] * 2,
        ["chunked_attention"] * LAYERS,
        ["attention"] * LAYERS,
    ],
    "attn_logit_softcapping": [None, 20.0, 0.0],
    "query_pre_attn_scalar": [64, 100, 0],
    "attention_multiplier": [None, 0.1],
    "scale_attn_weights": [True, False],
    "rope_theta": [5e5, 1000, None],
    "rotary_emb_base": [20000, 10000],
    "rotary_pct": [0.5, 1.0, 0.0],
    "partial_rotary_factor": [0.5, 1.0, None],
    "rotary_dim": [16, 64, None, 0],
    "rope_scaling": ROPES,
    "rope_parameters": ROPES,
    "rope_interleaved": [False, True],
    "rope_local_base_freq": [1e4],
    "original_max_position_embeddings": [64, 256, None],
    "max_position_embeddings": [64, 1024],
    "n_positions": [128],
    "no_rope_layers": [None, [1, 1, 0, 1], [0] * LAYERS, [1] * LAYERS, [True, False] * 2, []],
    "no_rope_layer_interval": [2, 0, 4],
    "attention_chunk_size": [None, 8],
    "dual_chunk_attention_config": [None, {"chunk_size": 8, "local_size": 4}],
    "num_kv_shared_layers": [0, 1],
    "per_layer_config": [None, {}, {"0": {"sliding_window": 4}}, {"1": {"num_attention_heads": 4}}],
    "text_config": [None, {"model_type": "llama"}],
    "dtype": ["float16", "bfloat16", "float32", None],
    "torch_dtype": ["float16", None],
}

# transformers ignores these keys, or they do not change attention. from_hf must accept them.
HARMLESS: dict[str, list[Any]] = {
    "attention_bias": [True, False],
    "attention_dropout": [0.1],
    "auto_map": [{"AutoModel": "modeling.Model"}],
    "initializer_range": [0.02],
    "pretraining_tp": [2],
    "quantization_config": [{"quant_method": "fp8", "weight_block_size": [128, 128]}],
    "stray": [float("nan"), [float("-inf")], {"head_dim": 3}],
    "use_cache": [True],
}

# The other keys that the code of these model types reads. They are about the rest of the model, or about its training.
OTHER = set(
    """
    activation activation_function architectures attn_pdrop bias bos_token_id chunk_size_feed_forward
    attention_out_bias classifier_dropout clip_qkv decoder_sparse_step embd_pdrop embedding_dropout
    embedding_multiplier enable_moe_fp32_combine eos_token_id ffn_hidden_size final_logit_softcapping
    first_k_dense_replace hidden_act hidden_activation hidden_dropout id2label intermediate_size is_decoder
    is_encoder_decoder label2id layer_norm_eps layer_norm_epsilon logit_scale logits_scaling mlp_bias mlp_layer_types
    mlp_only_layers moe_intermediate_size moe_k moe_layer_end_index moe_layer_interval moe_layer_start_index
    moe_norm_min moe_num_experts moe_num_shared_experts n_group n_inner n_routed_experts n_shared_experts norm_eps
    norm_epsilon norm_topk_prob num_experts num_experts_per_tok num_labels num_ln_in_parallel_attn num_local_experts
    num_mtp_layers num_shared_experts output_attentions output_hidden_states output_router_logits pad_token_id
    parallel_attn problem_type qk_layernorm resid_pdrop residual_dropout residual_multiplier return_dict rms_norm_eps
    routed_scaling_factor router_aux_loss_coef router_jitter_noise router_scaling_factor shared_intermediate_size
    tie_word_embeddings topk_group transformers_version use_bias use_parallel_residual use_qk_norm use_qkv_bias
    vocab_size
    """.split()
)

Change = tuple[str, Any]


def changes(model_type: str) -> list[Change]:
    """Returns each change of one key of the model type's config: to each of its values, and its removal."""
    base = BASES[model_type]
    every = [(key, value) for key, values in (VALUES | HARMLESS).items() for value in [*values, ABSENT]]
    return [(key, value) for key, value in every if base.get(key, ABSENT) != value]


def changed(model_type: str, *made: Change) -> dict[str, Any]:
    """Returns the config of the model type with the changes."""
    config = copy.deepcopy(BASES[model_type]) | {"model_type": model_type}
    for key, value in made:
        config[key] = copy.deepcopy(value)
    return {key: value for key, value in config.items() if value is not ABSENT}


def pairs_of_changes() -> Iterator[tuple[str, Change, Change]]:
    """Yields each two changes of different keys, of each model type."""
    for model_type in BASES:
        for first, second in itertools.combinations(changes(model_type), 2):
            if first[0] != second[0]:
                yield model_type, first, second
