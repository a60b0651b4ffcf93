"""Compact memories in a store and in an engine: what a request reads is attention with the memory's keys and biases."""

from __future__ import annotations

import copy
import random
import weakref
from typing import Any

import lazyrope
import pytest
import torch
from lazyrope import SpecError, StoreError, eager, memory
from lazyrope.documents import DocumentStore, DocumentTooLarge, StoreFull

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import Engine

from tests.conftest import ARCH, HAS_GPU
from tests.support.serving import as_dtype, assert_near, assert_nothing_is_held, make_engine, random_token_lists
from tools.rag.model import tiny_llama

HEADS, KV_HEADS, DIM = 4, 2, 64
DTYPE = torch.bfloat16 if HAS_GPU else torch.float32


def engine_of(**options: Any) -> Engine:
    model = tiny_llama(dtype=DTYPE, device="cuda" if HAS_GPU else "cpu")
    return make_engine(model, **({"memories": True} | options))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engine_of()


@pytest.fixture(scope="module")
def texts() -> dict[str, list[int]]:
    names = ("document", "traces", "other", "prompt")
    return dict(zip(names, random_token_lists(11, 90, 120, 40, 9), strict=True))


@pytest.fixture(scope="module")
def compact(engine: Engine, texts: dict[str, list[int]]) -> Any:
    return memory.build(engine, texts["document"], [texts["traces"]], budget=37)


@pytest.mark.skipif(HAS_GPU, reason="the kernels do not support float32")
def test_recorded_queries_are_those_that_attend(engine, texts):
    """Attention of the recorded queries over the stored keys is the attention of the model's first layer."""
    queries = engine.record(texts["prompt"], [texts["document"]])
    assert len(queries) == 2 and all(q.shape == (len(texts["prompt"]), HEADS, DIM) for q in queries)
    split = random.Random(0).randrange(1, len(texts["prompt"]))
    few = engine_of(max_pass_tokens=33)  # the document and the prompt take several passes
    again = few.record(texts["prompt"], [texts["document"]])
    for q, other in zip(queries, again, strict=True):
        assert_near(other, q.float())
    first = engine.record(texts["prompt"][:split], [texts["document"]])
    assert_near(first[1], queries[1][:split].float())
    assert_nothing_is_held(engine)


def test_recorded_queries_are_freed(engine, texts, monkeypatch):
    """Neither the engine's pass nor the construction of a memory keeps them, whether a pass succeeds or fails."""
    prompt, documents = texts["prompt"], [texts["document"]]
    of_record = [weakref.ref(q) for q in engine.record(prompt, documents)]
    assert engine._runner._pass._recorded == [] and all(q() is None for q in of_record)

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner.backend, "reading_of", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.record(prompt, documents)
    assert engine._runner._pass._recorded == []
    record, lookup, alive = engine.record, engine.store.lookup, []

    def recording(*given: Any) -> list[torch.Tensor]:
        found = record(*given)
        of_record.extend(weakref.ref(q) for q in found)
        return found

    def looking(*given: Any) -> Any:
        alive.append(sum(q() is not None for q in of_record))
        return lookup(*given)

    monkeypatch.setattr(engine, "record", recording)
    monkeypatch.setattr(engine.store, "lookup", looking)
    memory.build(engine, texts["document"], [texts["traces"], prompt], budget=37)
    assert len(of_record) == 6 and alive == [0]
    assert_nothing_is_held(engine)


def test_a_memory_of_all_keys_gives_the_answer_of_its_document(engine, texts, monkeypatch):
    """The order of slots changes nothing, and what follows a memory has the positions after its document."""
    whole = _whole(engine, texts["document"])
    monkeypatch.setattr(engine, "_document", lambda text, *_: text)  # it refuses a memory that saves no pages
    prompt, other = texts["prompt"], texts["other"]
    for documents in ([whole], [other, whole], [whole, other]):
        exact = [texts["document"] if each is whole else each for each in documents]
        given = _scored(engine, prompt, documents)
        assert_near(given, _scored(engine, prompt, exact).float(), _scored(engine, prompt, exact))
    assert_nothing_is_held(engine)


