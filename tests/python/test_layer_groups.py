"""AttentionSpec.groups_from_hf returns the attention of all layers of a model, and a store has the pages of all."""

from __future__ import annotations

from typing import Any

import lazyrope
import pytest
import torch
from lazyrope.documents import DocumentStore

from tests.support import hf_changes
from tests.support.stores import PAGE, SPEC

TOKENS = range(9)


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


def groups(*given: tuple[dict[str, Any], list[int]]) -> list[lazyrope.LayerGroup]:
    return [lazyrope.LayerGroup(lazyrope.AttentionSpec(**(SPEC | fields)), layers) for fields, layers in given]


def store_of(given: list[lazyrope.LayerGroup], **options: Any) -> DocumentStore:
    return DocumentStore(given, budget="1M", device="cpu", **options)


def test_a_store_of_groups_has_the_pools_and_keys_of_all_layers():
    window = dict(mask="sliding_window", window=16)
    nope = dict(rope=lazyrope.rope.none())
    store = store_of(groups((window, [0, 2]), (nope, [1])))
    assert store.page_bytes == 3 * 2 * PAGE * 64 * 2 and store.k_pool(2).dtype == torch.bfloat16
    key = store.key(TOKENS)
    assert key == store_of(groups((window, [0, 2]), (nope, [1])), num_layers=3).key(TOKENS)
    others = [groups((window, [0, 1]), (nope, [2])), groups(({}, [0, 2]), (window, [1])), groups(({}, [0, 1, 2]))]
    assert len({key, *(store_of(other).key(TOKENS) for other in others)}) == 4
    same = DocumentStore(lazyrope.AttentionSpec(**SPEC), num_layers=3, budget="1M", device="cpu").key(TOKENS)
    assert store_of(others[2]).key(TOKENS) == same


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (groups(({}, [0, 2])), {}, r"the groups have the layers \[0, 2\]; each layer from 0 on must be in one group"),
        (groups(({}, [0, 1]), ({}, [1])), {}, r"the groups have the layers \[0, 1, 1\]"),
        ([], {}, r"the groups have the layers \[\]"),
        (groups(({}, [0])), {"num_layers": 2}, "num_layers is 2; the groups have 1 layers"),
        (groups(({}, [0]), (dict(head_dim=128), [1])), {}, "head_dim is 64 in layer 0 and 128 in layer 1; all layers"),
        (groups(({}, [1]), (dict(kv_dtype="float8_e5m2"), [0])), {}, "kv_dtype is 'bfloat16' in layer 1 and 'float8"),
    ],
)
def test_groups_that_share_no_store_are_refused(given, options, message):
    with pytest.raises(lazyrope.SpecError, match=message):
        store_of(given, **options)
