"""A model served from stored documents: right in every mode, whatever runs beside it, and nothing is leaked."""

from __future__ import annotations

import random
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lazyrope
import pytest
import torch
from lazyrope.documents import DocumentTooLarge, StoreFull

transformers = pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import Engine, attach  # noqa: E402

from tests.conftest import HAS_GPU  # noqa: E402
from tools.rag import reference  # noqa: E402
from tools.rag.model import tiny_llama  # noqa: E402

MODES = ("lazy", "block", "full")
# fp32 on the CPU, where what differs in more than rounding differs visibly; kernels know bf16 and fp16 only.
DTYPE = torch.bfloat16 if HAS_GPU else torch.float32


def make(model: Any, **options: Any) -> Engine:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return attach(model, **{"budget": "64MiB", **options})


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(dtype=DTYPE, device="cuda" if HAS_GPU else "cpu")


@pytest.fixture(scope="module")
def exact() -> Any:
    """The same weights in fp32."""
    return as_dtype(tiny_llama(dtype=DTYPE, device="cuda" if HAS_GPU else "cpu"), torch.float32)


def as_dtype(model: Any, dtype: torch.dtype) -> Any:
    """Casts weights; the rotation's frequencies are fp32 in every model, and would suffer."""
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model = model.to(dtype)
    model.model.rotary_emb.inv_freq = frequencies
    return model


def text(rng: random.Random, tokens: int) -> list[int]:
    return [rng.randrange(1024) for _ in range(tokens)]


