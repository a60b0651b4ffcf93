"""Changes each key of each model type, and compares AttentionSpec.from_hf with transformers.

The spec must equal transformers' own attention, or from_hf must refuse the config.
CI tries an eighth of the changes, and make soak all, and every pair of them.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import lazyrope
import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

import transformers

from tests.support import hf_changes, hf_oracle, reference

CHUNKS = 3200  # a chunk has about 700 pairs of changes and takes seconds
REFUSED, EQUAL, UNUSABLE = "refused", "equal", "not usable in transformers"


@pytest.fixture(autouse=True)
def _no_warnings() -> Any:
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    yield
    transformers.logging.set_verbosity(level)


def spec_of_layer(config: dict[str, Any], layer: int) -> lazyrope.AttentionSpec | None:
    """Returns the spec of a layer, or None if it has no attention."""
    try:
        return lazyrope.AttentionSpec.from_hf(config, layer=layer)
    except lazyrope.SpecError as error:
        if f"layer {layer} has no attention" in str(error):
            return None
        raise


def specs_of(config: dict[str, Any]) -> list[lazyrope.AttentionSpec | None] | None:
    """Returns the spec of each layer, or None if from_hf refuses the config."""
    count = config.get("num_hidden_layers") or config.get("n_layer") or 1
    try:
        return [spec_of_layer(config, layer) for layer in range(count)]
    except lazyrope.SpecError:
        return None


def temperature_of(spec: lazyrope.AttentionSpec) -> list[float]:
    if spec.temperature is None:
        return [1.0] * len(hf_oracle.POSITIONS)
    return reference.temperature_of(spec.temperature, hf_oracle.POSITIONS).tolist()


def differences(spec: lazyrope.AttentionSpec | None, layer: hf_oracle.Layer | None) -> list[str]:
    """Returns a line for each field in which the two differ."""
    if spec is None or layer is None:
        return [] if spec is layer else [f"the layer has attention: {spec is not None}, not {layer is not None}"]
    tokens = torch.arange(hf_oracle.TOKENS)
    ours = {
        "num_q_heads": spec.num_q_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "scale": pytest.approx(spec.scale),
        "softcap": spec.softcap,
        "sinks": spec.sinks,
        "visible": reference.visible(spec.mask, spec.window or spec.chunk, tokens, tokens).tolist(),
        "frequencies": pytest.approx(list(spec.frequencies), rel=1e-5),
        "attention_factor": pytest.approx(spec.attention_factor, rel=1e-6),
        "pairing": spec.rope_pairing,
        "temperature": pytest.approx(temperature_of(spec), rel=1e-6),
    }
    if layer.dtype != "None":
        ours["dtype"] = spec.dtype
    theirs = {name: getattr(layer, name) for name in ours}
    theirs |= {name: theirs[name].tolist() for name in ("visible", "frequencies", "temperature")}
    return [f"{name}: {ours[name]}, not {theirs[name]}" for name in ours if ours[name] != theirs[name]]


def outcome(config: dict[str, Any]) -> str:
    """Returns REFUSED, EQUAL, UNUSABLE, or the first field in which the spec and transformers differ."""
    specs = specs_of(config)
    if specs is None:
        return REFUSED
    try:
        layers = hf_oracle.attention_layers(config)
    except hf_oracle.Unusable:
        return UNUSABLE
    return next((line for spec, layer in zip(specs, layers, strict=False) for line in differences(spec, layer)), EQUAL)


def assert_equal_or_refused(configs: Iterable[dict[str, Any]], least: float) -> None:
    """Checks each config, and that at least this share of them agrees with transformers."""
    outcomes = [(config, outcome(config)) for config in configs]
    wrong = [f"{config}: {found[:300]}" for config, found in outcomes if found not in (EQUAL, REFUSED, UNUSABLE)]
    assert not wrong, f"{len(wrong)} of {len(outcomes)} differ, such as\n" + "\n".join(wrong[:10])
    counts = Counter(found for _, found in outcomes)
    assert counts[EQUAL] > least * len(outcomes), counts


@pytest.mark.parametrize("model_type", lazyrope._core.model_types())
def test_specs_agree_with_transformers_after_any_change_of_one_key(model_type, pytestconfig):
    assert outcome(hf_changes.changed(model_type)) == EQUAL
    changes = hf_changes.changes(model_type)
    if not pytestconfig.getoption("soak"):
        changes = random.Random(model_type).sample(changes, len(changes) // 8)
    assert_equal_or_refused((hf_changes.changed(model_type, change) for change in changes), least=0.2)


@pytest.mark.parametrize("model_type", lazyrope._core.model_types())
def test_keys_that_do_not_change_attention_are_accepted(model_type):
    spec = specs_of(hf_changes.changed(model_type))
    for key, values in hf_changes.HARMLESS.items():
        for value in values:
            assert specs_of(hf_changes.changed(model_type, (key, value))) == spec, key


@pytest.mark.parametrize("model_type", lazyrope._core.model_types())
def test_every_key_that_transformers_reads_is_classified(model_type):
    """A key that a new version of transformers reads must get values in hf_changes.VALUES, or a place in OTHER."""
    read = hf_oracle.keys_of(model_type)
    assert {"hidden_size", "max_position_embeddings"} & read
    assert read <= hf_changes.VALUES.keys() | hf_changes.HARMLESS.keys() | hf_changes.OTHER


@pytest.mark.sample(1, runs_kernels=False)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_specs_agree_with_transformers_after_any_change_of_two_keys(chunk):
    pairs = itertools.islice(hf_changes.pairs_of_changes(), chunk, None, CHUNKS)
    assert_equal_or_refused((hf_changes.changed(model_type, *made) for model_type, *made in pairs), least=0.05)
