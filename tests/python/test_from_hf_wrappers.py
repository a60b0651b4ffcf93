"""Compares AttentionSpec.from_hf with transformers for models of images and audio, whose config has a text_config."""

from __future__ import annotations

import copy
import logging
from typing import Any

import lazyrope
import pytest

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from tests.python.test_from_hf_changes import differences, spec_of_layer, specs_of
from tests.support import hf_changes, hf_oracle


def is_wrapper(model_type: str) -> bool:
    try:
        return "text_config" in (CONFIG_MAPPING[model_type].sub_configs or {})
    except Exception:  # the config needs a package that is not installed
        return False


WRAPPERS = [model_type for model_type in CONFIG_MAPPING_NAMES if is_wrapper(model_type)]
# Their text models see the tokens of an image, or of the whole prompt, in both directions.
NOT_CAUSAL = ("paligemma", "colpali")


def text_type_of(wrapper: str) -> str | None:
    """Returns the model type of a text_config without one."""
    try:
        return str(CONFIG_MAPPING[wrapper]().text_config.model_type)
    except Exception:  # as above
        return None


def text_config_of(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the text config that transformers makes."""
    built = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    return built.get_text_config().to_dict()


def is_accepted(wrapper: str) -> bool:
    base = hf_changes.BASES.get(text_type_of(wrapper) or "")
    return base is not None and specs_of({"model_type": wrapper, "text_config": base}) is not None


ACCEPTED = [wrapper for wrapper in WRAPPERS if is_accepted(wrapper)]


def test_most_wrappers_of_known_text_models_are_accepted():
    known = [wrapper for wrapper in WRAPPERS if text_type_of(wrapper) in lazyrope.model_types()]
    left_out = set(known) - set(ACCEPTED)
    assert len(ACCEPTED) >= 45
    assert set(NOT_CAUSAL) <= left_out and len(left_out) <= 8, left_out


@pytest.mark.parametrize("with_type", [True, False])
@pytest.mark.parametrize("wrapper", ACCEPTED)
def test_the_specs_of_a_wrapper_are_those_of_its_text_model(wrapper, with_type):
    text_type = text_type_of(wrapper)
    text = hf_changes.BASES[text_type] | ({"model_type": text_type} if with_type else {})
    config = {"model_type": wrapper, "text_config": text, "dtype": "float16"}
    layers = hf_oracle.attention_layers(text_config_of(config | {"text_config": text | {"model_type": text_type}}))
    specs = [spec_of_layer(config, layer) for layer in range(len(layers))]
    for spec, layer in zip(specs, layers, strict=True):
        assert [line for line in differences(spec, layer) if not line.startswith("dtype")] == []
        assert spec is None or spec.dtype == "float16"


@pytest.mark.parametrize("wrapper", ["llava", "internvl", "idefics2", "gemma3", "qwen3_asr", "voxtral", "glmasr"])
def test_sizes_that_a_text_config_leaves_out_are_those_of_transformers(wrapper):
    config = {"model_type": wrapper, "text_config": {"model_type": text_type_of(wrapper)}}
    text = text_config_of(config)
    for layer in range(text["num_hidden_layers"]):
        assert spec_of_layer(config, layer) == spec_of_layer(text, layer)
    with pytest.raises(lazyrope.SpecError, match=f"layers 0 to {layer}"):
        spec_of_layer(config, layer + 1)


@pytest.mark.parametrize("wrapper", ["qwen2_vl", "qwen2_5_vl"])
def test_a_flat_config_is_that_of_the_text_model(wrapper, caplog):
    rope = {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 8, 8]}}
    config = hf_changes.GROUPED | rope | {"model_type": wrapper, "use_sliding_window": False}
    layers = hf_oracle.attention_layers(text_config_of(config))
    with caplog.at_level(logging.INFO, logger="lazyrope"):
        specs = specs_of(config)
    assert "M-RoPE is plain RoPE for text alone" in caplog.text
    for spec, layer in zip(specs, layers, strict=True):
        assert differences(spec, layer) == []


def test_a_note_says_what_was_read(caplog):
    config = {"model_type": "mistral3", "text_config": hf_changes.BASES["mistral"]}
    with caplog.at_level(logging.INFO, logger="lazyrope"):
        lazyrope.AttentionSpec.from_hf(config)
    assert 'config.json: read text_config, of type "mistral"' in caplog.text


@pytest.mark.parametrize("wrapper", NOT_CAUSAL)
def test_wrappers_whose_prompt_is_not_causal_are_refused(wrapper):
    with pytest.raises(lazyrope.SpecError, match="seen in both directions"):
        lazyrope.AttentionSpec.from_hf({"model_type": wrapper, "text_config": hf_changes.BASES["gemma"]})
