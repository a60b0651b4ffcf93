"""The engine computes, for each model type that it serves, what transformers computes with its own modules."""

from __future__ import annotations

import sys
from typing import Any

import lazyrope
import pytest
import torch
from lazyrope import eager

transformers = pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import MODEL_TYPES  # noqa: E402
from lazyrope.transformers.models import can_be_captured  # noqa: E402
from lazyrope.transformers.passes import Runner  # noqa: E402

from tests.conftest import HAS_GPU  # noqa: E402
from tests.support import block_mask, hf_changes  # noqa: E402
from tests.support.serving import MODES, assert_near, assert_nothing_is_held, make_engine, random_token_lists  # noqa: E402
from tests.support.shared_steps import always_shares  # noqa: E402
from tests.support.tiny_models import tiny_config, tiny_model  # noqa: E402

TYPES = [name for name in hf_changes.BASES if name in MODEL_TYPES]
ORDERS = ([0, 1, 2], [2, 0, 1], [1, 2, 1])
WITH_KERNELS = ("gemma2", "gpt_oss", "cohere2", "smollm3")  # CI runs kernels for these and for a sample of the others
KERNELS = [
    *WITH_KERNELS,
    *(pytest.param(name, marks=pytest.mark.sample(3)) for name in TYPES if name not in (*WITH_KERNELS, "phimoe")),
]  # the experts of PhiMoE's tokens depend on a threshold, so the rounding of bfloat16 changes them
# In two layers, these models have both kinds of layers as well.
BOTH_KINDS: dict[str, dict[str, Any]] = {
    "cohere2": {"layer_types": ["sliding_attention", "full_attention"]},
    "exaone4": {"layer_types": ["sliding_attention", "full_attention"]},
    "cwm": {"layer_types": ["full_attention", "sliding_attention"]},
    "smollm3": {"no_rope_layers": [1, 0]},
    "qwen2": {"max_window_layers": 1},
}