def logits(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.lm_head(hidden).float()


def texts(seed: int, *lengths: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [text(rng, n) for n in lengths]


def hidden(engine: Engine, prompt: Sequence[int], documents: Sequence[Sequence[int]], mode: str) -> torch.Tensor:
    engine.store.clear()
    scores = engine.score(prompt, documents, mode=mode)
    return torch.cat([*scores.documents, scores.prompt])


def assert_near(given: torch.Tensor, right: torch.Tensor, eager: torch.Tensor | None = None) -> None:
    """Within fp32 rounding, or twice what eager computation in the same dtype loses."""
    error = ((given.float() - right).norm() / right.norm()).item()
    lost = ((eager.float() - right).norm() / right.norm()).item() if eager is not None else 0.0
    assert error <= max(1e-4, 2 * lost), f"error {error:.2e}, eager {lost:.2e}"


def assert_nothing_is_held(engine: Engine) -> None:
    stats = engine.store.stats
    assert stats.private_bytes == 0 and stats.referenced == 0 and engine.num_running == engine.num_waiting == 0
    engine.store.check()


CASES = {
    "no documents": (70,),
    "one": (5, 33),
    "three": (21, 33, 100, 17),
    "pages filled": (16, 16, 32, 48),
    "many": (9, *range(1, 40)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", CASES.values(), ids=CASES)
def test_equals_eager_attention_under_the_block_mask(model, exact, mode, lengths):
    prompt, *documents = texts(1, *lengths)
    right = reference.hidden_states(exact, prompt, documents)
    assert_near(hidden(make(model), prompt, documents, mode), right, reference.hidden_states(model, prompt, documents))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rope", ["default", "llama3"])
def test_the_kernels_equal_eager_attention(mode, rope):
    """As above with the kernels themselves: on a GPU, or in the emulator."""
    device = "cuda" if HAS_GPU else "cpu"
    model = tiny_llama(rope, dtype=torch.bfloat16, device=device)
    engine = make(model, arch=None if HAS_GPU else "emu:sm_80")
    prompt, *documents = texts(2, 19, 33, 50)
    eager = reference.hidden_states(model, prompt, documents)
    given = hidden(engine, prompt, documents, mode)
    tokens = engine.generate(prompt, documents, mode=mode, max_new_tokens=3, stop=[]).result()
    again = hidden(engine, prompt + tokens, documents, mode)[-4:-1]
    right = reference.hidden_states(as_dtype(model, torch.float32), prompt, documents)
    assert_near(given, right, eager)
    greedy = logits(model, again.float()).topk(2)
    for token, best, values in zip(tokens, greedy.indices, greedy.values, strict=True):
        assert token == best[0] or values[0] - values[1] < 0.1


def test_a_wrong_position_would_be_seen(model, exact):
    """The bounds of these tests are not so wide that a document one token off would pass."""
    prompt, *documents = texts(1, 21, 33, 100)
    right = reference.hidden_states(exact, prompt, documents)
    wrong = reference.hidden_states(exact, prompt, [documents[0][:-1], documents[1]])
    with pytest.raises(AssertionError, match="error"):
        assert_near(wrong[-21:], right[-21:], reference.hidden_states(model, prompt, documents)[-21:])


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 1, 0, 2, 1]])
def test_reordered_documents_equal_recomputing(model, exact, order):
    """In another order, and more than once, from the same pages."""
    engine = make(model)
    prompt, *documents = texts(3, 20, 30, 100, 47)
    engine.score(prompt, documents)
    before = engine.store.stats
    moved = [documents[i] for i in order]
    scores = engine.score(prompt, moved)
    after = engine.store.stats
    assert scores.documents == [None] * len(order)
    assert (after.misses, after.hits - before.hits, after.bytes_copied) == (3, len(order), 0)
    right = reference.hidden_states(exact, prompt, moved)[-20:]
    assert_near(scores.prompt, right, reference.hidden_states(model, prompt, moved)[-20:])


@pytest.mark.parametrize("mode", MODES)
def test_passes_of_few_tokens_equal_one_pass(model, exact, mode):
    prompt, *documents = texts(4, 77, 33, 100, 5)
    engine = make(model, max_pass_tokens=16, max_requests=3)
    right = reference.hidden_states(exact, prompt, documents)
    assert_near(hidden(engine, prompt, documents, mode), right, reference.hidden_states(model, prompt, documents))
    assert_nothing_is_held(engine)


def greedy(model: Any, prompt: list[int], documents: list[list[int]], tokens: int) -> list[int]:
    """By recomputing everything for each token."""
    found: list[int] = []
    for _ in range(tokens):
        last = reference.hidden_states(model, [*prompt, *found], documents)[-1:]
        found.append(int(logits(model, last).argmax()))
    return found


@pytest.mark.skipif(HAS_GPU, reason="bf16 may choose another token")
@pytest.mark.parametrize("mode", MODES)
def test_text_equals_recomputing(model, mode):
    engine = make(model)
    prompt, *documents = texts(5, 20, 30, 100)
    assert engine.generate(prompt, documents, mode=mode, max_new_tokens=12, stop=[]).result() == greedy(
        model, prompt, documents, 12
    )


@pytest.mark.skipif(HAS_GPU, reason="bf16 may choose another token")
def test_requests_together_equal_requests_alone(model):
    """Of mixed lengths, document lists and modes, and in the middle of one another."""
    rng = random.Random(6)
    shelf = texts(7, 40, 3, 128, 77)
    requests = [
        (text(rng, rng.choice([1, 5, 40])), rng.sample(shelf, rng.randint(0, 3)), rng.randint(1, 9), rng.choice(MODES))
        for _ in range(12)
    ]
    alone = make(model)
    expected = [alone.generate(p, d, max_new_tokens=n, mode=mode, stop=[]).result() for p, d, n, mode in requests]
    engine = make(model, max_requests=5, max_pass_tokens=64)
    first = [engine.generate(p, d, max_new_tokens=n, mode=mode, stop=[]) for p, d, n, mode in requests[:6]]
    engine.step()
    engine.step()
    rest = [engine.generate(p, d, max_new_tokens=n, mode=mode, stop=[]) for p, d, n, mode in requests[6:]]
    assert [g.result() for g in (*first, *rest)] == expected
    assert_nothing_is_held(engine)


def test_tokens_come_one_by_one(model):
    engine = make(model)
    generation = engine.generate([1, 2, 3], max_new_tokens=5, stop=[])
    seen = []
    for token in generation:
        seen.append(token)
        assert len(generation.tokens) == len(seen) and generation.is_done == (len(seen) == 5)
    assert generation.finish_reason == "length" and generation.arrival < generation.first_token <= generation.finished


def test_iterators_of_several_requests_take_turns(model):
    """What comes for one while another is looked at is not lost."""
    engine = make(model)
    first, second = (engine.generate([1, 2, n], max_new_tokens=8, stop=[]) for n in (3, 4))
    seen = list(zip(first, second, strict=True))
    assert [a for a, _ in seen] == first.tokens and [b for _, b in seen] == second.tokens and len(seen) == 8
    third, fourth = (engine.generate([1, 2, n], max_new_tokens=8, stop=[]) for n in (3, 4))
    some = []
    for token in third:
        some.append(token)
        fourth.result()
    assert some == third.tokens == first.tokens


def test_threads_share_an_engine(model):
    """Each gets all tokens of its own request; two engines of one model do not get into each other's passes."""
    engines = [make(model), make(model)]
    prompts = texts(15, *[12] * 6)
    document = texts(16, 50)
    expected = [make(model).generate(p, document, max_new_tokens=6, stop=[]).result() for p in prompts]

    def ask(i: int) -> list[int]:
        return list(engines[i % 2].generate(prompts[i], document, max_new_tokens=6, stop=[]))

    with ThreadPoolExecutor(6) as threads:
        found = [f.result(60) for f in [threads.submit(ask, i) for i in range(6)]]
    if not HAS_GPU:
        assert found == expected
    assert all(len(tokens) == 6 for tokens in found) and model.config._attn_implementation != "lazyrope"
    for engine in engines:
        assert_nothing_is_held(engine)


def test_calling_the_model_during_a_pass_is_an_error(model, monkeypatch):
    engine = make(model, cuda_graphs=False)
    layer = model.model.layers[0].mlp
    forward = layer.forward

    def call_the_model(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(RuntimeError, match="call it between passes"):
            model(torch.tensor([[1, 2]], device=model.device))
        return forward(x)

    monkeypatch.setattr(layer, "forward", call_the_model)
    assert len(engine.generate([1, 2, 3], max_new_tokens=1, stop=[]).result()) == 1
    monkeypatch.undo()
    model(torch.tensor([[1, 2]], device=model.device))


def test_a_request_that_nobody_wants_any_more(model):
    engine = make(model)
    with engine.generate([1, 2, 3], texts(1, 20), max_new_tokens=50, stop=[]) as generation:
        for _ in generation:
            break
    assert generation.finish_reason == "cancelled"
    assert_nothing_is_held(engine)


def test_salts_keep_documents_apart(model):
    engine = make(model)
    document = texts(1, 20)[0]
    for salt in ("a", "b", "a"):
        last = engine.generate([1], [document], max_new_tokens=1, stop=[], salt=salt)
        last.result()
    assert last.hits == 1 and engine.store.stats.documents == 2


def test_scores_of_a_document_that_was_begun_before_are_left_out(model):
    engine = make(model, max_pass_tokens=40)
    prompt, document = texts(4, 7, 100)
    first = engine.generate(prompt, [document], max_new_tokens=1, stop=[])
    engine.step()
    scores = engine.score(prompt, [document])
    assert first.is_done and scores.documents == [None] and len(scores.prompt) == 7


def test_an_end_token_ends_the_text(model):
    engine = make(model)
    tokens = engine.generate([1, 2, 3], max_new_tokens=8, stop=[]).result()
    at = tokens.index(tokens[5])
    generation = engine.generate([1, 2, 3], max_new_tokens=8, stop=[tokens[5]])
    assert generation.result() == tokens[:at] and generation.finish_reason == "stop"
    assert_nothing_is_held(engine)


def test_a_document_is_computed_once_and_copied_only_in_block_mode(model):
    engine = make(model)
    prompt, *documents = texts(8, 10, 33, 100)
    both = [engine.generate(prompt, documents, max_new_tokens=2, stop=[]) for _ in range(2)]
    engine.run()
    stats = engine.store.stats
    assert [g.hits for g in both] == [0, 2]
    assert (stats.misses, stats.hits, stats.documents, stats.bytes_copied) == (2, 2, 2, 0)
    engine.generate(prompt, documents, max_new_tokens=2, stop=[], mode="block").result()
    token_bytes = engine.store.page_bytes // engine.store.page_size
    assert engine.store.stats.bytes_copied == 133 * token_bytes
    engine.generate(prompt, documents, max_new_tokens=2, stop=[], mode="full").result()
    assert engine.store.stats.misses == 2 and engine.store.stats.bytes_copied == 133 * token_bytes


def budget_of(model: Any, tokens: int) -> int:
    config = model.config
    return tokens * 2 * config.num_hidden_layers * 2 * 64 * DTYPE.itemsize


def test_requests_wait_until_there_is_room(model):
    """First come, first served; waiting changes no statistics."""
    engine = make(model, budget=budget_of(model, 320))
    documents = texts(9, 100, 100, 100)
    generations = [engine.generate([1, 2], [d], max_new_tokens=4, stop=[]) for d in documents]
    engine.step()
    assert (engine.num_running, engine.num_waiting) == (2, 1)
    engine.step()
    assert engine.store.stats.misses == 2
    engine.run()
    stats = engine.store.stats
    assert all(len(g.tokens) == 4 for g in generations) and (stats.misses, stats.evictions) == (3, 1)
    assert generations[0].finished <= generations[2].first_token
    assert_nothing_is_held(engine)


def test_what_never_fits_is_refused_and_the_next_is_served(model):
    engine = make(model, budget=budget_of(model, 320))
    document, other, third = texts(10, 400, 200, 200)
    too_large = engine.generate([1], [document], max_new_tokens=2, stop=[])
    too_many = engine.generate([1], [other, third], max_new_tokens=2, stop=[])
    fits = engine.generate([1], [other], max_new_tokens=2, stop=[])
    assert len(fits.result()) == 2
    with pytest.raises(DocumentTooLarge):
        too_large.result()
    with pytest.raises(DocumentTooLarge, match="the whole budget"):
        too_many.result()
    assert too_large.finish_reason == too_many.finish_reason == "error"
    assert_nothing_is_held(engine)


def test_pages_that_others_hold_are_no_reason_to_wait_for_ever(model):
    engine = make(model, budget=budget_of(model, 320))
    document, other = texts(10, 200, 200)
    engine.generate([1], [document], max_new_tokens=2, stop=[]).result()
    held = engine.store.lookup(document)
    with pytest.raises(StoreFull, match="13 referenced"):
        engine.generate([1], [other], max_new_tokens=2, stop=[]).result()
    engine.store.release(held)
    assert len(engine.generate([1], [other], max_new_tokens=2, stop=[]).result()) == 2


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_document_that_somebody_else_fills_is_waited_for(model, succeeds):
    engine, other = make(model), make(model)
    prompt, document = texts(14, 10, 50)
    expected = other.generate(prompt, [document], max_new_tokens=2, stop=[]).result()
    theirs, _ = engine.store.acquire(document)
    generation = engine.generate(prompt, [document], max_new_tokens=2, stop=[])
    assert engine.step() and engine.step() and not generation.tokens
    if succeeds:
        filled = other.store.lookup(document)
        for layer in range(model.config.num_hidden_layers):
            for name in ("k_pool", "v_pool"):
                source, target = (getattr(e.store, name)(layer) for e in (other, engine))
                target[list(theirs.page_ids)] = source[list(filled.page_ids)]
        engine.store.commit(theirs)
        assert generation.result() == expected
    else:
        engine.store.abandon(theirs)
        assert generation.result() == expected, "it is filled by the engine then"
    engine.store.release(theirs)
    assert_nothing_is_held(engine)


def test_an_error_of_the_model_leaves_nothing_behind(model, monkeypatch):
    engine = make(model, max_pass_tokens=64, cuda_graphs=False)  # a replayed graph does not call the model
    prompt, *documents = texts(11, 10, 33, 100)
    generation = engine.generate(prompt, documents, max_new_tokens=2, stop=[])
    other = engine.generate(prompt, [], max_new_tokens=2, stop=[])
    layer = model.model.layers[1].mlp

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise MemoryError("of a test")

    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(layer, "forward", fail)
        with pytest.raises(MemoryError):
            engine.step()
    assert generation.finish_reason == "error" and isinstance(generation.error, MemoryError) and other.is_done
    assert_nothing_is_held(engine)
    assert engine.store.stats.documents <= 1, "a document that was not finished is still there"
    again = make(model).generate(prompt, documents, max_new_tokens=2, stop=[]).result()
    assert engine.generate(prompt, documents, max_new_tokens=2, stop=[]).result() == again


def test_cancelling_leaves_the_others_alone(model):
    prompt, *documents = texts(12, 10, 50, 100)
    expected = make(model).generate(prompt, documents, max_new_tokens=4, stop=[]).result()
    engine = make(model, max_pass_tokens=40)
    first, second, third = (engine.generate(prompt, documents, max_new_tokens=4, stop=[]) for _ in range(3))
    waiting = engine.generate(prompt, [*documents, prompt], max_new_tokens=4, stop=[])
    engine.step()
    first.cancel()
    waiting.cancel()
    assert second.result() == expected
    third.cancel()
    assert first.finish_reason == waiting.finish_reason == "cancelled"
    assert_nothing_is_held(engine)
    alone = engine.generate(prompt, texts(13, 100), max_new_tokens=4)
    engine.step()
    alone.cancel()
    assert_nothing_is_held(engine)
    assert engine.store.stats.documents == 2, "the one that was half filled is gone"


def test_the_model_stays_as_it_was(model):
    row = torch.tensor([[1, 2, 3, 4]], device=model.device)
    before = model(row).logits
    make(model).generate([1, 2, 3], max_new_tokens=2).result()
    assert torch.equal(model(row).logits, before) and model.config._attn_implementation != "lazyrope"


def test_an_engine_that_is_let_go_lets_its_pool_go(model):
    """At once: a pool in a reference cycle would hold its memory until garbage is collected."""
    engine = make(model)
    generation = engine.generate([1, 2, 3], texts(1, 20), max_new_tokens=2, stop=[])
    generation.result()
    store = weakref.ref(engine.store)
    del engine, generation
    assert store() is None


def test_sampling_follows_the_probabilities(model):
    engine = make(model)
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


def test_text_needs_a_tokenizer_and_uses_it(model):
    class Letters:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [ord(c) for c in text]

        def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
            return "".join(map(chr, tokens))

    engine = make(model, tokenizer=Letters())
    generation = engine.generate("ask", ["doc"], max_new_tokens=2, stop=[])
    assert generation.text() == "".join(map(chr, generation.tokens))
    assert generation.prompt == [97, 115, 107] and generation.documents == [[100, 111, 99]]
    with pytest.raises(lazyrope.SpecError, match="prompt is text; give token ids"):
        make(model).generate("ask")


def test_text_comes_in_whole_characters(model):
    class Bytes:
        """A character of three bytes for any three tokens."""

        def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
            return "\u20ac" * (len(tokens) // 3) + "\ufffd" * (len(tokens) % 3 > 0)

    engine = make(model, tokenizer=Bytes())
    generation = engine.generate([1, 2, 3], max_new_tokens=7, stop=[])
    assert list(generation.pieces()) == ["\u20ac", "\u20ac", "\ufffd"]
    assert generation.text() == "\u20ac\u20ac\ufffd"
    with pytest.raises(lazyrope.SpecError, match="there is no tokenizer"):
        make(model).generate([1], max_new_tokens=1).text()


BAD_REQUESTS: list[tuple[Callable[[Engine], object], str]] = [
    (lambda e: e.generate([]), r"prompt = \[\]; it must be at least one token"),
    (lambda e: e.generate([1, 1024]), r"prompt = \[1, 1024\]; it must be token ids of 0 to 1023"),
    (lambda e: e.generate([1], [[2], [-3]]), r"documents = \[-3\]; it must be token ids of 0 to 1023"),
    (lambda e: e.generate([1], mode="lasy"), "mode = 'lasy'; it must be one of lazy, block, full"),
    (lambda e: e.generate([1], max_new_tokens=0), "max_new_tokens = 0; it must be at least 1"),
    (lambda e: e.generate([1], temperature=-1), "temperature = -1; it must be at least 0"),
]


@pytest.mark.parametrize(("request_", "message"), BAD_REQUESTS, ids=[m for _, m in BAD_REQUESTS])
def test_a_bad_request_is_refused(model, request_, message):
    engine = make(model)
    with pytest.raises(lazyrope.SpecError, match=message):
        request_(engine)
    assert_nothing_is_held(engine)


def gemma2() -> Any:
    config = transformers.Gemma2Config(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        head_dim=64, vocab_size=64,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


def changed(**entries: Any) -> Any:
    model = tiny_llama()
    for name, value in entries.items():
        setattr(model.config, name, value)
    return model


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
BAD_MODELS: dict[str, Callable[[], Any]] = {
    "gemma2": gemma2,
    "sliding_window": lambda: changed(sliding_window=512),
    "yarn": lambda: changed(rope_parameters=YARN),
}


def test_a_model_without_a_head_or_on_two_devices_is_refused(model):
    with pytest.raises(lazyrope.SpecError, match="LlamaModel gives no logits; load the model by AutoModelForCausalLM"):
        make(model.model)
    divided = tiny_llama()
    divided.lm_head.to("meta")
    with pytest.raises(lazyrope.SpecError, match="the model is on cpu and on meta; it must be on one device"):
        make(divided)


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_model_that_has_no_kernels_is_refused_by_name(name):
    with pytest.raises(lazyrope.SpecError, match=name):
        make(BAD_MODELS[name]())


def test_a_config_gives_a_spec_for_rotated_queries(model):
    spec = lazyrope.AttentionSpec.from_hf(model.config, dtype="float16", query_form="rotated")
    assert (spec.query_form, spec.append_form, spec.dtype, spec.head_dim) == ("rotated", "rotated", "float16", 64)
    assert lazyrope.AttentionSpec.from_hf(model.config, dtype="float16").query_form == "raw"
    with pytest.raises(lazyrope.SpecError, match="turned"):
        lazyrope.AttentionSpec.from_hf(model.config, dtype="float16", query_form="turned")


@pytest.mark.skipif(HAS_GPU, reason="kernels run")
def test_plain_pytorch_says_so(model):
    with pytest.warns(RuntimeWarning, match="plain PyTorch"):
        assert attach(model, budget="1MiB").backend == "eager"
    with pytest.raises(lazyrope.SpecError, match=r"the model is in torch\.float32; kernels are for bfloat16"):
        make(model, arch="emu:sm_80")


def test_random_requests_leak_nothing(model, exact, pytestconfig):
    """Requests of all kinds through a store far too small for them, some cancelled; some are compared with a run in
    which nothing is stored."""
    rng = random.Random(pytestconfig.getoption("seed"))
    count = pytestconfig.getoption("requests")
    engine = make(model, budget=budget_of(model, 2000), max_requests=16, max_pass_tokens=512)
    shelf = [text(rng, rng.randint(1, 90)) for _ in range(60)]
    alone = make(model)
    live: list[Any] = []
    compared = ended = 0
    for i in range(count):
        documents = [shelf[min(int(rng.expovariate(0.07)), 59)] for _ in range(rng.randint(0, 5))]
        mode = rng.choices(MODES, [6, 2, 1])[0]
        live.append(
            engine.generate(
                text(rng, rng.randint(1, 12)), documents, mode=mode, max_new_tokens=rng.randint(1, 6), stop=[]
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


def assert_agrees(given: Any, alone: Engine, exact: Any) -> None:
    """With the "full" mode, but where the reference's two best logits are closer than bf16 can tell."""
    full = alone.generate(given.prompt, given.documents, mode="full", max_new_tokens=given.max_new_tokens, stop=[])
    ours, theirs = given.tokens, full.result()
    if ours == theirs:
        return
    at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    last = reference.hidden_states(exact, [*given.prompt, *ours[:at]], given.documents)[-1]
    best = logits(exact, last).topk(2).values
    assert best[0] - best[1] < (0.1 if HAS_GPU else 1e-3), f"{ours} and {theirs}: the best two are {best.tolist()}"
