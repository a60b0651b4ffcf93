"""Memories of attention states in a store and in an engine: a request reads what Memory.states() computes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import lazyrope
import pytest
import torch
from lazyrope import SpecError, StoreError, eager, memory
from lazyrope.documents import DocumentStore

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.memory.scores import States
from lazyrope.transformers import Engine

from tests.conftest import ARCH, HAS_GPU
from tests.support.serving import as_dtype, assert_near, assert_nothing_is_held, make_engine, random_token_lists
from tools.memory.attention import logits_after
from tools.rag.model import tiny_llama

HEADS, KV_HEADS, DIM = 4, 2, 64
GROUP = HEADS // KV_HEADS
DTYPE = torch.bfloat16 if HAS_GPU else torch.float32


def engine_of(**options: Any) -> Engine:
    model = tiny_llama(dtype=DTYPE, device="cuda" if HAS_GPU else "cpu")
    return make_engine(model, **({"memories": "states"} | options))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engine_of()


@pytest.fixture(scope="module")
def texts() -> dict[str, list[int]]:
    names = ("document", "traces", "other", "second", "prompt")
    return dict(zip(names, random_token_lists(11, 90, 120, 40, 100, 9), strict=True))


def built(engine: Engine, texts: dict[str, list[int]], document: str = "document", **arguments: Any) -> Any:
    arguments = {"budget": 20} | arguments
    return memory.build(engine, texts[document], [texts["traces"]], kind="states", **arguments)


@pytest.fixture(scope="module")
def states(engine: Engine, texts: dict[str, list[int]]) -> Any:
    return built(engine, texts)


def scored(engine: Engine, prompt: list[int], documents: list[Any]) -> torch.Tensor:
    logits = engine.score(prompt, documents, num_logits=len(prompt)).logits
    assert logits is not None
    return logits


def merged(parts: Sequence[States]) -> States:
    """Returns the attention over several parts together."""
    lses = torch.stack([part.lse for part in parts])
    lse = lses.logsumexp(0)
    return States(((lses - lse).exp()[..., None] * torch.stack([part.out for part in parts])).sum(0), lse)


def expected(engine: Engine, memories: Sequence[Any], prompt: list[int], model: Any = None) -> torch.Tensor:
    """Returns the logits of a prompt whose attention is over the states of memories and its own tokens."""
    kernel = eager.compile(engine._runner.backend.spec)
    bases = [sum(each.num_positions for each in memories[:i]) for i in range(len(memories))]

    def over(layer: int) -> Any:
        def attend(q: torch.Tensor) -> States:
            rows = q.transpose(0, 1)
            angles = [kernel.cos_sin(torch.full((len(rows), 1), -base, device=q.device)) for base in bases]
            at_zero = [kernel.rotate(rows, angle).to(q.dtype) for angle in angles]
            return merged([each.states(layer, own) for each, own in zip(memories, at_zero, strict=True)])

        return attend

    model = engine.model if model is None else model
    positions = sum(each.num_positions for each in memories)
    return logits_after(model, prompt, positions, [over(layer) for layer in range(2)])


def assert_reads(engine: Engine, memories: Sequence[Any], prompt: list[int]) -> torch.Tensor:
    """Checks the engine's logits of a prompt after memories, and returns the exact ones."""
    exact = expected(engine, memories, prompt, as_dtype(copy.deepcopy(engine.model), torch.float32))
    assert_near(scored(engine, prompt, memories), exact, expected(engine, memories, prompt))
    return exact


@pytest.mark.skipif(HAS_GPU, reason="rounding to bfloat16 changes which entry is nearest; test_states.py runs there")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"lookup": "head"},
        {"exact": 0, "average": "paper"},
        {"exact": 17, "budget": 16},
        {"two_level": True, "budget": 14},
        {"two_level": True, "lookup": "head", "exact": 0, "budget": 13},
    ],
    ids=str,
)
def test_a_memory_is_read_as_its_states(engine, texts, arguments):
    """The engine's logits are those of a model whose attention sees the memory's states in place of the document."""
    found = built(engine, texts, **arguments)
    wanted = assert_reads(engine, [found], texts["prompt"])
    exact = scored(engine, texts["prompt"], [texts["document"]]).float()
    assert (wanted - exact).norm() > 1e-2 * exact.norm()
    assert_nothing_is_held(engine)


@pytest.mark.skipif(HAS_GPU, reason="as above")
def test_a_request_reads_several_memories(engine, states, texts):
    """Each has a look-up of its own, and what follows a memory has the positions after its document."""
    memories = [states, built(engine, texts, "second", budget=24), states]
    assert_reads(engine, memories, texts["prompt"])


