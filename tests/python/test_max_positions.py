"""Checks the most positions of a request that the engine for transformers allows for a model's config."""

from __future__ import annotations

from typing import Any

import lazyrope
import pytest

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

import transformers

limits = pytest.importorskip("lazyrope.transformers.limits")

LISTS = {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192, "rope_theta": 5e5}
# The parameters of RoPE, max_position_embeddings, and the most positions.
CASES: dict[str, tuple[dict[str, Any], int, int]] = {
    "default": ({"rope_type": "default"}, 8192, 8192),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, 2048, 2048),
    "yarn": (YARN, 8192, 65536),
    "longrope": ({"rope_type": "longrope", "original_max_position_embeddings": 4096} | LISTS, 131072, 4096),
    "longrope without an extension": ({"rope_type": "longrope"} | LISTS, 4096, 4096),
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_most_positions_depend_on_the_type_of_rope(name):
    rope, stated, most = CASES[name]
    config = transformers.LlamaConfig(rope_parameters={"rope_theta": 1e4} | rope, max_position_embeddings=stated)
    assert limits.max_positions(config) == most


@pytest.mark.parametrize("name", list(CASES))
def test_more_positions_are_allowed_unless_the_frequencies_depend_on_the_length(name):
    rope, stated, most = CASES[name]
    config = transformers.LlamaConfig(rope_parameters={"rope_theta": 1e4} | rope, max_position_embeddings=stated)
    assert [limits.allowed_positions(config, n) for n in (None, 1, most)] == [most, 1, most]
    if rope["rope_type"] in limits.LENGTH_DEPENDENT:
        with pytest.raises(lazyrope.SpecError, match=f"more than {most} positions.*give at most max_model_len={most}"):
            limits.allowed_positions(config, most + 1)
    else:
        assert limits.allowed_positions(config, most + 1) == most + 1


def test_each_kind_of_layer_limits_the_positions():
    kinds = {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}
    config = transformers.Olmo3Config(rope_parameters=kinds, max_position_embeddings=65536)
    assert limits.max_positions(config) == 65536


def test_the_text_config_of_a_wrapper_counts():
    text = transformers.LlamaConfig(max_position_embeddings=2048)
    assert limits.max_positions(transformers.LlavaConfig(text_config=text)) == 2048


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_within_the_most_positions_the_frequencies_are_those_of_every_request(name):
    """from_hf then gives the frequencies that the model's code has for short requests, whatever their length."""
    rope, stated, most = CASES[name]
    config = transformers.LlamaConfig(
        rope_parameters={"rope_theta": 1e4} | rope, max_position_embeddings=stated, dtype="bfloat16"
    )
    spec = lazyrope.AttentionSpec.from_hf(config, max_model_len=most)
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    assert list(spec.frequencies) == pytest.approx(rotary.inv_freq.tolist(), rel=1e-6)
    if name == "dynamic":
        with pytest.raises(lazyrope.SpecError, match=f"choose max_model_len={most}"):
            lazyrope.AttentionSpec.from_hf(config, max_model_len=most + 1)
    else:
        assert lazyrope.AttentionSpec.from_hf(config, max_model_len=most + 1).rope != spec.rope