def as_served(model_type: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    return tiny_model(model_type, dtype, "cuda" if HAS_GPU else "cpu", **changes)


@pytest.fixture
def logits(monkeypatch):
    """Returns a list of the logits from which the engine samples."""
    found: list[torch.Tensor] = []

    def record(given: torch.Tensor, temperatures: torch.Tensor | None) -> torch.Tensor:
        found.append(given)
        return given.argmax(dim=-1)

    monkeypatch.setattr(Runner, "sample", staticmethod(record))
    return found


@pytest.mark.skipif(HAS_GPU, reason="the kernels do not support float32")
@pytest.mark.parametrize("model_type", TYPES)
def test_a_model_over_moved_documents_equals_transformers(model_type, logits):
    """The documents are stored once and read in three orders, in place and as rotated copies."""
    model = as_served(model_type)
    engine = make_engine(model)
    prompt, *documents = random_token_lists(1, 20, 33, 50, 21)
    for order in ORDERS:
        moved = [documents[i] for i in order]
        hidden, exact_logits = block_mask.run(model, prompt, moved)
        for mode in MODES if order is ORDERS[0] else ("lazy", "block"):
            scores = engine.score(prompt, moved, mode=mode)
            assert_near(scores.prompt, hidden[-20:])
            assert_near(logits[-1][-1], exact_logits[-1])
            if mode == "lazy" and order is ORDERS[0]:
                assert_near(torch.cat(scores.documents), hidden[:-20])
    assert engine.store.stats.misses == 3
    tokens = engine.generate(prompt, documents, max_new_tokens=3, stop=[]).result()
    exact = block_mask.run(model, prompt + tokens, documents)[1][-4:-1]
    assert tokens == exact.argmax(-1).tolist()
    assert_nothing_is_held(engine)


@pytest.mark.skipif(HAS_GPU, reason="the kernels do not support float32")
@pytest.mark.parametrize("model_type", TYPES)
def test_an_ordinary_prefill_equals_transformers_with_its_own_masks(model_type):
    """In mode "full", documents and prompt are one causal sequence, in one pass or in several that cut documents."""
    model = as_served(model_type)
    prompt, *documents = random_token_lists(2, 13, 33, 24)
    tokens = [*documents[0], *documents[1], *prompt]
    exact = with_its_own_masks(model, tokens)
    for max_pass_tokens in (40, 8192):
        engine = make_engine(model, max_pass_tokens=max_pass_tokens)
        scores = engine.score(prompt, documents, mode="full")
        assert_near(torch.cat([*scores.documents, scores.prompt]), exact)
        assert engine.store.stats.misses == 0
        assert_nothing_is_held(engine)
        assert_near(engine.score(tokens).prompt, exact)


def with_its_own_masks(model: Any, tokens: list[int]) -> torch.Tensor:
    """Returns the last hidden states of transformers' own forward pass, [tokens, hidden size]."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        ids = torch.tensor([tokens], device=model.device)
        return model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]


@pytest.mark.parametrize("model_type", KERNELS)
def test_kernels_over_moved_documents_equal_transformers(model_type):
    """The kernels run on a GPU or in the emulator."""
    types = hf_changes.BASES[model_type].get("layer_types")
    changes = {"num_hidden_layers": 2} | ({"layer_types": types[:2]} if types else {}) | BOTH_KINDS.get(model_type, {})
    model, exact = (as_served(model_type, dtype, **changes) for dtype in (torch.bfloat16, torch.float32))
    engine = make_engine(model, arch=None if HAS_GPU else "emu:sm_80")
    prompt, *documents = random_token_lists(3, 19, 33, 40)
    for order in ([0, 1], [1, 0]):
        moved = [documents[i] for i in order]
        expected, eager = (block_mask.run(m, prompt, moved)[0] for m in (exact, model))
        for mode in ("lazy", "block"):
            scores = engine.score(prompt, moved, mode=mode)
            assert_near(scores.prompt, expected[-19:], eager[-19:])
    prefill = engine.score(prompt, documents, mode="full")
    tokens = [*documents[0], *documents[1], *prompt]
    assert_near(
        torch.cat([*prefill.documents, prefill.prompt]),
        *(with_its_own_masks(m, tokens).float() for m in (exact, model)),
    )
    assert engine.store.stats.misses == 2


def test_the_bounds_of_these_tests_notice_a_wrong_position_window_or_sink():
    model = as_served("gpt_oss", window=16)
    prompt, *documents = random_token_lists(1, 20, 33, 50)
    exact = block_mask.run(model, prompt, documents)[0][-20:]
    wrong = [block_mask.run(model, prompt, [documents[0][1:], documents[1]])[0][-20:]]
    for changes in ({"sliding_window": 17}, {"rope_theta": 150100.0}):
        other = as_served("gpt_oss", **changes)
        wrong.append(block_mask.run(other, prompt, documents)[0][-20:])
    for layer in model.model.layers:
        layer.self_attn.sinks.data += 0.01
    wrong.append(block_mask.run(model, prompt, documents)[0][-20:])
    for given in wrong:
        with pytest.raises(AssertionError, match="error"):
            assert_near(given, exact)


class Rounded:
    """Rounds keys and values as a pool of 8 bits does, which holds keys rotated by the index in their document.

    Attributes:
        kv_dtype: The type of the pool.
        scales: The key scale and the value scale of each layer.
        moves: True if the prompt sees keys that are rounded again at their logical positions, as in mode "block".
    """

    def __init__(self, config: Any, kv_dtype: str, scales: list[tuple[torch.Tensor, torch.Tensor]], moves: bool):
        groups = lazyrope.AttentionSpec.groups_from_hf(config, dtype="bfloat16", query_form="rotated")
        self.attention = {layer: eager.compile(group.spec) for group in groups for layer in group.layers}
        self.dtype, self.scales, self.moves = getattr(torch, kv_dtype), scales, moves

    def __call__(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, bases: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        k_scale, v_scale = (scale.reshape(-1, 1, 1) for scale in self.scales[layer])
        attention = self.attention[layer]
        local = self.round(attention.rotate(key, attention.cos_sin(-bases)) / k_scale)
        moved = attention.rotate(local, attention.cos_sin(bases))
        seen_by_prompt = self.round(moved) if self.moves else moved
        return moved * k_scale, seen_by_prompt * k_scale, self.round(value / v_scale) * v_scale

    def round(self, x: torch.Tensor) -> torch.Tensor:
        most = torch.finfo(self.dtype).max
        return x.clamp(-most, most).to(self.dtype).float()


@pytest.mark.skipif(HAS_GPU, reason="the kernels do not support float32")
@pytest.mark.parametrize("mode", ["lazy", "block"])
@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("model_type", ["gemma2", "cohere2", "smollm3", "glm4"])
def test_a_model_over_a_pool_of_8_bits_rounds_as_the_pool_does(model_type, kv_dtype, mode):
    model = as_served(model_type)
    scales = [(torch.tensor([0.3, 0.02 * (i + 1)]), torch.tensor([0.7])) for i in range(4)]
    engine = make_engine(model, kv_dtype=kv_dtype, kv_scales=scales)
    assert engine.store.dtype == getattr(torch, kv_dtype)
    prompt, *documents = random_token_lists(4, 20, 33, 50, 21)
    engine.score(prompt, documents)
    moved = [documents[i] for i in (2, 0, 1)]
    given = engine.score(prompt, moved, mode=mode).prompt
    rounded = block_mask.run(model, prompt, moved, Rounded(model.config, kv_dtype, scales, mode == "block"))[0][-20:]
    exact = block_mask.run(model, prompt, moved)[0][-20:]
    of_rounding = ((rounded - exact).norm() / exact.norm()).item()
    error = ((given - rounded).norm() / exact.norm()).item()
    # A float32 error can change which of two neighbours a number is rounded to, so some bits may differ.
    assert of_rounding > 0.01 and error < 0.2 * of_rounding, f"{error} of {of_rounding}"


@pytest.mark.parametrize("mode", ["lazy", "block"])
def test_kernels_over_a_pool_of_8_bits_round_as_the_pool_does(mode):
    model = as_served("gemma2", torch.bfloat16, num_hidden_layers=2)
    scales = [(torch.tensor([0.3, 0.1]), torch.tensor([0.7])) for _ in range(2)]
    on_device = [tuple(scale.to(model.device) for scale in pair) for pair in scales]
    arch = None if HAS_GPU else "emu:sm_80"
    engine = make_engine(model, arch=arch, kv_dtype="float8_e4m3fn", kv_scales=on_device)
    prompt, *documents = random_token_lists(4, 20, 33, 50)
    given = engine.score(prompt, documents, mode=mode).prompt.float().cpu()
    exact = tiny_model("gemma2", num_hidden_layers=2)
    as_stored = Rounded(exact.config, "float8_e4m3fn", scales, mode == "block")
    rounded = block_mask.run(exact, prompt, documents, as_stored)[0][-20:]
    unrounded = block_mask.run(exact, prompt, documents)[0][-20:]
    assert (given - rounded).norm() < 0.7 * (rounded - unrounded).norm()


@pytest.mark.skipif(HAS_GPU or "emu:sm_80" not in lazyrope.archs(), reason="the emulator counts bytes")
@pytest.mark.parametrize(("window", "is_bounded"), [(16, True), (None, False)])
def test_layers_with_a_window_read_no_documents_outside_of_it(window, is_bounded):
    """A prefill of 20 tokens and a decode over 2 and over 6 documents read the same bytes of the pool."""
    model = as_served("mistral", torch.bfloat16, num_hidden_layers=1, sliding_window=window)
    engine = make_engine(model, arch="emu:sm_80")
    prompt, *documents = random_token_lists(5, 20, 40, 40, 40, 40, 40, 40)
    engine.score(prompt, documents)  # stores the documents
    counts = []
    for few in (documents[:2], documents):
        with lazyrope.emulator.profile() as profile:
            engine.generate(prompt, few, max_new_tokens=2, stop=[]).result()
        lines = [line for line in profile.lines if line.file == "pipeline/kv_ring.cuh"]
        assert {line.kernel for line in lines} == {"lazyrope_attend_decode", "lazyrope_attend_prefill"}
        counts.append(sum(line.sectors for line in lines))
    assert counts[0] > 0 and (counts[1] == counts[0]) == is_bounded
    assert counts[1] > 2 * counts[0] or is_bounded


@pytest.mark.skipif(HAS_GPU or "emu:sm_80" not in lazyrope.archs(), reason="the emulator counts bytes")
def test_requests_share_the_documents_that_they_read_in_one_pass(monkeypatch):
    """The pool is read less with a cascade, and the scores of the prompts stay the same up to rounding."""
    monkeypatch.setattr(lazyrope.transformers, "compile_kernels", compile_sharing)
    model = as_served("llama", torch.bfloat16, num_hidden_layers=1)
    prompt, *documents = random_token_lists(6, 3, 90, 130)
    orders = [documents, documents[::-1], documents, documents[::-1]]
    tokens, sectors = [], []
    for cascade in (False, True):
        engine = make_engine(model, arch="emu:sm_80", cascade=cascade)
        engine.score(prompt, documents)  # stores the documents
        with lazyrope.emulator.profile() as profile:
            asked = [engine.generate(prompt, order, max_new_tokens=2, stop=[]) for order in orders]
            tokens.append([generation.result() for generation in asked])
        sectors.append(sum(line.sectors for line in profile.lines if line.file == "pipeline/kv_ring.cuh"))
        assert ("lazyrope_attend_shared" in {line.kernel for line in profile.lines}) == cascade
    assert tokens[0] == tokens[1]
    assert sectors[1] < 0.6 * sectors[0]


def compile_sharing(spec: lazyrope.AttentionSpec, arch: str | None) -> lazyrope.Attention:
    """Compiles a spec so that its steps share documents, however little this saves."""
    return lazyrope.compile(spec, arch, config=always_shares(lazyrope.configs(spec, arch)[0]))


def on_meta(model_class: Any, config: Any) -> Any:
    """Makes a model without memory for its weights."""
    with torch.device("meta"):
        return model_class(config)


def wrapper() -> Any:
    """Returns a model of texts and images, whose config has a text_config."""
    text = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 32, "patch_size": 16}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision)
    return on_meta(transformers.Gemma3ForConditionalGeneration, config)


def hybrid() -> Any:
    """Returns a model of which some layers are recurrent."""
    sizes = {"hidden_size": 64, "intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    config = transformers.JambaConfig(**sizes, num_hidden_layers=2, num_experts=1, use_mamba_kernels=False)
    return on_meta(transformers.JambaForCausalLM, config)


REFUSED = {
    "gptj": (lambda: tiny_model("gptj"), "its code does not call the attention interface of transformers"),
    "falcon": (lambda: tiny_model("falcon"), "its code does not call the attention interface of transformers"),
    "jamba": (hybrid, "it has layers with a recurrent state, which is not position-free"),
    "gemma3": (
        wrapper,
        "the engine serves text models; load a causal language model of its text_config, if there is one",
    ),
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_model_that_the_engine_cannot_serve_is_refused_by_name(model_type):
    make, reason = REFUSED[model_type]
    with pytest.raises(lazyrope.SpecError, match=f'model_type = "{model_type}" is not supported: {reason}'):
        make_engine(make())


def test_a_model_with_other_code_is_refused(monkeypatch):
    model = as_served("llama")
    attention = type(model.model.layers[0].self_attn)
    for layer_class in (attention, type(model.model.layers[0])):
        monkeypatch.setattr(layer_class, "__module__", __name__)  # as for the code of a repository on the Hub
    with pytest.raises(lazyrope.SpecError, match="LlamaForCausalLM does not use the attention interface"):
        make_engine(model)


def test_a_model_of_torch_compile_and_a_subclass_are_served():
    model = as_served("llama", torch.bfloat16 if HAS_GPU else torch.float32)
    expected = make_engine(model).score([1, 2, 3]).prompt
    assert torch.equal(make_engine(torch.compile(model)).score([1, 2, 3]).prompt, expected)

    class Narrow(type(model)):
        """A subclass, whose own module does not import the attention interface."""

    model.__class__ = Narrow
    assert torch.equal(make_engine(model).score([1, 2, 3]).prompt, expected)


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.5] * 32, "long_factor": [9.0] * 32}


@pytest.mark.skipif(HAS_GPU, reason="the kernels do not support float32")
def test_a_model_with_longrope_is_served_within_its_original_context():
    config = {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 256}, "partial_rotary_factor": 1.0}
    model = as_served("phi3", original_max_position_embeddings=256, **config)
    engine = make_engine(model)
    assert engine.max_model_len == 256
    prompt, *documents = random_token_lists(6, 20, 33, 50, 21)
    engine.score(prompt, documents)
    moved = [documents[i] for i in (2, 0, 1)]
    for mode in MODES:
        assert_near(engine.score(prompt, moved, mode=mode).prompt, block_mask.run(model, prompt, moved)[0][-20:])
    with pytest.raises(lazyrope.SpecError, match='max_model_len = 257, but rope_type = "longrope"'):
        make_engine(model, max_model_len=257)


MISMATCHES: dict[str, tuple[str, str, Any, str]] = {
    "a scale": ("llama", "scaling", 0.2, "scaling = 0.2; by its config, lazyrope expects 0.125"),
    "a cap": ("gemma2", "attn_logit_softcapping", 30.0, "softcap = 30.0; by its config, lazyrope expects 50.0"),
    "a window": ("gpt_oss", "sliding_window", 17, "sliding_window = 17; by its config, lazyrope expects None"),
    "no sinks": ("gpt_oss", "sinks", None, "s_aux = False; by its config, lazyrope expects True"),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_layer_that_asks_for_another_attention_than_its_spec_is_refused(name):
    """The specs come from the config; these models were changed after they were made."""
    model_type, attribute, value, text = MISMATCHES[name]
    model = as_served(model_type, torch.bfloat16 if HAS_GPU else torch.float32)
    setattr(model.model.layers[1].self_attn, attribute, value)
    engine = make_engine(model)
    with pytest.raises(lazyrope.SpecError, match=f"layer 1: the model calls its attention with {text}"):
        engine.score([1, 2, 3])
    assert_nothing_is_held(engine)


def test_a_mask_of_the_model_is_refused(monkeypatch):
    """transformers makes no mask for an unknown attention. A mask has the square of the tokens."""
    masks = transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    monkeypatch.setitem(masks._global_mapping, "lazyrope", masks["eager"])
    engine = make_engine(as_served("llama", torch.bfloat16 if HAS_GPU else torch.float32))
    with pytest.raises(RuntimeError, match=r"LlamaAttention gives a mask of \[1, 1, 3, 3\] to its attention"):
        engine.score([1, 2, 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_scales": [(1, 1)] * 4}, r"kv_scales are given; a pool of bfloat16 has no scales\. Give kv_dtype="),
        ({"kv_dtype": "float8_e5m2", "kv_scales": [(1, 1)] * 3}, "kv_scales has 3 entries; .* for each of 4 layers"),
        ({"kv_dtype": "float8_e5m2", "kv_scales": [(1,)] * 4}, r"it must have one pair \(k_scale, v_scale\)"),
        ({"kv_dtype": "int8"}, 'kv_dtype = "int8"'),
    ],
)
def test_kv_scales_that_do_not_fit_are_refused(options, message):
    with pytest.raises(lazyrope.SpecError, match=message):
        make_engine(as_served("llama", torch.bfloat16 if HAS_GPU else torch.float32), **options)


def test_the_types_of_the_engine_are_those_of_from_hf_that_call_the_attention_interface():
    for model_type in set(lazyrope.model_types()) & set(hf_changes.BASES):
        config = tiny_config(model_type)
        model_class = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
        code = model_class and sys.modules[model_class.__module__]
        groups = lazyrope.AttentionSpec.groups_from_hf(config, dtype="bfloat16")
        has_attention = sum(len(group.layers) for group in groups) == config.num_hidden_layers
        is_served = hasattr(code, "ALL_ATTENTION_FUNCTIONS") and has_attention and not model_class._is_stateful
        takes_positions = model_type != "llama4_text"  # its temperature counts from the beginning of a pass
        assert (model_type in MODEL_TYPES) == (is_served and takes_positions), model_type


def test_models_that_read_back_numbers_are_not_captured():
    assert can_be_captured(as_served("llama"))
    mixture = as_served("mixtral")
    mixture.set_experts_implementation("grouped_mm")
    assert can_be_captured(mixture)
    mixture.set_experts_implementation("eager")
    assert not can_be_captured(mixture)