def test_a_memory_is_read_with_its_keys_biases_and_values(engine, compact, texts):
    """The engine's logits are those of a model whose attention sees the memory's states in place of the document."""
    exact = _scored(engine, texts["prompt"], [texts["document"]]).float()
    given = _scored(engine, texts["prompt"], [compact]).float()
    expected = _with_states(as_dtype(copy.deepcopy(engine.model), torch.float32), compact, texts["prompt"])
    assert_near(given, expected, _with_states(engine.model, compact, texts["prompt"]))
    assert (expected - exact).norm() > 1e-2 * exact.norm()
    unbiased = memory.CompactMemory(**{**compact.__dict__, "bias": torch.zeros_like(compact.bias), "key": "0" * 64})
    assert (_scored(engine, texts["prompt"], [unbiased]).float() - given).norm() > 1e-3 * exact.norm()


@pytest.mark.skipif(HAS_GPU, reason="the other tests run kernels on a GPU")
def test_the_kernels_read_a_memory_as_plain_pytorch_does(texts):
    model = tiny_llama(dtype=torch.bfloat16)
    plain, kernels = (make_engine(model, memories=True, arch=arch, max_requests=1) for arch in (None, ARCH))
    found = memory.build(plain, texts["document"], [texts["traces"]], budget=37)
    expected = _scored(plain, texts["prompt"], [found])
    exact = _with_states(as_dtype(copy.deepcopy(model), torch.float32), found, texts["prompt"])
    assert (expected.float() - exact).norm() < 0.05 * exact.norm()
    assert_near(_scored(kernels, texts["prompt"], [found]), exact, expected)


def test_documents_in_pages_of_a_memory_have_no_bias(texts):
    """A memory with large biases is evicted, and a document takes its pages."""
    engine = engine_of(budget=f"{150 * DTYPE.itemsize}KiB")
    assert engine.store.num_pages < 20
    found = memory.build(engine, texts["document"], [texts["traces"]], budget=37)
    found.bias += 5
    expected = _scored(engine, texts["prompt"], [texts["other"]])
    for _ in range(3):
        _scored(engine, texts["prompt"], [found])
        engine.store.clear()
        assert engine.store.stats.documents == 0
        assert_near(_scored(engine, texts["prompt"], [texts["other"]]), expected.float(), expected)
        engine.store.clear()


