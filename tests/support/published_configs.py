"""The geometry of published models, as their config.json says it, reduced to the keys that matter to attention."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}


def sizes(hidden_size: int, heads: int, kv_heads: int, layers: int, **others: Any) -> Config:
    """Returns the keys of the geometry, and others."""
    result = {"hidden_size": hidden_size, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return result | {"num_hidden_layers": layers} | others


def longrope(pairs: int, greatest: float) -> Config:
    """Returns LongRoPE with a long list that grows up to the greatest divisor, and a short list near 1."""
    short = [1.0 + 0.05 * i for i in range(pairs)]
    long = [1.0 + (greatest - 1.0) * i / (pairs - 1) for i in range(pairs)]
    return {"type": "longrope", "short_factor": short, "long_factor": long}


PHI = {"model_type": "phi3", "max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
GEMMA_3 = {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
QWEN_VL = {"type": "mrope", "mrope_section": [16, 24, 24]}

LLAMA4_SCOUT = {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}
LLAMA4_SCOUT |= {"original_max_position_embeddings": 8192}
MINISTRAL3 = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384, "rope_theta": 1e6}
MINISTRAL3 |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
MINISTRAL3 |= {"llama_4_scaling_beta": 0.1, "max_position_embeddings": 262144}

ACCEPTED: dict[str, Config] = {
    "Llama-3.3-70B": {"model_type": "llama", "rope_theta": 500000.0, "max_position_embeddings": 131072}
    | {"rope_scaling": LLAMA3 | {"factor": 8.0}}
    | sizes(8192, 64, 8, 80),
    "Mistral-7B-v0.1": {"model_type": "mistral", "sliding_window": 4096} | sizes(4096, 32, 8, 32),
    "Mistral-Small-3.2-24B": {
        "model_type": "mistral3",
        "vision_config": {"model_type": "pixtral"},
        "text_config": {"model_type": "mistral", "rope_theta": 1e9, "sliding_window": None}
        | sizes(5120, 32, 8, 40, head_dim=128),
    },
    "Ministral-8B": {"model_type": "mistral", "rope_theta": 1e8, "sliding_window": 32768}
    | sizes(4096, 32, 8, 36, head_dim=128),
    "Llama-4-Scout": {
        "model_type": "llama4",
        "text_config": {"model_type": "llama4_text", "rope_theta": 5e5, "rope_scaling": LLAMA4_SCOUT}
        | {"attention_chunk_size": 8192, "max_position_embeddings": 10485760, "no_rope_layers": []}
        | sizes(5120, 40, 8, 48, head_dim=128),
    },
    "Ministral-3-8B": {
        "model_type": "mistral3",
        "text_config": {"model_type": "ministral3", "rope_parameters": MINISTRAL3}
        | {"max_position_embeddings": 262144}
        | sizes(4096, 32, 8, 34, head_dim=128),
    },
    "Voxtral-Mini-3B": {
        "model_type": "voxtral",
        "text_config": {"model_type": "llama", "rope_theta": 1e8} | sizes(3072, 32, 8, 30, head_dim=128),
    },
    "Qwen2.5-VL-7B": {"model_type": "qwen2_5_vl", "rope_theta": 1e6, "rope_scaling": QWEN_VL}
    | {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 28}
    | sizes(3584, 28, 4, 28),
    "Qwen1.5-MoE-A2.7B": {"model_type": "qwen2_moe", "rope_theta": 1e6, "use_sliding_window": False}
    | {"sliding_window": 32768, "max_window_layers": 21}
    | sizes(2048, 16, 16, 24),
    "Qwen3-30B-A3B": {"model_type": "qwen3_moe", "rope_theta": 1e6} | sizes(2048, 32, 4, 48, head_dim=128),
    "Qwen3-8B, 131k by YaRN": {"model_type": "qwen3", "rope_theta": 1e6, "max_position_embeddings": 40960}
    | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}
    | sizes(4096, 32, 8, 36, head_dim=128),
    "Qwen3-VL-8B": {
        "model_type": "qwen3_vl",
        "text_config": {"model_type": "qwen3_vl_text", "rope_theta": 5e6}
        | {"rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]}}
        | sizes(4096, 32, 8, 36, head_dim=128),
    },
    "Qwen3-Next-80B-A3B": {"model_type": "qwen3_next", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    | {"full_attention_interval": 4}
    | sizes(2048, 16, 2, 48, head_dim=256),
    "Qwen3.5-35B-A3B": {
        "model_type": "qwen3_5_moe",
        "text_config": {"model_type": "qwen3_5_moe_text", "full_attention_interval": 4}
        | {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e7,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [11, 11, 10],
            }
        }
        | sizes(2048, 16, 2, 40, head_dim=256),
    },
    "Gemma-2-9B": {"model_type": "gemma2", "sliding_window": 4096, "query_pre_attn_scalar": 256}
    | {"attn_logit_softcapping": 50.0}
    | sizes(3584, 16, 8, 42, head_dim=256),
    "Gemma-3-1B": {"model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 10000}
    | {"sliding_window": 512, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "rope_scaling": None}
    | sizes(1152, 4, 1, 26, head_dim=256),
    "Gemma-3-4B": {"model_type": "gemma3", "text_config": GEMMA_3 | {"hidden_size": 2560, "num_hidden_layers": 34}},
    "Gemma-3-27B": {
        "model_type": "gemma3",
        "text_config": GEMMA_3 | {"query_pre_attn_scalar": 168} | sizes(5376, 32, 16, 62, head_dim=128),
    },
    "Phi-3.5-mini": PHI
    | {"rope_theta": 10000.0, "sliding_window": 262144, "rope_scaling": longrope(48, 64.0)}
    | sizes(3072, 32, 32, 32),
    "Phi-4": {"model_type": "phi3", "rope_theta": 250000, "max_position_embeddings": 16384, "sliding_window": None}
    | sizes(5120, 40, 10, 40),
    "Phi-4-mini": PHI
    | {"rope_theta": 10000.0, "partial_rotary_factor": 0.75, "sliding_window": 262144}
    | {"rope_scaling": longrope(48, 32.0)}
    | sizes(3072, 24, 8, 32),
    "OLMo-2-32B": {"model_type": "olmo2", "rope_theta": 500000} | sizes(5120, 40, 8, 64),
    "OLMo-3-7B": {"model_type": "olmo3", "rope_theta": 500000, "sliding_window": 4096}
    | {
        "max_position_embeddings": 65536,
        "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 8,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32,
            "beta_slow": 1,
        },
    }
    | sizes(4096, 32, 32, 32),
    "gpt-oss-20b": {"model_type": "gpt_oss", "rope_theta": 150000, "sliding_window": 128}
    | {"layer_types": [SLIDING, FULL] * 12, "max_position_embeddings": 131072}
    | {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        }
    }
    | sizes(2880, 64, 8, 24, head_dim=64),
    "GLM-4.5-Air": {"model_type": "glm4_moe", "rope_theta": 1000000, "partial_rotary_factor": 0.5}
    | sizes(4096, 96, 8, 46, head_dim=128),
    "GLM-4-9B-0414": {"model_type": "glm4", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    | sizes(4096, 32, 2, 40, head_dim=128),
    "GLM-4.1V-9B": {
        "model_type": "glm4v",
        "text_config": {"model_type": "glm4v_text", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
        | {"rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]}}
        | sizes(4096, 32, 2, 40),
    },
    "ERNIE-4.5-21B-A3B": {"model_type": "ernie4_5_moe", "rope_theta": 500000.0} | sizes(2560, 20, 4, 28),
    "Granite-3.3-8B": {"model_type": "granite", "rope_theta": 1e7, "attention_multiplier": 0.0078125}
    | sizes(4096, 32, 8, 40),
    "Granite-4.0-H-Small": {"model_type": "granitemoehybrid", "attention_multiplier": 0.0078125}
    | {"position_embedding_type": "nope", "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4}
    | {"mamba_n_heads": 128, "mamba_d_head": 64, "mamba_expand": 2}
    | sizes(4096, 32, 8, 40),
    "Nemotron-Nano-9B-v2": {"model_type": "nemotron_h"}
    | {"hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"}
    | sizes(4480, 40, 8, 56, head_dim=128),
    "LFM2-1.2B": {"model_type": "lfm2", "rope_theta": 1000000.0, "full_attn_idxs": [2, 5, 8, 10, 12, 14]}
    | sizes(2048, 32, 8, 16),
    "Falcon-H1-7B": {"model_type": "falcon_h1", "rope_theta": 100000000000.0}
    | {"mamba_d_ssm": 3072, "mamba_n_heads": 24, "mamba_d_head": 128}
    | sizes(3072, 12, 2, 44, head_dim=128),
    "Jamba-1.5-Mini": {"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4} | sizes(4096, 32, 8, 32),
    "MiniMax-Text-01": {"model_type": "minimax", "rope_theta": 10000000, "max_position_embeddings": 10240000}
    | {"layer_types": (["linear_attention"] * 7 + [FULL]) * 10}
    | sizes(6144, 64, 8, 80, head_dim=128),
    "Command-A": {"model_type": "cohere2", "rope_theta": 50000, "sliding_window": 4096}
    | {"layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 16}
    | sizes(12288, 96, 8, 64, head_dim=128),
    "EXAONE-4.0-32B": {"model_type": "exaone4", "rope_theta": 1000000, "sliding_window": 4096}
    | {"sliding_window_pattern": "LLLG", "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 16}
    | {"rope_scaling": LLAMA3 | {"factor": 16.0}, "max_position_embeddings": 131072}
    | sizes(5120, 40, 8, 64, head_dim=128),
    "Trinity-Mini": {"model_type": "afmoe", "rope_theta": 10000, "sliding_window": 2048}
    | {"global_attn_every_n_layers": 4, "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 8}
    | sizes(2048, 32, 4, 32, head_dim=128),
    "Seed-OSS-36B": {"model_type": "seed_oss", "rope_theta": 1e7} | sizes(5120, 80, 8, 64, head_dim=128),
    "SmolLM3-3B": {"model_type": "smollm3", "rope_theta": 5000000.0, "no_rope_layer_interval": 4}
    | {"use_sliding_window": False, "sliding_window": None}
    | sizes(2048, 16, 4, 36),
    "SmolVLM2-2.2B": {
        "model_type": "smolvlm",
        "text_config": {"model_type": "llama", "rope_theta": 130000} | sizes(2048, 32, 32, 24, head_dim=64),
    },
    "InternVL3-8B": {
        "model_type": "internvl",
        "text_config": {"model_type": "qwen2", "rope_theta": 1e6, "use_sliding_window": False}
        | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 32768}
        | sizes(3584, 28, 4, 28),
    },
    "LLaVA-1.5-7B": {"model_type": "llava", "text_config": {"model_type": "llama", "max_position_embeddings": 4096}},
    "Qwen2-Audio-7B": {
        "model_type": "qwen2_audio",
        "text_config": {"model_type": "qwen2", "rope_theta": 10000} | sizes(4096, 32, 32, 32),
    },
}

REFUSED: dict[str, tuple[Config, str]] = {
    "DeepSeek-V3": ({"model_type": "deepseek_v3"} | sizes(7168, 128, 128, 61), "(MLA)"),
    "Kimi-K2": ({"model_type": "kimi_k25"} | sizes(7168, 64, 64, 61), "(MLA)"),
    "Hunyuan-7B": ({"model_type": "hunyuan_v1_dense"} | sizes(4096, 32, 8, 32, head_dim=128), "come after RoPE"),
    "BLOOM": ({"model_type": "bloom", "hidden_size": 14336, "n_head": 112, "n_layer": 70}, "(ALiBi)"),
    "GPT-2": ({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12}, "positions are learned vectors"),
    "PaliGemma-2": (
        {"model_type": "paligemma", "text_config": {"model_type": "gemma2"} | sizes(2304, 8, 4, 26)},
        "seen in both directions",
    ),
    "Phi-3.5-MoE": (
        {"model_type": "phimoe", "rope_theta": 10000.0, "max_position_embeddings": 131072, "sliding_window": 131072}
        | {"original_max_position_embeddings": 4096}
        | {"rope_scaling": longrope(64, 64.0) | {"short_mscale": 1.243163121016122, "long_mscale": 1.243163121016122}}
        | sizes(4096, 32, 8, 32),
        "choose max_model_len=4096 or less",
    ),
    "Qwen2.5-7B-1M": (
        {"model_type": "qwen2", "rope_theta": 1e7}
        | {"dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}}
        | sizes(3584, 28, 4, 28),
        "dual_chunk_attention_config = ",
    ),
}
