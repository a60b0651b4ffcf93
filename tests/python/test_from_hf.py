"""Compares AttentionSpec.from_hf with the attention of transformers' models, which run on the CPU."""

from __future__ import annotations

import contextlib
import json
import pickle
from typing import Any

import lazyrope
import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

import transformers
from transformers import AttentionInterface

from tests.support import hf_changes, reference

CALLS: list[dict[str, Any]] = []
TOKENS = 40
SMALL = {"vocab_size": 64, "num_hidden_layers": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"hidden_size": 256, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


def record(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **named: Any) -> tuple[Any, None]:
    of_module = {"layer": module.layer_idx, "s_aux": getattr(module, "sinks", None)}
    CALLS.append({"q": query[0], "k": key[0], "v": value[0]} | named | of_module)
    return torch.zeros_like(query).transpose(1, 2), None


AttentionInterface.register("record", record)

GPT_OSS = HEADS | {"head_dim": 64, "sliding_window": 16, "num_local_experts": 2, "num_experts_per_tok": 1}

MODELS = {
    "llama": ("Llama", HEADS | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama, linear": (
        "Llama",
        HEADS | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "llama, llama3": (
        "Llama",
        HEADS
        | {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen3, yarn": (
        "Qwen3",
        HEADS
        | {
            "head_dim": 64,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 256,
            },
        },
    ),
    "llama, yarn by its context": (
        "Llama",
        HEADS
        | {
            "max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "beta_fast": 16.0,
                "truncate": False,
                "mscale": 1.5,
                "mscale_all_dim": 0.75,
            },
        },
    ),
    "llama, yarn with a factor of attention": (
        "Llama",
        HEADS
        | {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "beta_slow": 2.0,
                "attention_factor": 1.25,
                "original_max_position_embeddings": 1024,
            },
        },
    ),
    "mistral": ("Mistral", HEADS | {"sliding_window": 16}),
    "mistral, no window": ("Mistral", HEADS | {"sliding_window": None}),
    "qwen2": ("Qwen2", HEADS),
    "qwen2, window": (
        "Qwen2",
        HEADS | {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3", HEADS | {"head_dim": 128}),
    "gemma2": ("Gemma2", HEADS | {"head_dim": 64, "sliding_window": 16, "query_pre_attn_scalar": 100}),
    "phi3": ("Phi3", HEADS | {"sliding_window": 16}),
    "phi3, partial": (
        "Phi3",
        HEADS | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}},
    ),
    "gpt_neox": ("GPTNeoX", {k: v for k, v in HEADS.items() if k != "num_key_value_heads"}),
    "gpt_neox, 20 of 80": (
        "GPTNeoX",
        {"hidden_size": 320, "intermediate_size": 64, "num_attention_heads": 4},
    ),
    "starcoder2": ("Starcoder2", HEADS | {"sliding_window": 16}),
    "smollm3": ("SmolLM3", HEADS),
    "olmo2": ("Olmo2", HEADS),
    "gpt_oss": ("GptOss", GPT_OSS),
    "gpt_oss, default": ("GptOss", GPT_OSS | {"rope_parameters": {"rope_type": "default", "rope_theta": 1.5e5}}),
}


