"""Compares AttentionSpec.from_hf with transformers for the configs of published models, or checks why it refuses them.

The configs hold the geometry of each model, and the other keys that matter to attention, in the form in which the model
was published.
"""

from __future__ import annotations

import copy
from typing import Any

import lazyrope
import pytest

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.python.test_from_hf_changes import differences, spec_of_layer
from tests.support import hf_oracle
from tests.support.published_configs import ACCEPTED, REFUSED


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config of the text model, as transformers reads it from that of a wrapper."""
    built = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    text = built.get_text_config()
    return config if text is built else text.to_dict()


@pytest.mark.parametrize("name", list(ACCEPTED))
def test_a_published_config_gives_the_attention_of_transformers(name):
    config = ACCEPTED[name]
    layers = hf_oracle.attention_layers(text_config(config))
    specs = [spec_of_layer(config, layer) for layer in range(len(layers))]
    assert any(specs)
    for layer, (spec, theirs) in enumerate(zip(specs, layers, strict=True)):
        assert differences(spec, theirs) == [], f"layer {layer}"


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_published_config_without_a_kernel_is_refused_with_the_reason(name):
    config, reason = REFUSED[name]
    with pytest.raises(lazyrope.SpecError) as error:
        lazyrope.AttentionSpec.from_hf(config, layer=0)
    assert reason in str(error.value)


def test_phi_3_5_moe_is_accepted_within_its_original_context():
    """Implementations of the model differ beyond it, so from_hf refuses it by default."""
    config, _ = REFUSED["Phi-3.5-MoE"]
    spec = lazyrope.AttentionSpec.from_hf(config, max_model_len=4096)
    (layer, *_) = hf_oracle.attention_layers(config | {"max_position_embeddings": 4096})
    assert differences(spec, layer) == []


@pytest.mark.parametrize("name", ["Phi-4-mini", "Phi-3.5-mini"])
def test_short_requests_have_the_short_list_of_longrope(name):
    config = ACCEPTED[name]
    short, long = (lazyrope.AttentionSpec.from_hf(config, max_model_len=n) for n in (4096, 4097))
    assert long == lazyrope.AttentionSpec.from_hf(config)
    assert short.rope.lists["factors"] == config["rope_scaling"]["short_factor"]
    assert long.rope.lists["factors"] == config["rope_scaling"]["long_factor"]
    assert short.attention_factor == long.attention_factor
