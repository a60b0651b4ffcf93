"""Requests of the engine: their order, cancellation and errors, and the pages that they hold."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import lazyrope
import pytest
import torch
from lazyrope.documents import DocumentTooLarge, StoreFull

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import Engine
from lazyrope.transformers.layout import MODES

from tests.conftest import HAS_GPU
from tests.support.serving import (
    assert_nothing_is_held,
    budget_of,
    make_engine,
    random_token_lists,
)


def test_a_generation_yields_tokens_one_by_one(model):
    engine = make_engine(model)
    generation = engine.generate([1, 2, 3], max_new_tokens=5, stop=[])
    seen = []
    for token in generation:
        seen.append(token)
        assert len(generation.tokens) == len(seen) and generation.is_done == (len(seen) == 5)
    assert generation.finish_reason == "length" and generation.arrival < generation.first_token <= generation.finished


def test_iterators_of_several_requests_may_be_interleaved(model):
    """Tokens of one request that arrive while another is read are not lost."""
    engine = make_engine(model)
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
    """Each thread gets all tokens of its request, and passes of two engines of one model do not mix."""
    engines = [make_engine(model), make_engine(model)]
    prompts = random_token_lists(15, *[12] * 6)
    document = random_token_lists(16, 50)
    expected = [make_engine(model).generate(p, document, max_new_tokens=6, stop=[]).result() for p in prompts]

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
    engine = make_engine(model, cuda_graphs=False)
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


def test_leaving_the_with_cancels_a_request(model):
    engine = make_engine(model)
    with engine.generate([1, 2, 3], random_token_lists(1, 20), max_new_tokens=50, stop=[]) as generation:
        for _ in generation:
            break
    assert generation.finish_reason == "cancelled"
    assert_nothing_is_held(engine)


def test_salts_keep_documents_apart(model):
    engine = make_engine(model)
    document = random_token_lists(1, 20)[0]
    for salt in ("a", "b", "a"):
        last = engine.generate([1], [document], max_new_tokens=1, stop=[], salt=salt)
        last.result()
    assert last.hits == 1 and engine.store.stats.documents == 2


def test_scores_of_a_document_that_another_request_fills_are_left_out(model):
    engine = make_engine(model, max_pass_tokens=40)
    prompt, document = random_token_lists(4, 7, 100)
    first = engine.generate(prompt, [document], max_new_tokens=1, stop=[])
    engine.step()
    scores = engine.score(prompt, [document])
    assert first.is_done and scores.documents == [None] and len(scores.prompt) == 7


def test_an_end_token_ends_the_text(model):
    engine = make_engine(model)
    tokens = engine.generate([1, 2, 3], max_new_tokens=8, stop=[]).result()
    at = tokens.index(tokens[5])
    generation = engine.generate([1, 2, 3], max_new_tokens=8, stop=[tokens[5]])
    assert generation.result() == tokens[:at] and generation.finish_reason == "stop"
    assert_nothing_is_held(engine)


def test_a_document_is_computed_once_and_copied_only_in_block_mode(model):
    engine = make_engine(model)
    prompt, *documents = random_token_lists(8, 10, 33, 100)
    both = [engine.generate(prompt, documents, max_new_tokens=2, stop=[]) for _ in range(2)]
    engine.run()
    stats = engine.store.stats
    assert [g.hits for g in both] == [0, 2]
    assert (stats.misses, stats.hits, stats.documents, stats.bytes_copied) == (2, 2, 2, 0)
    engine.generate(prompt, documents, max_new_tokens=2, stop=[], mode="block").result()
    token_bytes = engine.store.page_bytes // engine.store.page_size
    assert engine.store.stats.bytes_copied == 133 * token_bytes
    engine.generate(prompt, documents, max_new_tokens=2, stop=[], mode="recompute").result()
    assert engine.store.stats.misses == 2 and engine.store.stats.bytes_copied == 133 * token_bytes


def test_requests_wait_until_pages_are_free(model):
    """Requests run in their order of arrival, and waiting changes no statistics."""
    engine = make_engine(model, budget=budget_of(model, 320))
    documents = random_token_lists(9, 100, 100, 100)
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


def test_a_request_that_never_fits_fails_and_the_next_is_served(model):
    engine = make_engine(model, budget=budget_of(model, 320))
    document, other, third = random_token_lists(10, 400, 200, 200)
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


def test_pages_held_outside_the_engine_cause_an_error_not_a_wait(model):
    engine = make_engine(model, budget=budget_of(model, 320))
    document, other = random_token_lists(10, 200, 200)
    engine.generate([1], [document], max_new_tokens=2, stop=[]).result()
    held = engine.store.lookup(document)
    with pytest.raises(StoreFull, match="13 referenced"):
        engine.generate([1], [other], max_new_tokens=2, stop=[]).result()
    engine.store.release(held)
    assert len(engine.generate([1], [other], max_new_tokens=2, stop=[]).result()) == 2


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_request_waits_for_a_document_that_another_caller_fills(model, succeeds):
    engine, other = make_engine(model), make_engine(model)
    prompt, document = random_token_lists(14, 10, 50)
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
        assert generation.result() == expected, "the engine does not fill the document itself"
    engine.store.release(theirs)
    assert_nothing_is_held(engine)


def test_an_error_of_the_model_releases_everything(model, monkeypatch):
    engine = make_engine(model, max_pass_tokens=64, cuda_graphs=False)  # a replayed graph does not call the model
    prompt, *documents = random_token_lists(11, 10, 33, 100)
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
    assert engine.store.stats.documents <= 1, "an unfinished document is still stored"
    again = make_engine(model).generate(prompt, documents, max_new_tokens=2, stop=[]).result()
    assert engine.generate(prompt, documents, max_new_tokens=2, stop=[]).result() == again


def test_a_request_whose_admission_is_interrupted_keeps_no_pages_and_is_served_later(model, monkeypatch):
    engine = make_engine(model)
    prompt, *documents = random_token_lists(17, 10, 33, 100)
    generation = engine.generate(prompt, documents, max_new_tokens=2, stop=[])

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(MODES, "lazy", replace(MODES["lazy"], layout=interrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    stats = engine.store.stats
    assert stats.private_bytes == stats.referenced == stats.documents == 0 and engine.num_waiting == 1
    assert len(generation.result()) == 2
    assert_nothing_is_held(engine)


def test_cancelling_does_not_change_other_requests(model):
    prompt, *documents = random_token_lists(12, 10, 50, 100)
    expected = make_engine(model).generate(prompt, documents, max_new_tokens=4, stop=[]).result()
    engine = make_engine(model, max_pass_tokens=40)
    first, second, third = (engine.generate(prompt, documents, max_new_tokens=4, stop=[]) for _ in range(3))
    waiting = engine.generate(prompt, [*documents, prompt], max_new_tokens=4, stop=[])
    engine.step()
    first.cancel()
    waiting.cancel()
    assert second.result() == expected
    third.cancel()
    assert first.finish_reason == waiting.finish_reason == "cancelled"
    assert_nothing_is_held(engine)
    alone = engine.generate(prompt, random_token_lists(13, 100), max_new_tokens=4)
    engine.step()
    alone.cancel()
    assert_nothing_is_held(engine)
    assert engine.store.stats.documents == 2, "the half-filled document is still stored"


def test_deleting_an_engine_frees_its_pool_at_once(model):
    """A pool in a reference cycle would hold its memory until the next garbage collection."""
    engine = make_engine(model)
    generation = engine.generate([1, 2, 3], random_token_lists(1, 20), max_new_tokens=2, stop=[])
    generation.result()
    store = weakref.ref(engine.store)
    del engine, generation
    assert store() is None


def test_text_needs_a_tokenizer_and_uses_it(model):
    class Letters:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [ord(c) for c in text]

        def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
            return "".join(map(chr, tokens))

    engine = make_engine(model, tokenizer=Letters())
    generation = engine.generate("ask", ["doc"], max_new_tokens=2, stop=[])
    assert generation.text() == "".join(map(chr, generation.tokens))
    assert generation.prompt == [97, 115, 107] and generation.documents == [[100, 111, 99]]
    with pytest.raises(lazyrope.SpecError, match="prompt is text; give token ids"):
        make_engine(model).generate("ask")


def test_pieces_of_text_are_whole_characters(model):
    lengths: list[int] = []

    class Bytes:
        """A tokenizer in which any three tokens are one character of three bytes."""

        def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
            lengths.append(len(tokens))
            return "\u20ac" * (len(tokens) // 3) + "\ufffd" * (len(tokens) % 3 > 0)

    engine = make_engine(model, tokenizer=Bytes())
    generation = engine.generate([1, 2, 3], max_new_tokens=31, stop=[])
    assert list(generation.pieces()) == ["\u20ac"] * 10 + ["\ufffd"]
    assert max(lengths) == 6  # the whole answer is not decoded again for each token
    assert generation.text() == "\u20ac" * 10 + "\ufffd"
    with pytest.raises(lazyrope.SpecError, match="there is no tokenizer"):
        make_engine(model).generate([1], max_new_tokens=1).text()


BAD_REQUESTS: list[tuple[Callable[[Engine], object], str]] = [
    (lambda e: e.generate([]), r"prompt = \[\]; it must be at least one token"),
    (lambda e: e.generate([1, 1024]), r"prompt = \[1, 1024\]; it must be token ids of 0 to 1023"),
    (lambda e: e.generate([1], [[2], [-3]]), r"documents = \[-3\]; it must be token ids of 0 to 1023"),
    (lambda e: e.generate([1], mode="lasy"), "mode = 'lasy'; it must be one of lazy, block, recompute, full"),
    (lambda e: e.generate([1], max_new_tokens=0), "max_new_tokens = 0; it must be an integer, at least 1"),
    (lambda e: e.generate([1], max_new_tokens=16.0), "max_new_tokens = 16.0; it must be an integer"),
    (lambda e: e.generate([1], temperature=-1), "temperature = -1; it must be a number, at least 0"),
    (lambda e: e.generate([1], temperature=10**400), "temperature = 1000*; it must be a number"),
    (lambda e: e.generate([1], temperature="hot"), "temperature = 'hot'; it must be a number"),
    (lambda e: e.generate([1], [[2]], salt=None), "salt = None; it must be text"),
    (lambda e: e.score([1], [[2]], salt="\ud800"), "salt = .*; it must be text"),
    (lambda e: e.generate([1], [1, 2]), "documents = 1; it must be text or token ids"),
    (lambda e: e.generate([1], "one"), r"documents = 'one'; it must be a list of texts .* a single one is \[text\]"),
    (lambda e: e.generate([1], None), "documents = None; it must be a list of texts"),
    (lambda e: e.generate([1], stop="</s>"), "stop = '</s>'; it must be a list of token ids"),
    (lambda e: e.generate([1], stop=["</s>"]), r"stop = \['</s>'\]; it must be a list of token ids"),
    (lambda e: e.generate([1], stop=5), "stop = 5; it must be a list of token ids"),
]


@pytest.mark.parametrize(("request_", "message"), BAD_REQUESTS, ids=[m for _, m in BAD_REQUESTS])
def test_a_bad_request_is_refused(model, request_, message):
    engine = make_engine(model)
    with pytest.raises(lazyrope.SpecError, match=message):
        request_(engine)
    assert_nothing_is_held(engine)


def test_the_reprs_of_engine_and_generation_are_short(model):
    engine = make_engine(model)
    document = random_token_lists(1, 3000)[0]
    generation = engine.generate([1, 2, 3], [document] * 2, max_new_tokens=5, stop=[])
    assert repr(generation) == (
        "Generation(prompt_tokens=3, num_documents=2, document_tokens=6000, tokens=0, max_new_tokens=5, mode='lazy', "
        "recovery='none', finish_reason=None)"
    )
    text = repr(engine)
    assert text.startswith("Engine(model=LlamaForCausalLM, backend='")
    assert "num_running=0, num_waiting=1, store=DocumentStore(num_pages=" in text and len(text) < 400
    generation.cancel()
