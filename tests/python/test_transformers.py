"""A model served from stored documents agrees with eager attention in every mode, and leaks nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lazyrope
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import Engine, attach  # noqa: E402

from tests.conftest import HAS_GPU  # noqa: E402
from tests.support.cpu_time import ratios  # noqa: E402
from tests.support.serving import (  # noqa: E402
    MODES,
    as_dtype,
    assert_agrees,
    assert_near,
    assert_nothing_is_held,
    budget_of,
    logits,
    make_engine,
    random_token_lists,
    random_tokens,
)
from tools.rag import reference  # noqa: E402
from tools.rag.model import tiny_llama  # noqa: E402


def hidden(engine: Engine, prompt: Sequence[int], documents: Sequence[Sequence[int]], mode: str) -> torch.Tensor:
    engine.store.clear()
    scores = engine.score(prompt, documents, mode=mode)
    return torch.cat([*scores.documents, scores.prompt])


CASES = {
    "no documents": (70,),
    "one": (5, 33),
    "three": (21, 33, 100, 17),
    "pages filled": (16, 16, 32, 48),
    "many": (9, *range(1, 40)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", CASES.values(), ids=CASES)
def test_hidden_states_equal_eager_attention_under_the_block_mask(model, exact, mode, lengths):
    prompt, *documents = random_token_lists(1, *lengths)
    expected = reference.hidden_states(exact, prompt, documents)
    assert_near(
        hidden(make_engine(model), prompt, documents, mode), expected, reference.hidden_states(model, prompt, documents)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rope", ["default", "llama3", "yarn"])
def test_the_kernels_equal_eager_attention(mode, rope):
    """The kernels run on a GPU or in the emulator."""
    device = "cuda" if HAS_GPU else "cpu"
    model = tiny_llama(rope, dtype=torch.bfloat16, device=device)
    engine = make_engine(model, arch=None if HAS_GPU else "emu:sm_80")
    prompt, *documents = random_token_lists(2, 19, 33, 50)
    eager = reference.hidden_states(model, prompt, documents)
    given = hidden(engine, prompt, documents, mode)
    tokens = engine.generate(prompt, documents, mode=mode, max_new_tokens=3, stop=[]).result()
    again = hidden(engine, prompt + tokens, documents, mode)[-4:-1]
    expected = reference.hidden_states(as_dtype(model, torch.float32), prompt, documents)
    assert_near(given, expected, eager)
    greedy = logits(model, again.float()).topk(2)
    for token, best, values in zip(tokens, greedy.indices, greedy.values, strict=True):
        assert token == best[0] or values[0] - values[1] < 0.1


def test_a_wrong_position_exceeds_the_bounds(model, exact):
    """A document that is one token off exceeds the bounds of these tests."""
    prompt, *documents = random_token_lists(1, 21, 33, 100)
    expected = reference.hidden_states(exact, prompt, documents)
    wrong = reference.hidden_states(exact, prompt, [documents[0][:-1], documents[1]])
    with pytest.raises(AssertionError, match="error"):
        assert_near(wrong[-21:], expected[-21:], reference.hidden_states(model, prompt, documents)[-21:])


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 1, 0, 2, 1]])
def test_reordered_documents_equal_recomputing(model, exact, order):
    """The same pages serve the documents in another order, and more than once."""
    engine = make_engine(model)
    prompt, *documents = random_token_lists(3, 20, 30, 100, 47)
    engine.score(prompt, documents)
    before = engine.store.stats
    moved = [documents[i] for i in order]
    scores = engine.score(prompt, moved)
    after = engine.store.stats
    assert scores.documents == [None] * len(order)
    assert (after.misses, after.hits - before.hits, after.bytes_copied) == (3, len(order), 0)
    expected = reference.hidden_states(exact, prompt, moved)[-20:]
    assert_near(scores.prompt, expected, reference.hidden_states(model, prompt, moved)[-20:])


@pytest.mark.parametrize("mode", MODES)
def test_passes_of_few_tokens_equal_one_pass(model, exact, mode):
    prompt, *documents = random_token_lists(4, 77, 33, 100, 5)
    engine = make_engine(model, max_pass_tokens=16, max_requests=3)
    expected = reference.hidden_states(exact, prompt, documents)
    assert_near(hidden(engine, prompt, documents, mode), expected, reference.hidden_states(model, prompt, documents))
    assert_nothing_is_held(engine)


def greedy(model: Any, prompt: list[int], documents: list[list[int]], tokens: int) -> list[int]:
    """Generates greedily, and recomputes everything for each token."""
    found: list[int] = []
    for _ in range(tokens):
        last = reference.hidden_states(model, [*prompt, *found], documents)[-1:]
        found.append(int(logits(model, last).argmax()))
    return found


@pytest.mark.skipif(HAS_GPU, reason="bf16 may choose another token")
@pytest.mark.parametrize("mode", MODES)
def test_generated_text_equals_recomputing(model, mode):
    engine = make_engine(model)
    prompt, *documents = random_token_lists(5, 20, 30, 100)
    assert engine.generate(prompt, documents, mode=mode, max_new_tokens=12, stop=[]).result() == greedy(
        model, prompt, documents, 12
    )


@pytest.mark.skipif(HAS_GPU, reason="bf16 may choose another token")
def test_requests_together_equal_requests_alone(model):
    """Requests differ in length, documents and mode, and new ones arrive while others run."""
    rng = random.Random(6)
    corpus = random_token_lists(7, 40, 3, 128, 77)
    requests = [
        (
            random_tokens(rng, rng.choice([1, 5, 40])),
            rng.sample(corpus, rng.randint(0, 3)),
            rng.randint(1, 9),
            rng.choice(MODES),
        )
        for _ in range(12)
    ]
    alone = make_engine(model)
    expected = [alone.generate(p, d, max_new_tokens=n, mode=mode, stop=[]).result() for p, d, n, mode in requests]
    engine = make_engine(model, max_requests=5, max_pass_tokens=64)
    first = [engine.generate(p, d, max_new_tokens=n, mode=mode, stop=[]) for p, d, n, mode in requests[:6]]
    engine.step()
    engine.step()
    rest = [engine.generate(p, d, max_new_tokens=n, mode=mode, stop=[]) for p, d, n, mode in requests[6:]]
    assert [g.result() for g in (*first, *rest)] == expected
    assert_nothing_is_held(engine)


def test_the_engine_does_not_change_the_model(model):
    row = torch.tensor([[1, 2, 3, 4]], device=model.device)
    before = model(row).logits
    make_engine(model).generate([1, 2, 3], max_new_tokens=2).result()
    assert torch.equal(model(row).logits, before) and model.config._attn_implementation != "lazyrope"


def changed(**entries: Any) -> Any:
    model = tiny_llama()
    for name, value in entries.items():
        setattr(model.config, name, value)
    return model


BAD_MODELS: dict[str, Callable[[], Any]] = {
    "is_causal = false": lambda: changed(is_causal=False),
    "dual_chunk_attention_config": lambda: changed(dual_chunk_attention_config={"chunk_size": 8}),
}


def test_a_model_without_a_head_or_on_two_devices_is_refused(model):
    with pytest.raises(lazyrope.SpecError, match="LlamaModel gives no logits; load the model by AutoModelForCausalLM"):
        make_engine(model.model)
    divided = tiny_llama()
    divided.lm_head.to("meta")
    with pytest.raises(lazyrope.SpecError, match="the model is on cpu and on meta; it must be on one device"):
        make_engine(divided)


@pytest.mark.parametrize("given", ["some/model", Path("some/model")])
def test_a_name_is_refused_with_the_lines_that_load_a_model(given):
    with pytest.raises(lazyrope.SpecError) as caught:
        attach(given, budget="1MiB")
    first, *lines = str(caught.value).splitlines()
    assert first == f"model = {given!r}; it must be a loaded model of transformers:"
    names = {"torch": torch, "lazyrope": lazyrope}

    class AutoModelForCausalLM:
        @staticmethod
        def from_pretrained(name: str, dtype: torch.dtype) -> Any:
            assert name == "some/model"
            return tiny_llama(dtype=dtype)

    program = "\n".join(line.strip() for line in lines).replace("...", "'1MiB'")
    with pytest.warns(RuntimeWarning, match="plain PyTorch"):
        exec(program, names | {"AutoModelForCausalLM": AutoModelForCausalLM})


def test_what_is_no_model_is_refused():
    with pytest.raises(lazyrope.SpecError, match=r"model = 3; it must be a loaded model of transformers"):
        attach(3, budget="1MiB")


@pytest.mark.parametrize("name", BAD_MODELS)
def test_an_unsupported_model_is_refused_by_name(name):
    with pytest.raises(lazyrope.SpecError, match=name):
        make_engine(BAD_MODELS[name]())


def test_a_config_gives_a_spec_for_rotated_queries(model):
    spec = lazyrope.AttentionSpec.from_hf(model.config, dtype="float16", query_form="rotated")
    assert (spec.query_form, spec.append_form, spec.dtype, spec.head_dim) == ("rotated", "rotated", "float16", 64)
    assert lazyrope.AttentionSpec.from_hf(model.config, dtype="float16").query_form == "raw"
    with pytest.raises(lazyrope.SpecError, match="spun"):
        lazyrope.AttentionSpec.from_hf(model.config, dtype="float16", query_form="spun")


@pytest.mark.skipif(HAS_GPU, reason="kernels run")
def test_the_eager_backend_warns(model):
    with pytest.warns(RuntimeWarning, match="plain PyTorch"):
        assert attach(model, budget="1MiB").backend == "eager"
    with pytest.raises(lazyrope.SpecError, match=r"the model is in torch\.float32; kernels are for bfloat16"):
        make_engine(model, arch="emu:sm_80")


def test_sampling_follows_the_probabilities(model):
    engine = make_engine(model)
    scores = engine.score([1, 2, 3])
    heat = 3.0
    expected = (logits(model, scores.prompt[-1]) / heat).softmax(-1)
    torch.manual_seed(0)
    count = 400
    drawn = [engine.generate([1, 2, 3], max_new_tokens=1, temperature=heat, stop=[]) for _ in range(count)]
    engine.run()
    seen = Counter(g.tokens[0] for g in drawn)
    likely = expected.topk(5)
    for token, share in zip(likely.indices.tolist(), likely.values.tolist(), strict=True):
        deviation = (share * (1 - share) / count) ** 0.5
        assert abs(seen[token] / count - share) < 4 * deviation + 0.01
    best = int(expected.argmax())
    assert engine.generate([1, 2, 3], max_new_tokens=1, temperature=1e-4, stop=[]).result() == [best]


def test_random_requests_leak_nothing(model, exact, pytestconfig):
    """Serves requests of all kinds from a store that is far too small for them, and cancels some.

    One of every hundred is compared with a run in "recompute" mode.
    """
    rng = random.Random(pytestconfig.getoption("seed"))
    count = pytestconfig.getoption("requests")
    engine = make_engine(model, budget=budget_of(model, 2000), max_requests=16, max_pass_tokens=512)
    corpus = [random_tokens(rng, rng.randint(1, 90)) for _ in range(60)]
    alone = make_engine(model)
    live: list[Any] = []
    compared = ended = 0
    for i in range(count):
        documents = [corpus[min(int(rng.expovariate(0.07)), 59)] for _ in range(rng.randint(0, 5))]
        mode = rng.choices(MODES, [6, 2, 1])[0]
        live.append(
            engine.generate(
                random_tokens(rng, rng.randint(1, 12)), documents, mode=mode, max_new_tokens=rng.randint(1, 6), stop=[]
            )
        )
        if rng.random() < 0.02:
            rng.choice(live).cancel()
        while engine.num_waiting > 12:
            engine.step()
        if i % 100 == 99:
            engine.run()
            assert_nothing_is_held(engine)
            ended += len(live)
            assert all(g.finish_reason in ("length", "cancelled") for g in live)
            chosen = rng.choice([g for g in live if g.finish_reason == "length"])
            assert_agrees(chosen, alone, exact)
            compared += 1
            live.clear()
    assert ended == count and compared == count // 100
    assert engine.store.stats.evictions > count // 20, "the store was large enough for all"


@pytest.mark.skipif(HAS_GPU, reason="plain PyTorch is for CPUs")
def test_plain_pytorch_takes_about_the_time_of_the_models_own_attention():
    """The limits are generous, for CPU times of a busy machine vary. tests/support/cpu_time.py prints the ratios."""
    found = ratios(torch.float32, "sdpa", rounds=3)
    assert found["first token"] < 1.6 and found["other tokens"] < 2.2, found


@pytest.mark.skipif(HAS_GPU, reason="captured passes always draw random numbers")
def test_greedy_requests_draw_no_random_numbers(model):
    engine = make_engine(model)
    before = torch.random.get_rng_state()
    engine.generate([1, 2, 3], max_new_tokens=2, stop=[]).result()
    assert torch.equal(torch.random.get_rng_state(), before)
    engine.generate([1, 2, 3], max_new_tokens=2, temperature=1.0, stop=[]).result()
    assert not torch.equal(torch.random.get_rng_state(), before)


def test_a_request_beyond_the_models_positions_is_refused():
    engine = make_engine(tiny_llama("default", max_position_embeddings=100))
    prompt, *documents = random_token_lists(8, 20, 30, 40)
    assert len(engine.generate(prompt, documents, max_new_tokens=11, stop=[]).result()) == 11  # positions 0 to 99
    with pytest.raises(
        lazyrope.SpecError,
        match=r"needs 101 positions \(documents: 70, prompt: 20, max_new_tokens: 12\); the engine allows 100\..*"
        r"attach\(\.\.\., max_model_len=101\) goes beyond it",
    ):
        engine.generate(prompt, documents, max_new_tokens=12)
    with pytest.raises(lazyrope.SpecError, match="needs 120 positions"):
        engine.score(prompt + prompt + [1] * 10, documents)
    assert_nothing_is_held(engine)


def test_max_model_len_replaces_the_models_positions():
    model = tiny_llama("default", max_position_embeddings=100)
    assert make_engine(model).max_model_len == 100
    assert len(make_engine(model, max_model_len=120).generate([1] * 119, max_new_tokens=2, stop=[]).result()) == 2
    with pytest.raises(lazyrope.SpecError, match="needs 51 positions"):
        make_engine(model, max_model_len=50).generate([1] * 50, max_new_tokens=2)
    for wrong in (0, 1.5, "8k"):
        with pytest.raises(lazyrope.SpecError, match=r"max_model_len = .*; it must be an integer, at least 1"):
            make_engine(model, max_model_len=wrong)


@pytest.mark.parametrize(
    ("rope", "stated", "expected"),
    [("default", 8192, 8192), ("llama3", 131072, 131072), ("yarn", 256, 2048), ("yarn", 2048, 2048)],
)
def test_the_models_positions_include_the_extension_of_yarn(rope, stated, expected):
    """The factor of the tiny YaRN model is 8, from 256 positions."""
    assert make_engine(tiny_llama(rope, max_position_embeddings=stated)).max_model_len == expected