# A config with few experts is quick to build.
FEW = {"num_experts": 2, "num_local_experts": 2, "n_routed_experts": 2, "moe_num_experts": 2, "num_experts_per_tok": 1}
FEW |= {"moe_k": 1, "moe_intermediate_size": 8, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
FEW |= {"shared_intermediate_size": 8, "shared_expert_intermediate_size": 8, "decoder_sparse_step": 1}
# These types have the window in their mask alone, and do not pass it to attention.
WINDOW_IN_MASK = ("phimoe", "qwen2_moe")
# gptj and Falcon do not hand their queries to an attention function of transformers.
OTHERS = [name for name in hf_changes.BASES if name not in MODELS and name not in ("gptj", "falcon")]


def config_of(name: str) -> Any:
    if name in OTHERS:
        return transformers.CONFIG_MAPPING[name].from_dict(hf_changes.changed(name) | SMALL | FEW)
    family, fields = MODELS[name]
    return getattr(transformers, f"{family}Config")(**SMALL, **fields)


def attention_calls(config: Any, positions: torch.Tensor) -> list[dict[str, Any]]:
    """Returns the arguments of each layer's attention at the positions."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation="record").float()
    CALLS.clear()
    with torch.no_grad():
        model(input_ids=torch.arange(TOKENS)[None] % 64, position_ids=positions[None], use_cache=False)
    return list(CALLS)


def assert_rotated(
    spec: lazyrope.AttentionSpec,
    raw: torch.Tensor,
    rotated: torch.Tensor,
    at: torch.Tensor,
    temperature: torch.Tensor | float = 1.0,
) -> None:
    """Compares `rotated` with a rotation of `raw`, the vectors at position 0, which have the attention factor."""
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    raw, rotated = (x.transpose(0, 1) for x in (raw, rotated))
    expected = reference.rotate(raw, at, frequencies, spec.rope.rotary_dim or 0, spec.rope_pairing, 1.0) * temperature
    assert (rotated.double() - expected).abs().max() < 1e-4 * raw.abs().max()


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_specs_of_layers_agree_with_transformers(name):
    config = config_of(name)
    positions = torch.arange(TOKENS) * 3 + 7
    raw, rotated = attention_calls(config, torch.zeros(TOKENS, dtype=torch.int64)), attention_calls(config, positions)
    for before, after in zip(raw, rotated, strict=True):
        spec = lazyrope.AttentionSpec.from_hf(config, layer=before["layer"])
        assert (spec.num_q_heads, spec.num_kv_heads) == (len(before["q"]), len(before["v"]))
        assert spec.head_dim == before["v"].shape[-1]
        if before is raw[0]:  # later layers have the same inputs, because attention returns zeros here
            assert bool((before["q"] != after["q"]).any()) == (spec.rope.variant != "none")
        assert_rotated(spec, before["q"], after["q"], positions, temperature_of(name, spec, positions))
        assert_rotated(spec, before["k"], after["k"], positions)
        assert spec.scale == pytest.approx(after["scaling"])
        assert spec.softcap == after.get("softcap")
        if name not in WINDOW_IN_MASK:
            assert spec.window == after.get("sliding_window")
        assert spec.sinks == (after["s_aux"] is not None)
        windowed = "sliding_window" if spec.window is not None else "causal"
        assert spec.mask == ("chunked" if spec.chunk is not None else windowed)
    assert [call["layer"] for call in raw] == layers_with_attention(config)


def temperature_of(name: str, spec: lazyrope.AttentionSpec, positions: torch.Tensor) -> torch.Tensor | float:
    """Returns the factors of queries at the positions over those at position 0.

    The code of Llama 4 takes the factors from the place in the sequence, which is the same in both passes.
    """
    if spec.temperature is None or name == "llama4_text":
        return 1.0
    return reference.temperature_of(spec.temperature, positions)[:, None, None]


def layers_with_attention(config: Any) -> list[int]:
    """Returns the layers of which from_hf gives a spec."""
    layers = []
    for layer in range(config.num_hidden_layers):
        with contextlib.suppress(lazyrope.SpecError):
            lazyrope.AttentionSpec.from_hf(config, layer=layer)
            layers.append(layer)
    return layers


@pytest.mark.parametrize("name", [name for name in MODELS if "yarn" in name or name in ("gpt_oss", "llama, llama3")])
def test_the_attention_factor_equals_that_of_transformers(name):
    config = config_of(name)
    factor = transformers.AutoModel.from_config(config).rotary_emb.attention_scaling
    assert lazyrope.AttentionSpec.from_hf(config, layer=0).attention_factor == pytest.approx(factor, rel=1e-12)
    assert (factor == 1.0) == (name == "llama, llama3")


@pytest.mark.parametrize("keys", [(), ("rope_parameters",), ("rope_parameters", "rope_scaling")])
def test_a_null_rope_scaling_means_the_default_of_the_model_type(keys):
    """transformers uses YaRN for a gpt-oss config without rope_scaling, and so does from_hf."""
    config = config_of("gpt_oss").to_dict()
    del config["rope_parameters"]
    spec = lazyrope.AttentionSpec.from_hf(config | dict.fromkeys(keys), layer=0)
    assert spec.rope == lazyrope.AttentionSpec.from_hf(config_of("gpt_oss"), layer=0).rope
    assert spec.rope.variant == "yarn"


@pytest.mark.parametrize("name", ["mistral", "gemma2", "phi3", "starcoder2"])
def test_a_window_equals_that_of_transformers(name):
    """The mask that eager attention gets shows which keys a query sees."""
    from transformers.masking_utils import create_sliding_window_causal_mask

    config = config_of(name)
    window = lazyrope.AttentionSpec.from_hf(config, layer=0).window
    assert window == 16
    config._attn_implementation = "eager"
    mask = create_sliding_window_causal_mask(
        config=config,
        inputs_embeds=torch.zeros(1, TOKENS, 8),
        attention_mask=None,
        past_key_values=None,
        position_ids=torch.arange(TOKENS)[None],
    )
    seen = reference.visible("sliding_window", window, torch.arange(TOKENS), torch.arange(TOKENS))
    assert torch.equal(mask[0, 0] == 0, seen)


def test_gptj_rotates_as_transformers_does():
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    config = transformers.GPTJConfig(n_embd=1024, n_head=4, n_layer=2, rotary_dim=64)
    spec = lazyrope.AttentionSpec.from_hf(config)
    assert (spec.head_dim, spec.num_q_heads, spec.num_kv_heads, spec.rope.rotary_dim) == (256, 4, 4, 64)
    x = torch.randn(1, TOKENS, 4, 256)
    sine, cosine = create_sinusoidal_positions(100, 64)[None, :TOKENS].chunk(2, dim=-1)
    rotated = torch.cat([apply_rotary_pos_emb(x[..., :64], sine, cosine), x[..., 64:]], dim=-1)
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    expected = reference.rotate(x[0], torch.arange(TOKENS), frequencies, 64, spec.rope_pairing)
    assert (rotated[0].double() - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("fields", "kv_heads"),
    [
        ({"multi_query": True}, 1),
        ({"multi_query": False}, 4),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2),
    ],
)
def test_heads_of_falcon_equal_those_of_transformers(fields, kv_heads):
    from transformers.models.falcon.modeling_falcon import FalconAttention, FalconRotaryEmbedding

    config = transformers.FalconConfig(hidden_size=256, num_attention_heads=4, num_hidden_layers=2, **fields)
    spec = lazyrope.AttentionSpec.from_hf(config)
    module = FalconAttention(config, layer_idx=0)
    assert module.query_key_value.out_features == (spec.num_q_heads + 2 * spec.num_kv_heads) * spec.head_dim
    assert spec.num_kv_heads == kv_heads and spec.scale == pytest.approx(module.inv_norm_factor)
    rotary = FalconRotaryEmbedding(config).inv_freq
    assert torch.allclose(torch.tensor(spec.frequencies, dtype=torch.float32), rotary, rtol=1e-6)


OLDER = {
    "gpt_neox": (
        {"model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64, "rotary_pct": 0.25}
        | {"rotary_emb_base": 20000, "torch_dtype": "float16"},
        {"head_dim": 96, "num_q_heads": 64, "num_kv_heads": 64, "dtype": "float16"},
        lazyrope.rope.neox(20000.0, rotary_dim=24),
    ),
    "phi3": (
        {"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 8}
        | {"partial_rotary_factor": 0.75, "rope_theta": 10000.0, "rope_scaling": None, "sliding_window": None},
        {"head_dim": 128, "num_q_heads": 24, "num_kv_heads": 8},
        lazyrope.rope.neox(10000.0, rotary_dim=96),
    ),
    "falcon": (
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_attention_heads": 71,
            "num_hidden_layers": 32,
            "multi_query": True,
            "alibi": False,
        },
        {"head_dim": 64, "num_q_heads": 71, "num_kv_heads": 1},
        lazyrope.rope.neox(10000.0),
    ),
    "gptj": (
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "rotary_dim": 64},
        {"head_dim": 256, "num_q_heads": 16, "num_kv_heads": 16},
        lazyrope.rope.gptj(10000.0, rotary_dim=64),
    ),
    "linear": (
        {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32}
        | {"rope_scaling": {"type": "linear", "factor": 8.0}},
        {"head_dim": 128, "num_q_heads": 32, "num_kv_heads": 32},
        lazyrope.rope.linear(10000.0, factor=8.0),
    ),
}


@pytest.mark.parametrize("name", list(OLDER))
def test_older_forms_of_config_are_read(name):
    config, fields, rope = OLDER[name]
    spec = lazyrope.AttentionSpec.from_hf(config)
    expected = lazyrope.AttentionSpec(**fields, rope=rope)
    assert spec == expected


REFUSED = {
    "yarn with what is not known": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "finetuned": True}},
        'rope_type "yarn" with finetuned = true',
    ),
    "longrope without lists": ("phi3", {"rope_parameters": {"rope_type": "longrope"}}, "short_factor is missing"),
    "longrope, interleaved": ("glm", {"rope_parameters": {"rope_type": "longrope"}}, 'rope_type = "longrope"'),
    "a longrope list of text": (
        "phi3",
        {"rope_parameters": {"rope_type": "longrope", "short_factor": ["a"]}},
        'short_factor = ["a"]; a list of numbers',
    ),
    "alibi": ("falcon", {"alibi": True}, "alibi = true"),
    "chunks": ("llama", {"attention_chunk_size": 8192}, "attention_chunk_size = 8192"),
    "a multiplier": ("llama", {"attention_multiplier": 0.01}, "attention_multiplier = 0.01"),
    "layers that differ": ("gemma2", {}, "its layers differ"),
    "layers without RoPE": ("smollm3", {}, "its layers differ"),
    "another kind of layer": ("gemma2", {"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
    "too few kinds": ("gemma2", {"layer_types": ["full_attention"]}, "there must be a type for each layer"),
    "another model": ("llama", {"model_type": "bloom"}, 'model_type = "bloom"'),
    "heads that are not said": ("mistral", {"num_key_value_heads": ...}, "num_key_value_heads is missing"),
}


def test_a_tensor_parallel_rank_has_its_share_of_the_heads():
    config = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    heads = {ranks: lazyrope.AttentionSpec.from_hf(config, tensor_parallel=ranks) for ranks in (1, 4, 16)}
    assert {ranks: (spec.num_q_heads, spec.num_kv_heads) for ranks, spec in heads.items()} == {
        1: (32, 8),
        4: (8, 2),
        16: (2, 1),
    }
    with pytest.raises(lazyrope.SpecError, match="tensor_parallel = 3 with 32 query and 8 KV heads"):
        lazyrope.AttentionSpec.from_hf(config, tensor_parallel=3)


def test_objects_that_are_not_configs_are_refused(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{")
    for config, text in ((tmp_path, "cannot be read as text"), (None, "not NoneType"), (7, "not int")):
        with pytest.raises(lazyrope.SpecError, match=text):
            lazyrope.AttentionSpec.from_hf(config)


@pytest.mark.parametrize("name", list(REFUSED))
def test_unsupported_fields_are_refused_by_name(name):
    model, changes, text = REFUSED[name]
    config = transformers.FalconConfig().to_dict() if model == "falcon" else config_of(model).to_dict()
    config |= changes
    config = {key: value for key, value in config.items() if value is not ...}
    with pytest.raises(lazyrope.SpecError) as error:
        lazyrope.AttentionSpec.from_hf(json.loads(json.dumps(config, default=str)))
    assert text in str(error.value)


class Narrow(lazyrope.AttentionSpec):
    """A subclass, which inherits the static method."""


def test_from_hf_is_a_static_method():
    spec = lazyrope.AttentionSpec.from_hf(config_of("llama"))
    assert isinstance(vars(lazyrope.AttentionSpec)["from_hf"], staticmethod)
    assert spec.from_hf(config_of("llama")) == Narrow.from_hf(config_of("llama")) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    with pytest.raises(TypeError, match="takes 1 argument by position, and 2 are given"):
        lazyrope.AttentionSpec.from_hf(config_of("llama"), "float16")