def test_requests_share_one_copy_of_a_memory(engine, compact, texts):
    engine.store.clear()
    before = engine.store.stats
    requests = [
        engine.generate(texts["prompt"], [compact, texts["other"]], max_new_tokens=3, stop=[]) for _ in range(3)
    ]
    engine.run()
    assert len({tuple(each.result()) for each in requests}) == 1
    after = engine.store.stats
    pages = -(-len(compact) // 16) + -(-len(texts["other"]) // 16)
    assert after.documents == 2 and after.resident_bytes == pages * engine.store.page_bytes
    assert after.misses - before.misses == 2 and after.hits - before.hits == 4
    assert requests[1].hits == 2
    assert_nothing_is_held(engine)


def test_a_store_keeps_memories_under_its_budget(engine, compact, texts):
    spec = engine._runner.backend.spec
    options: dict[str, Any] = {"num_layers": 2, "dtype": DTYPE, "device": engine.store.device}
    with_biases = DocumentStore(spec, budget="1MiB", memories=True, **options)
    without = DocumentStore(spec, budget="1MiB", **options)
    assert with_biases.page_bytes - without.page_bytes == 2 * KV_HEADS * 16 * 4
    with pytest.raises(SpecError, match=r"keeps no memories; make it with memories=True"):
        without.acquire(compact)
    store = DocumentStore(spec, budget=3 * with_biases.page_bytes, memories=True, **options)
    assert store.model_key == engine.store.model_key
    with store.use(compact) as document:
        assert document.is_ready and (document.num_tokens, document.num_positions) == (37, 90)
        _assert_holds(store, document, compact)
        with pytest.raises(StoreFull):
            store.acquire(texts["other"])
        with pytest.raises(SpecError, match="has no slices"):
            lazyrope.Segment(document, 0, start=3)
        lazyrope.Segment(document, 0)
    assert store.lookup(compact) is document
    assert store.lookup(compact, salt="another") is None
    store.release(document)
    with pytest.raises(SpecError, match="a memory has none"):
        store.acquire(compact, context="prefix")
    with pytest.raises(SpecError, match="fill is None"), store.use(texts["other"]):
        pass
    large = memory.build(engine, texts["document"], [texts["traces"]], budget=60)
    with pytest.raises(DocumentTooLarge):
        store.acquire(large)
    other = DocumentStore(spec, budget="1MiB", memories=True, model="another", **options)
    with pytest.raises(StoreError, match="of another model"):
        other.acquire(compact)
    _assert_fills_with_its_memory_alone(store, compact, texts["other"])
    document, is_new = store.acquire(texts["other"])
    assert is_new
    for layer in range(2):
        bias = store.key_bias(layer)
        assert bias is not None and (bias[list(document.page_ids)] == 0).all()
    store.commit(document)
    store.release(document)
    store.check()


def test_the_public_calls_read_a_memory(engine, compact):
    """A program without the engine reads a memory with its own kernel; it agrees with Memory.states()."""
    spec = engine._runner.backend.spec
    values = spec.__getstate__() | ({} if HAS_GPU or ARCH is None else {"dtype": "bfloat16"})
    kernel = eager.compile(lazyrope.AttentionSpec(**values))
    store = DocumentStore(spec, num_layers=2, budget="1MiB", dtype=DTYPE, device=engine.store.device, memories=True)
    base, count = 1000, 5
    q = torch.randn((count, HEADS, DIM), generator=torch.Generator().manual_seed(1)).to(store.device, DTYPE)
    with store.use(compact) as document:
        positions = [base + document.num_positions + i for i in range(count)]
        batch = lazyrope.batch([lazyrope.Request(positions, [lazyrope.Segment(document, base)])], store.pages)
        step = kernel.plan(batch, page_size=store.page_size)
        out, lse = kernel(q, store.k_pool(1), store.v_pool(1), step, key_bias=store.key_bias(1))
    at_zero = kernel.rotate(q, kernel.cos_sin(torch.full((count, 1), -base, device=q.device)))
    expected = compact.states(1, at_zero.to(DTYPE))
    assert_near(out.transpose(0, 1), expected.out, expected.out.to(DTYPE))
    assert_near(lse.T, expected.lse)


def test_drift_takes_recorded_queries(engine, compact, texts):
    drift = memory.Drift(compact)
    share = drift.observe(engine.record(texts["prompt"], [compact]))
    assert 0 <= share <= 1 and drift.seen == 2 * len(texts["prompt"]) * HEADS


def test_a_file_goes_to_the_engine_of_its_model_alone(engine, compact, tmp_path):
    memory.save(compact, tmp_path / "a")
    read = memory.load(tmp_path / "a", engine)
    assert engine.store.key(read) == engine.store.key(compact)
    with pytest.raises(StoreError, match="of another model"):
        memory.load(tmp_path / "a", make_engine(tiny_llama(rope="yarn", dtype=DTYPE, device=str(engine.store.device))))


def test_requests_that_cannot_read_a_memory_are_refused(engine, compact, texts):
    document, prompt = texts["document"], texts["prompt"]
    for changes in ({"mode": "block"}, {"mode": "full"}, {"mode": "recompute"}, {"recovery": "first_page"}):
        with pytest.raises(SpecError, match=r"documents has a memory with mode = .* cannot be copied"):
            engine.generate(prompt, [compact], **changes)
    with pytest.raises(SpecError, match=r"make the engine with attach\(\.\.\., memories=True\)"):
        engine_of(memories=False).generate(prompt, [compact])
    states = memory.build(engine, document, [texts["traces"]], kind="states", budget=20)
    with pytest.raises(SpecError, match=r'memory of kind "states"'):
        engine.generate(prompt, [states])
    nearly = memory.build(engine, document, [texts["traces"]], budget=85)
    with pytest.raises(SpecError, match=r"memory of 85 slots for a document of 90 tokens, which takes no fewer pages"):
        engine.generate(prompt, [nearly])
    with pytest.raises(SpecError, match=r'traces = \'twice\'; it must be "repeat"'):
        memory.build(engine, document, "twice", budget=37)
    with pytest.raises(SpecError, match="traces have no tokens"):
        memory.build(engine, document, [[]], budget=37)
    with pytest.raises(SpecError, match="document is empty"):
        memory.build(engine, [], budget=37)
    assert_nothing_is_held(engine)


def test_a_model_that_ranks_divide_has_no_memories(texts):
    """Each rank has other heads, so a file of one rank would be wrong on the others."""
    divided = engine_of(memories=False)
    divided.model._tp_size = 2
    for call in (
        lambda: make_engine(divided.model, memories=True),
        lambda: divided.record(texts["prompt"]),
        lambda: memory.build(divided, texts["document"], [texts["traces"]], budget=37),
    ):
        with pytest.raises(SpecError, match="with a model that 2 ranks divide: each rank has other heads"):
            call()


def _scored(engine: Engine, prompt: list[int], documents: list[Any]) -> torch.Tensor:
    logits = engine.score(prompt, documents, num_logits=len(prompt)).logits
    assert logits is not None
    return logits


def _whole(engine: Engine, document: list[int]) -> Any:
    """Returns a memory of all keys of a document in a random order."""
    built = memory.build(engine, document, budget=60)
    source = memory.traces.source_of(engine, document, "repeat")
    order = torch.randperm(len(document), generator=torch.Generator().manual_seed(0))
    keys, values = (torch.stack([x[order] for x in given]).transpose(1, 2) for given in (source.keys, source.values))
    bias = torch.zeros(keys.shape[:3], device=keys.device)
    changes = {"keys": keys, "values": values, "bias": bias, "key": "1" * 64}
    return memory.CompactMemory(**{**built.__dict__, **changes})


def _with_states(model: Any, compact: Any, prompt: list[int]) -> torch.Tensor:
    """Returns the logits of a prompt whose attention is over the memory's states and its own tokens."""
    from tools.memory.attention import logits_after

    def over(layer: int) -> Any:
        return lambda q: compact.states(layer, q.transpose(0, 1))

    return logits_after(model, prompt, compact.num_positions, [over(layer) for layer in range(2)])


def _assert_fills_with_its_memory_alone(store: DocumentStore, compact: Any, other: list[int]) -> None:
    """A document takes no other memory of as many slots, and no tensors of another dtype or shape."""
    document, is_new = store.acquire(compact, salt="tenant")
    assert is_new
    another = memory.CompactMemory(**{**compact.__dict__, "key": "2" * 64})
    for given, salt in ((another, "tenant"), (compact, "")):
        with pytest.raises(StoreError, match="it was acquired with another memory or another salt"):
            store.fill(document, given, salt=salt)
    for name, changed in (
        ("keys", compact.keys.double()),
        ("values", compact.values.double()),
        ("values", compact.values[..., :-1]),
        ("biases", compact.bias.double()),
        ("biases", compact.bias[:1]),
    ):
        field = {"biases": "bias"}.get(name, name)
        bad = memory.CompactMemory(**{**compact.__dict__, field: changed})
        with pytest.raises(StoreError, match=rf"the memory has {name} of {changed.dtype} .*; this pool needs "):
            store.fill(document, bad, salt="tenant")
    store.fill(document, compact, salt="tenant")
    store.commit(document)
    _assert_holds(store, document, compact)
    store.release(document)
    store.clear()
    document, _ = store.acquire(other[: len(compact)])
    with pytest.raises(StoreError, match="it was acquired with another memory or another salt"):
        store.fill(document, compact)
    store.abandon(document)
    store.release(document)


def _assert_holds(store: DocumentStore, document: Any, compact: Any) -> None:
    pages = list(document.page_ids)
    for layer in range(2):
        for pool, tensor in ((store.k_pool(layer), compact.keys), (store.v_pool(layer), compact.values)):
            assert torch.equal(pool[pages].flatten(0, 1)[:37].transpose(0, 1), tensor[layer])
        bias = store.key_bias(layer)
        assert bias is not None
        slots = bias[pages].transpose(0, 1).flatten(1)
        assert torch.equal(slots[:, :37], compact.bias[layer]) and (slots[:, 37:] == 0).all()
