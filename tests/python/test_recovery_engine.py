"""An engine of one's own executes the compositions of recovery with the public calls of the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import lazyrope
import pytest
import torch
from lazyrope import eager
from lazyrope.documents import DocumentStore
from lazyrope.merging import merge
from lazyrope.recovery import PAGE, Composition, PartSegment, PrivateSegment, Recovery, SegmentGroup, compose, recompute

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from tests.support.recovery_mask import Apart, Rows, rows_of
from tests.support.reference import rotate

LAYERS, HEADS, DIM, VOCABULARY = 2, 2, 64, 50
SPEC = lazyrope.AttentionSpec(
    head_dim=DIM, num_q_heads=HEADS, num_kv_heads=HEADS, rope=lazyrope.rope.neox(), page_mass=True
)


@dataclass
class Model:
    """Layers of attention alone, whose weights are random.

    Attributes:
        embedding: [tokens of the vocabulary, width]
        layers: The projections to queries, keys and values and the one back, [4, width, width] each.
    """

    embedding: torch.Tensor
    layers: list[torch.Tensor]


@pytest.fixture(scope="module")
def model() -> Model:
    generator = torch.Generator().manual_seed(5)
    width = HEADS * DIM
    layers = [torch.randn(4, width, width, generator=generator) / width**0.5 for _ in range(LAYERS)]
    return Model(torch.randn(VOCABULARY, width, generator=generator), layers)


def split(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, HEADS, DIM)


def expected_of(model: Model, rows: Rows) -> torch.Tensor:
    """Computes all rows in fp64, with each row's logical position and the mask of the reference."""
    x = model.embedding[rows.tokens].double()
    frequencies = torch.tensor(SPEC.frequencies, dtype=torch.float64)
    visible = rows.visible(None)
    for layer in model.layers:
        q, k, v = (split(x @ weight.double()) for weight in layer[:3])
        q, k = (rotate(each, torch.tensor(rows.positions), frequencies, DIM) for each in (q, k))
        scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = weights_apart(scores, rows) if rows.apart else scores.softmax(-1)
        x = x + torch.einsum("hqk,khd->qhd", weights, v).flatten(1) @ layer[3].double()
    return x