def test_memories_and_documents_come_in_any_order(engine, states, texts):
    """The engine may run a request alone or with others, in one pass or in several."""
    lists = [[states, texts["other"]], [texts["other"], states], [texts["other"]], [states]]
    alone = [scored(engine, texts["prompt"], documents) for documents in lists]
    few = engine_of(max_pass_tokens=33)
    for documents, logits in zip(lists, alone, strict=True):
        assert_near(scored(few, texts["prompt"], documents), logits.float(), logits)
    requests = [engine.generate(texts["prompt"], documents, max_new_tokens=3, stop=[]) for documents in lists * 2]
    engine.run()
    for i, logits in enumerate(alone):
        assert requests[i].result() == requests[i + len(lists)].result()
        assert requests[i].result()[0] == int(logits[-1].argmax())
    assert engine.store.lookup(states) is not None
    assert_is_held_once(engine, states)


def assert_is_held_once(engine: Engine, states: Any) -> None:
    document = engine.store.lookup(states)
    assert document.num_tokens == len(states) == 4 + 20 * GROUP and document.num_positions == 90
    for _ in range(2):
        engine.store.release(document)
    assert_nothing_is_held(engine)


@pytest.mark.skipif(HAS_GPU, reason="the other tests run kernels on a GPU")
@pytest.mark.parametrize("arguments", [{}, {"two_level": True, "budget": 14}], ids=str)
def test_the_kernels_read_a_memory_as_plain_pytorch_does(texts, arguments):
    model = tiny_llama(dtype=torch.bfloat16)
    plain, kernels = (make_engine(model, memories="states", arch=arch, max_requests=1) for arch in (None, ARCH))
    found = built(plain, texts, **arguments)
    rounded = scored(plain, texts["prompt"], [found])
    exact = expected(plain, [found], texts["prompt"], as_dtype(copy.deepcopy(model), torch.float32))
    assert (rounded.float() - exact).norm() < 0.05 * exact.norm()
    assert_near(scored(kernels, texts["prompt"], [found]), exact, rounded)


def test_a_store_has_tokens_first_and_then_the_entries_of_each_head(engine, states):
    store = new_store(engine)
    with store.use(states) as document:
        pages = list(document.page_ids)
        for layer in range(2):
            keys, values = (
                pool[pages].flatten(0, 1)[: len(states)].transpose(0, 1)
                for pool in (store.k_pool(layer), store.v_pool(layer))
            )
            lse = store.entry_lse(layer)[pages].transpose(0, 1).flatten(1)[:, : len(states)]
            assert torch.equal(keys[:, :4], states.exact_keys[layer])
            assert torch.equal(values[:, :4], states.exact_values[layer])
            for head in range(HEADS):
                own = slice(4 + head % GROUP, None, GROUP)
                kv_head = head // GROUP
                assert torch.equal(keys[kv_head, own], states.keys[layer, kv_head])
                assert torch.equal(values[kv_head, own], states.out[layer, head])
                assert torch.equal(lse[kv_head, own], states.lse[layer, head])
        with pytest.raises(SpecError, match=r"has tokens and entries; give the segments that memory\.segments"):
            lazyrope.Segment(document, 0)
    store.check()


def test_a_store_has_the_cells_of_each_head_and_then_their_centres(engine, texts):
    states, store = built(engine, texts, two_level=True, budget=14, lookup="head"), new_store(engine)
    cells, entries = states.centres.shape[2], states.keys.shape[2]
    cell = entries // cells
    assert (cells, cell) == (4, 5)
    assert len(states) == 4 + GROUP * cells * (cell + 1)
    with store.use(states) as document:
        keys, values = (
            pool(1)[list(document.page_ids)].flatten(0, 1)[4 : len(states)].transpose(0, 1)
            for pool in (store.k_pool, store.v_pool)
        )
        for head in range(HEADS):
            kv_head, own = head // GROUP, head % GROUP
            for slots, wanted in ((keys, states.keys[1, head]), (values, states.out[1, head])):
                in_cells = slots[kv_head, : GROUP * entries].view(cells, GROUP, cell, DIM)
                assert torch.equal(in_cells[:, own].flatten(0, 1), wanted)
            assert torch.equal(keys[kv_head, GROUP * entries + own :: GROUP], states.centres[1, head])
        segments = states.segments(document, 0, store.page_size, 2)
        assert segments[1].memory == 2 + 8 + 16 * cell and segments[1].document.num_tokens == len(states) - 4
    store.check()


def new_store(engine: Engine, **options: Any) -> DocumentStore:
    spec, device = engine._runner.backend.spec, engine.store.device
    options = {"num_layers": 2, "budget": "1MiB", "dtype": DTYPE, "device": device, "memories": "states"} | options
    return DocumentStore(spec, **options)


