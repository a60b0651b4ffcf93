"""Tests which releases of vLLM the plug-in serves, and what it refuses. It needs no vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lazyrope import SpecError
from lazyrope.vllm import limits, releases


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0", "0.32.1+cpu"])
def test_known_releases(version):
    assert releases.release_of(version).version == version[:4]


@pytest.mark.parametrize("version", ["0.27.1", "0.33.0", "1.0.0", None])
def test_other_releases_are_refused_with_the_list(version):
    with pytest.raises(SpecError, match=r"serves the releases 0\.26, 0\.32"):
        releases.release_of(version)


def test_the_pool_of_the_older_release_has_the_shape_of_vllm():
    methods: Any = releases.RELEASES["0.26"].pool_methods()
    shape, order = methods.get_kv_cache_shape(9, 16, 2, 64), methods.get_kv_cache_stride_order()
    assert shape == (9, 2, 16, 128) and [shape[i] for i in order] == [9, 16, 2, 128]
    layers = (5, *shape)
    assert [layers[i] for i in methods.get_kv_cache_stride_order(True)] == [9, 5, 16, 2, 128]


def settings(**changes: Any) -> Any:
    """Returns a configuration of vLLM that is served, but for the changes: ``part__name`` is config.part.name."""
    parts: dict[str, Any] = {
        "model_config": {
            "runner_type": "generate",
            "is_encoder_decoder": False,
            "is_multimodal_model": False,
            "use_mla": False,
            "uses_mrope": False,
            "is_hybrid": False,
            "dtype": "torch.float32",
        },
        "device_config": {"device_type": "cpu"},
        "parallel_config": {
            "decode_context_parallel_size": 1,
            "prefill_context_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "use_ubatching": False,
        },
        "attention_config": {"backend": SimpleNamespace(name="CUSTOM")},
        "cache_config": {"block_size": 16},
    }
    top: dict[str, Any] = dict.fromkeys(("kv_events_config", "speculative_config", "kv_transfer_config"))
    for name, value in changes.items():
        part, _, field = name.partition("__")
        if field:
            parts[part][field] = value
        else:
            top[part] = value
    return SimpleNamespace(**top, **{name: SimpleNamespace(**fields) for name, fields in parts.items()})


@pytest.fixture
def known_release(monkeypatch) -> None:
    monkeypatch.setattr(limits, "current_release", lambda: None)


def test_plain_configurations_are_served(known_release):
    limits.check_config(settings())
    limits.check_config(settings(device_config__device_type="cuda", model_config__dtype="torch.bfloat16"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"attention_config__backend": None},
            "the attention backend is None; start vLLM with --attention-backend CUSTOM",
        ),
        ({"speculative_config": object()}, "speculative decoding"),
        ({"kv_transfer_config": object()}, "a KV connector"),
        ({"kv_events_config": SimpleNamespace(enable_kv_cache_events=True)}, "KV events"),
        ({"parallel_config__decode_context_parallel_size": 2}, "decode context parallelism"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "prefill context parallelism"),
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"parallel_config__use_ubatching": True}, "microbatches"),
        ({"cache_config__block_size": 24}, "--block-size 24 is not a multiple of 16"),
        ({"device_config__device_type": "cuda"}, "give --dtype bfloat16 or float16"),
        ({"model_config__runner_type": "pooling"}, "only models that generate text"),
        ({"model_config__is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_config__is_multimodal_model": True}, "images and audio"),
        ({"model_config__use_mla": True}, "MLA"),
        ({"model_config__uses_mrope": True}, "M-RoPE"),
        ({"model_config__is_hybrid": True}, "a recurrent state"),
    ],
)
def test_each_refusal_has_its_reason(known_release, changes, reason):
    with pytest.raises(SpecError, match=reason):
        limits.check_config(settings(**changes))


def test_all_reasons_are_named_at_once(known_release):
    with pytest.raises(SpecError, match=r"a KV connector .*; MLA stores"):
        limits.check_config(settings(kv_transfer_config=object(), model_config__use_mla=True))


LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096,
}


def model_settings(config: dict[str, Any], dtype: str = "torch.bfloat16", cache: str = "auto", ranks: int = 1) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=config, dtype=dtype, max_model_len=2048),
        cache_config=SimpleNamespace(cache_dtype=cache),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
    )


def test_each_layer_has_the_attention_of_one_rank():
    specs = limits.layer_specs(model_settings(LLAMA, "torch.float16", "fp8_e5m2", ranks=2))
    assert sorted(specs) == [0, 1, 2] and len(set(specs.values())) == 1
    spec = specs[0]
    assert (spec.num_q_heads, spec.num_kv_heads, spec.dtype, spec.kv_dtype) == (2, 1, "float16", "float8_e5m2")
    assert spec.query_form == "rotated" and limits.layer_specs(model_settings(LLAMA, "torch.float32"))


def test_models_whose_attention_depends_on_absolute_positions_are_refused():
    ministral = LLAMA | {
        "model_type": "ministral3",
        "head_dim": 64,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "llama_4_scaling_beta": 0.1,
        },
    }
    with pytest.raises(SpecError, match="layer 0 has a temperature by position"):
        limits.layer_specs(model_settings(ministral))
    with pytest.raises(SpecError, match="--kv-cache-dtype nvfp4"):
        limits.layer_specs(model_settings(LLAMA, cache="nvfp4"))