def weights_apart(scores: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Returns the weights of level "ape" from scores [heads, rows, rows]: two softmaxes, and one of their sums."""
    weights = scores.softmax(-1)
    queries = slice(rows.apart.queries.start, rows.apart.queries.stop)
    group = torch.zeros(scores.shape[-1], dtype=torch.bool)
    for keys in rows.apart.keys:
        group[keys.start : keys.stop] = True
    apart, rest = scores[:, queries][..., group] / rows.apart.temperature, scores[:, queries][..., ~group]
    of_group = apart.exp().sum(-1, keepdim=True) ** rows.apart.lse_scale
    of_rest = rest.exp().sum(-1, keepdim=True)
    both = torch.zeros_like(weights[:, queries])
    both[..., group] = apart.softmax(-1) * of_group / (of_group + of_rest)
    both[..., ~group] = rest.exp() / (of_group + of_rest)
    weights[:, queries] = both
    return weights


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


class OwnEngine:
    """Computes the new parts of a request and its prompt in one pass."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.store = DocumentStore(SPEC, num_layers=LAYERS, budget="16MiB", dtype=torch.float32, device="cpu")
        self.kernel = eager.compile(SPEC)

    def serve(
        self, prompt: list[int], documents: list[list[int]], recovery: Recovery
    ) -> tuple[list[list[int]], list[torch.Tensor]]:
        """Returns the tokens of everything that is computed, and their last hidden states. The prompt is last."""
        composition = compose(documents, recovery)
        reserved, run = self.store.reserve(composition.tokens, len(prompt), contexts=composition.contexts)
        stored = [document for document, _ in reserved]
        new = [i for i, (_, is_new) in enumerate(reserved) if is_new]
        parts = [composition.parts[i] for i in new]
        own = [*(stored[i] for i in new), run]
        texts = [*(list(part.tokens) for part in parts), prompt]
        seen = [*(part.segments for part in parts), composition.segments]
        starts = [*(0 for _ in parts), composition.position]
        requests = [
            lazyrope.Request(
                range(start, start + len(tokens)),
                [
                    *(lazyrope.Segment(stored[s.part], s.base, s.start, s.length) for s in segments),
                    lazyrope.Segment(pages, base=start),
                ],
            )
            for tokens, segments, pages, start in zip(texts, seen, own, starts, strict=True)
        ]
        hidden = self._run(texts, requests, own)
        for i in new:
            self.store.commit(stored[i])
        for document in stored:
            self.store.release(document)
        self.store.free(run)
        return texts, list(hidden.split([len(tokens) for tokens in texts]))

    def serve_guided(
        self, prompt: list[int], documents: list[list[int]], recovery: Recovery
    ) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
        """Serves stored documents. Returns the masses, the states of the second pass, and the recomputed indices.

        The first pass has the prompt alone, the second one the chosen tokens and the prompt as one request.
        """
        composition = compose(documents, recovery)
        choice = composition.choice
        reserved, run = self.store.reserve(
            composition.tokens, choice.max_tokens + len(prompt), contexts=composition.contexts
        )
        stored = [document for document, is_new in reserved if not is_new]
        assert len(stored) == len(composition.parts)
        positions = range(composition.position, composition.position + len(prompt))

        def segment_of(s: PartSegment | PrivateSegment) -> lazyrope.Segment:
            if isinstance(s, PrivateSegment):
                return lazyrope.Segment(run, s.position - s.slot, s.slot, s.length)
            return lazyrope.Segment(stored[s.part], s.base, s.start, s.length)

        def request_of(tokens: int, segments: tuple[PartSegment | PrivateSegment, ...], before: list[int]) -> object:
            own = lazyrope.Segment(run, composition.position - tokens, tokens, len(prompt))
            return lazyrope.Request([*before, *positions], [*map(segment_of, segments), own])

        question = request_of(0, composition.segments, [])
        indptr = lazyrope.batch([question], self.store.pages).page_indptr
        self.masses = torch.zeros(indptr[-1])
        self._run([prompt], [question], [run], measures=True)
        masses = self.masses[self._pages(composition, indptr)]
        again = recompute(composition, choice.tokens(masses.tolist()))
        second = request_of(len(again.tokens), again.segments, again.positions)
        hidden = self._run([[*again.tokens, *prompt]], [second], [run])
        for document in stored:
            self.store.release(document)
        self.store.free(run)
        return masses, hidden, again.indices

    def serve_apart(self, prompt: list[int], documents: list[list[int]], recovery: Recovery) -> torch.Tensor:
        """Serves stored documents at level "ape". Returns the states of the prompt."""
        composition = compose(documents, recovery)
        reserved, run = self.store.reserve(composition.tokens, len(prompt), contexts=composition.contexts)
        stored = [document for document, is_new in reserved if not is_new]
        assert len(stored) == len(composition.parts)
        positions = range(composition.position, composition.position + len(prompt))

        def segments_of(some: Sequence[PartSegment]) -> list[lazyrope.Segment]:
            return [lazyrope.Segment(stored[s.part], s.base, s.start, s.length) for s in some]

        rest = lazyrope.Request(
            positions, [*segments_of(composition.rest), lazyrope.Segment(run, base=composition.position)]
        )
        apart = [lazyrope.Request(positions, segments_of(composition.group.segments))]
        hidden = self._run([prompt], [rest], [run], group=(composition.group, apart))
        for document in stored:
            self.store.release(document)
        self.store.free(run)
        return hidden

    def _pages(self, composition: Composition, indptr: list[int]) -> list[int]:
        """Returns the numbers of the pages to choose from. The prompt sees each document as one segment."""
        prefix = composition.position - sum(composition.choice.lengths)
        found = []
        for page in composition.choice.pages:
            at = prefix + page.start
            [(i, s)] = [(i, s) for i, s in enumerate(composition.segments) if 0 <= at - s.base < s.length]
            found.append(indptr[i] + (at - s.base) // PAGE)
        return found

    def _run(
        self,
        texts: list[list[int]],
        requests: list[lazyrope.Request],
        own: list[object],
        measures: bool = False,
        group: tuple[SegmentGroup, list[lazyrope.Request]] | None = None,
    ) -> torch.Tensor:
        step = self.kernel.plan(lazyrope.batch(requests, self.store.pages), page_size=self.store.page_size)
        ends = torch.tensor([0, *(len(tokens) for tokens in texts)]).cumsum(0).tolist()
        zeros = ints([0] * len(texts))
        spans = lazyrope.TokenSpans(ints(ends), zeros, ints([pages.first_page for pages in own]), zeros)
        capacity = lazyrope.AppendCapacity(tokens=ends[-1])
        writes = self.kernel.plan_append(spans, self.store.pages, capacity=capacity, page_size=self.store.page_size)
        x = self.model.embedding[[token for tokens in texts for token in tokens]]
        for i, layer in enumerate(self.model.layers):
            q, k, v = (split(x @ weight) for weight in layer[:3])
            pools = self.store.k_pool(i), self.store.v_pool(i)
            self.kernel.append(k, v, *pools, writes)  # all keys of the layer are stored before any token attends
            mass = torch.empty_like(self.masses) if measures else None
            out, lse = self.kernel(q, *pools, step, page_mass=mass)
            if mass is not None:
                self.masses += mass
            if group is not None:
                by, apart = group
                group_step = self.kernel.plan(lazyrope.batch(apart, self.store.pages), page_size=self.store.page_size)
                out = merge(out, lse, *self.kernel(q / by.temperature, *pools, group_step), by.lse_scale)
            x = x + out.flatten(1) @ layer[3]
        return x


@pytest.mark.parametrize(
    "recovery",
    [Recovery(), Recovery("prefix", (7, 8, 9)), Recovery("first_page", (), 16), Recovery("first_page", (7, 8, 9), 20)],
    ids=str,
)
def test_an_engine_of_ones_own_serves_compositions(model, recovery):
    generator = torch.Generator().manual_seed(6)
    a, b, c, prompt = (torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in (33, 40, 18, 5))
    engine = OwnEngine(model)
    overlay_tokens = recovery.overlay_tokens if recovery.level == "first_page" else 0
    for documents in ([a, b, c], [c, a, b]):  # new, and stored
        rows, places = rows_of(prompt, documents, recovery.shown_prefix, overlay_tokens)
        exact = expected_of(model, rows)
        texts, states = engine.serve(prompt, documents, recovery)
        # Each computed text is found among the rows by its tokens: a document, an overlay or the prompt.
        expected = [*places.documents, *(each for each in places.overlays if each), places.prompt]
        for tokens, given in zip(texts, states, strict=True):
            if tokens == list(recovery.prefix):
                continue  # the reference has several copies of it
            matching = [each for each in expected if [rows.tokens[row] for row in each] == tokens]
            errors = [float((given - exact[each.start : each.stop]).norm() / given.norm()) for each in matching]
            assert min(errors) < 1e-5, errors
        count = len(engine.serve(prompt, documents, recovery)[0])
        assert count == 1, "everything but the prompt is stored"
    engine.store.check()


@pytest.mark.parametrize("prefix", [(), (7, 8, 9)], ids=["no prefix", "prefix"])
def test_an_engine_of_ones_own_computes_guided_pages_again(model, prefix):
    generator = torch.Generator().manual_seed(7)
    a, b, c, prompt = (torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in (33, 40, 18, 5))
    engine = OwnEngine(model)
    engine.serve(prompt, [a, b, c], Recovery("guided", prefix))  # stores the documents
    documents = [c, a, b]
    masses, hidden, again = engine.serve_guided(prompt, documents, Recovery("guided", prefix, 4, share=0.4))
    assert 0 < float(masses.sum()) < LAYERS * HEADS * len(prompt) and len(masses.unique()) == len(masses)
    assert 0.4 * 91 <= sum(map(len, again)) < 0.4 * 91 + 16
    rows, places = rows_of(prompt, documents, prefix, 0, again)
    exact = expected_of(model, rows)
    expected = torch.cat([exact[each.start : each.stop] for each in (*places.overlays, places.prompt) if each])
    assert (hidden - expected).norm() < 1e-5 * expected.norm()
    engine.store.check()


@pytest.mark.parametrize("prefix", [(), (7, 8, 9)], ids=["no prefix", "prefix"])
def test_an_engine_of_ones_own_reads_documents_apart(model, prefix):
    generator = torch.Generator().manual_seed(8)
    a, b, c, prompt = (torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in (33, 40, 18, 5))
    engine, recovery = OwnEngine(model), Recovery("ape", prefix, attention_temperature=0.6, lse_scale=0.7)
    engine.serve(prompt, [a, b, c], recovery)  # stores the documents
    documents = [c, a, b]
    hidden = engine.serve_apart(prompt, documents, recovery)
    rows, places = rows_of(prompt, documents, prefix, 0)
    prompt_rows = slice(places.prompt.start, places.prompt.stop)
    without = expected_of(model, rows)[prompt_rows]
    rows.apart = Apart(places.prompt, places.documents, 0.6, 0.7)
    expected = expected_of(model, rows)[prompt_rows]
    assert (hidden - expected).norm() < 1e-5 * expected.norm() < 1e-3 * (without - expected).norm()
    engine.store.check()
