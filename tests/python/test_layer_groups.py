"""AttentionSpec.groups_from_hf returns the attention of every layer of a model, layers with equal specs together."""

from __future__ import annotations

from typing import Any

import lazyrope
import pytest

from tests.support import hf_changes


@pytest.mark.parametrize("model_type", hf_changes.BASES)
def test_groups_agree_with_the_spec_of_each_layer(model_type):
    config = hf_changes.changed(model_type)
    options: dict[str, Any] = {"dtype": "float16", "query_form": "rotated", "kv_dtype": "float8_e5m2"}
    options |= {"batch_invariant": True, "tensor_parallel": 2}
    groups = lazyrope.AttentionSpec.groups_from_hf(config, **options)
    of_layer = {layer: group.spec for group in groups for layer in group.layers}
    assert sorted(of_layer) == sorted(layer for group in groups for layer in group.layers)
    for layer in range(hf_changes.LAYERS):
        if layer in of_layer:
            assert of_layer[layer] == lazyrope.AttentionSpec.from_hf(config, layer=layer, **options)
        else:  # no group has layers without attention
            with pytest.raises(lazyrope.SpecError):
                lazyrope.AttentionSpec.from_hf(config, layer=layer, **options)
    assert [group.layers[0] for group in groups] == sorted(group.layers[0] for group in groups)
    assert len({group.spec for group in groups}) == len(groups)


def test_layers_that_differ_are_groups():
    groups = lazyrope.AttentionSpec.groups_from_hf(hf_changes.changed("gpt_oss"))
    assert [(group.layers, group.spec.window) for group in groups] == [((0, 2), 16), ((1, 3), None)]
    groups = lazyrope.AttentionSpec.groups_from_hf(hf_changes.changed("smollm3"))
    assert [(group.layers, group.spec.rope.variant) for group in groups] == [((0, 1, 2), "neox"), ((3,), "none")]


@pytest.mark.parametrize("layers", [[], [-1], [1, 1], [2, 1]])
def test_layers_that_do_not_ascend_are_refused(layers):
    spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=4, num_kv_heads=2, rope=lazyrope.rope.neox())
    with pytest.raises(lazyrope.SpecError, match=r"layers = \[.*\]; they must be numbers of layers from 0 on"):
        lazyrope.LayerGroup(spec, layers)


def test_errors_of_a_config_are_those_of_from_hf():
    with pytest.raises(lazyrope.SpecError, match='model_type = "bloom"'):
        lazyrope.AttentionSpec.groups_from_hf({"model_type": "bloom"})
