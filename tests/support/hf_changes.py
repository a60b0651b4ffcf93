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
# The sizes of recurrent layers, which do not matter to attention.
LINEAR = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
MAMBA = {"mamba_n_heads": 2, "mamba_d_head": 512, "mamba_d_state": 8, "mamba_chunk_size": 8}
MAMBA_2 = {"mamba_num_heads": 2, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8}
MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 1e6}}
MINISTRAL3 = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 1e6}
MINISTRAL3 |= {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "max_position_embeddings": 512}
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
    "phimoe": GROUPED | {"sliding_window": 16},
    "qwen2_moe": GROUPED | {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3},
    "ministral": GROUPED | {"sliding_window": 16, "head_dim": 64},
    "ministral3": GROUPED | {"head_dim": 64, "rope_parameters": MINISTRAL3},
    "llama4_text": GROUPED | {"head_dim": 64, "attention_chunk_size": 16, "num_local_experts": 2, "floor_scale": 16},
    "vaultgemma": GROUPED | {"sliding_window": 16, "head_dim": 64},
    "exaone_moe": GROUPED | {"sliding_window": 16, "sliding_window_pattern": 4},
    "afmoe": GROUPED | {"sliding_window": 16, "head_dim": 64, "global_attn_every_n_layers": 2},
    "persimmon": COMMON | HEADS | {"partial_rotary_factor": 0.5},
    "hyperclovax": GROUPED | {"attention_multiplier": 0.015625},
    "gemma3_text": GROUPED | {"sliding_window": 16, "head_dim": 64, "sliding_window_pattern": 2},
    "olmo3": GROUPED | {"sliding_window": 16, "rope_theta": 5e5},
    "mellum": GROUPED | {"sliding_window": 16, "head_dim": 64, "layer_types": [SLIDING, FULL] * 2},
    "lfm2": GROUPED | {"full_attn_idxs": [1, 3]},
    "lfm2_moe": GROUPED | {"layer_types": ["conv", FULL] * 2},
    "qwen3_next": GROUPED | {"head_dim": 64} | LINEAR,
    "qwen3_5_text": GROUPED | {"head_dim": 64} | LINEAR,
    "qwen3_5_moe_text": GROUPED | {"head_dim": 64} | LINEAR,
    "minimax": GROUPED | {"block_size": 8},
    "granitemoehybrid": GROUPED
    | {"attention_multiplier": 0.015625, "position_embedding_type": "rope", "layer_types": ["mamba", "attention"] * 2}
    | MAMBA,
    "bamba": GROUPED | {"attn_layer_indices": [1, 3]} | MAMBA,
    "jamba": GROUPED | {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "nemotron_h": GROUPED | {"head_dim": 64, "hybrid_override_pattern": "M*-E"} | MAMBA_2,
    "falcon_h1": GROUPED | {"head_dim": 64} | MAMBA | {"mamba_d_ssm": 1024},
    "qwen2_vl_text": GROUPED | MROPE,
    "qwen2_5_vl_text": GROUPED | MROPE,
    "qwen3_vl_text": GROUPED | {"head_dim": 64} | MROPE,
    "qwen3_vl_moe_text": GROUPED | {"head_dim": 64} | MROPE,
    "glm4v_text": GROUPED | {"rope_parameters": {"mrope_section": [8, 12, 12], "rope_theta": 1e4}},
    "glm4v_moe_text": GROUPED | {"head_dim": 64, "rope_parameters": {"mrope_section": [4, 6, 6], "rope_theta": 1e4}},
}

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LONG = [1.0 + i / 16 for i in range(32)]
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
    YARN | CONTEXT | {"llama_4_scaling_beta": 0.2},
    YARN | {"llama_4_scaling_beta": 0.2},
    LLAMA3 | CONTEXT | {"low_freq_factor": 1.0, "high_freq_factor": 1.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32} | CONTEXT,
    {"rope_type": "longrope", "short_factor": [1.5] * 24, "long_factor": [2.0] * 24, "rope_theta": 1e5},
    {"type": "su", "short_factor": [1.5] * 24, "long_factor": [2.5] * 24} | CONTEXT,
    {"rope_type": "longrope", "short_factor": [1.5] * 32, "long_factor": LONG, "factor": 3.0} | CONTEXT,
    {"rope_type": "longrope", "short_factor": LONG, "long_factor": LONG, "attention_factor": 1.5} | CONTEXT,
    {"rope_type": "longrope", "short_factor": LONG, "long_factor": LONG, "short_mscale": 1.25, "long_mscale": 1.25}
    | {"original_max_position_embeddings": 512},
    {"rope_type": "proportional", "rope_theta": 1e4},
    {FULL: {"rope_type": "default", "rope_theta": 1e6}, SLIDING: {"rope_type": "default", "rope_theta": 1e4}},
    {FULL: YARN | CONTEXT | {"rope_theta": 5e5}, SLIDING: {"rope_type": "default", "rope_theta": 5e5}},
    {FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, SLIDING: {"rope_theta": 2e4}},
    {FULL: None, SLIDING: {"rope_type": "linear", "factor": 8.0}},
    {FULL: {"rope_type": "longrope", "short_factor": [1.5] * 32, "long_factor": LONG} | CONTEXT, SLIDING: None},
    {SLIDING: {"rope_theta": 1e3}},
    {"rope_type": "default", "mrope_section": [16, 8, 8], "rope_theta": 1e6},
    {"type": "mrope", "mrope_section": [16, 8, 8]},
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
        ["linear_attention", FULL] * 2,
        ["conv", FULL] * 2,
        ["mamba", "attention"] * 2,
    ],
    "layers_block_type": [["mamba", "attention"] * 2, None],
    "full_attention_interval": [2, 4],
    "full_attn_idxs": [[0, 2], [], None],
    "attn_layer_indices": [[0, 1], [], None],
    "attn_layer_period": [4, 1],
    "attn_layer_offset": [0, 2],
    "hybrid_override_pattern": ["**MM", "*-E*", "*X"],
    "global_attn_every_n_layers": [4, 3],
    "position_embedding_type": ["rope", "nope", None],
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
    "rope_local_base_freq": [1e4, 2e4],
    "original_max_position_embeddings": [64, 256, None],
    "max_position_embeddings": [64, 1024],
    "n_positions": [128],
    "no_rope_layers": [None, [1, 1, 0, 1], [0] * LAYERS, [1] * LAYERS, [True, False] * 2, []],
    "no_rope_layer_interval": [2, 0, 4],
    "attention_chunk_size": [None, 8],
    "attn_temperature_tuning": [True, False],
    "attn_scale": [0.2, 0.0],
    "floor_scale": [8, 8192],
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
    activation activation_function architectures attention_in_multiplier attention_out_bias attention_out_multiplier
    attn_pdrop bias block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of block_size bos_token_id
    chunk_size chunk_size_feed_forward classifier_dropout clip_qkv conv_L_cache conv_bias conv_kernel
    decoder_sparse_step embd_pdrop embedding_dropout embedding_multiplier enable_moe_fp32_combine eos_token_id
    expand expert_layer_offset expert_layer_period ffn_hidden_size final_logit_softcapping first_k_dense_replace
    full_attn_alpha_factor full_attn_beta_factor get_text_config hidden_act hidden_activation hidden_dropout
    id2label input_jitter_noise interleave_moe_layer_step intermediate_size intermediate_size_mlp is_decoder
    is_encoder_decoder key_multiplier label2id layer_norm_eps layer_norm_epsilon layers_num_experts
    linear_attn_alpha_factor linear_attn_beta_factor linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads
    linear_num_value_heads linear_value_head_dim lm_head_bias lm_head_multiplier logit_scale logits_scaling
    mamba_chunk_size mamba_conv_bias mamba_d_conv mamba_d_head mamba_d_ssm mamba_d_state mamba_dt_rank mamba_expand
    mamba_head_dim mamba_hidden_act mamba_n_groups mamba_n_heads mamba_norm_before_gate mamba_num_heads
    mamba_proj_bias mamba_rms_norm mamba_ssm_cache_dtype mlp_alpha_factor mlp_beta_factor mlp_bias mlp_hidden_act
    mlp_layer_types mlp_multipliers mlp_only_layers mm_tokens_per_image moe_intermediate_size moe_k moe_latent_size
    moe_layer_end_index moe_layer_interval moe_layer_start_index moe_layers moe_norm_min moe_num_experts
    moe_num_shared_experts moe_shared_expert_intermediate_size moe_shared_expert_overlap mtp_layers_block_type
    mup_enabled n_group n_groups n_inner n_routed_experts n_shared_experts norm_eps norm_epsilon norm_topk_prob
    num_dense_layers num_experts num_experts_per_tok num_labels num_ln_in_parallel_attn num_local_experts
    num_logits_to_keep num_mtp_layers num_nextn_predict_layers num_shared_experts output_attentions
    output_hidden_states output_router_logits pad_token_id parallel_attn problem_type projectors_bias qk_layernorm
    qkv_bias rescale_prenorm_residual resid_pdrop residual_dropout residual_in_fp32 residual_multiplier return_dict
    rms_norm_eps route_scale routed_scaling_factor router_aux_loss_coef router_jitter_noise router_scaling_factor
    shared_expert_intermediate_size shared_intermediate_size ssm_in_multiplier ssm_multipliers ssm_out_multiplier
    ssm_state_size tie_word_embeddings time_step_floor time_step_limit time_step_max time_step_min topk_group
    transformers_version use_associative_scan use_bias use_conv_bias use_expert_bias use_mamba_kernels use_mambapy
    use_parallel_residual use_post_norm use_qk_norm use_qkv_bias vision_config vocab_size z_loss_coefficient
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