def test_the_public_calls_read_a_memory(engine, states):
    """A program without the engine reads a memory with its own kernel; it agrees with Memory.states()."""
    values = engine._runner.backend.spec.__getstate__() | ({} if HAS_GPU or ARCH is None else {"dtype": "bfloat16"})
    kernel = eager.compile(lazyrope.AttentionSpec(**values))
    store, base, count = new_store(engine), 1000, 5
    q = torch.randn((count, HEADS, DIM), generator=torch.Generator().manual_seed(1)).to(store.device, DTYPE)
    with store.use(states) as document:
        positions = [base + document.num_positions + i for i in range(count)]
        segments = states.segments(document, base, store.page_size)
        step = kernel.plan(lazyrope.batch([lazyrope.Request(positions, segments)], store.pages))
        out, lse = kernel(q, store.k_pool(1), store.v_pool(1), step, entry_lse=store.entry_lse(1))
    at_zero = kernel.rotate(q, kernel.cos_sin(torch.full((count, 1), -base, device=q.device)))
    wanted = states.states(1, at_zero.to(DTYPE))
    assert_near(out.transpose(0, 1), wanted.out, wanted.out.to(DTYPE))
    assert_near(lse.T, wanted.lse)


def test_the_segments_of_a_memory_are_those_of_its_own_document(engine, states, texts):
    compact = memory.build(engine, texts["document"], [texts["traces"]], budget=37)
    for found in (states, compact):
        for slots in (len(found) - 1, len(found) + 1):
            with pytest.raises(SpecError, match=rf"the document has {slots} slots and the memory {len(found)}; give"):
                found.segments(lazyrope.Document(0, slots), 0, 16)
        assert found.segments(lazyrope.Document(0, len(found)), 0, 16)


def test_a_store_refuses_tensors_of_other_shapes(engine, states):
    store = new_store(engine)
    for name, field, changed in (
        ("keys of entries", "keys", states.keys.double()),
        ("keys of entries", "keys", states.keys[:, :1]),
        ("outputs", "out", states.out[..., :-1]),
        ("log-sum-exps", "lse", states.lse[:1]),
        ("exact values", "exact_values", states.exact_values.double()),
    ):
        bad = memory.StatesMemory(**{**states.__dict__, field: changed})
        with pytest.raises(StoreError, match=rf"the memory has {name} of {changed.dtype} .*; this pool needs "):
            with store.use(bad):
                pass
    assert store.stats.documents == 0
    store.check()


def test_a_store_refuses_memories_that_kernels_would_read_as_others(engine, texts):
    store = new_store(engine)
    found = built(engine, texts, tangent=True, budget=16)
    with pytest.raises(StoreError, match=r"the memory was made with tangent=True; .*build the memory with tangent=F"):
        with store.use(found):
            pass
    assert store.stats.documents == 0
    store.check()


def test_requests_that_cannot_read_a_memory_are_refused(engine, states, texts):
    prompt = texts["prompt"]
    with pytest.raises(SpecError, match=r"a memory with tangent=True; .*build the memory with tangent=False"):
        engine.generate(prompt, [built(engine, texts, tangent=True, budget=16)])
    with pytest.raises(SpecError, match='has 5 memories of kind "states"; a request has at most 4'):
        engine.generate(prompt, [states] * 5)
    with pytest.raises(SpecError, match=r'documents has a memory with mode = "block"'):
        engine.generate(prompt, [states], mode="block")
    with pytest.raises(SpecError, match=r'recovery = "guided" in an engine with memories="states"'):
        engine.generate(prompt, [texts["document"]], recovery="guided")
    compact = memory.build(engine, texts["document"], [texts["traces"]], budget=37)
    with pytest.raises(SpecError, match=r'memory of kind "compact"; make the engine with attach\(.*memories=True\)'):
        engine.generate(prompt, [compact])
    with pytest.raises(SpecError, match=r'keeps memories of kind "states"; make it with memories=True for one of kind'):
        engine.store.acquire(compact)
    with pytest.raises(SpecError, match=r'keeps no memories; make it with memories="states"'):
        new_store(engine, memories=False).acquire(states)
    large = built(engine, texts, budget=40)
    with pytest.raises(SpecError, match="memory of 84 slots for a document of 90 tokens, which takes no fewer pages"):
        engine.generate(prompt, [large])
    assert_nothing_is_held(engine)


def test_an_assessment_leaves_out_the_level_that_measures(engine, texts):
    sample = {"prompt": texts["prompt"], "documents": [texts["document"], texts["other"]]}
    found = engine.assess([sample], max_new_tokens=2)
    assert [row.level for row in found.levels] == ["none", "ape", "first_page", "full"]


def test_engines_that_cannot_have_states_are_refused(engine):
    for options, why in (
        ({"cascade": True}, "states with cascade; shared segments cannot be memories"),
        ({"recovery": "guided"}, 'recovery = "guided" in an engine with memories="states"; .*give another level'),
        ({"memories": "all"}, 'memories = \'all\'; it must be False, True or "compact", or "states"'),
        ({"memories": 1.5}, "memories = 1.5; it must be"),
    ):
        with pytest.raises(SpecError, match=why):
            engine_of(**options)
    with pytest.raises(SpecError, match='memories="states" with a pool of 8 bits'):
        new_store(engine, dtype=torch.float8_e4m3fn)
