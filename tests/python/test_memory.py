"""Memories of documents: their construction on random tensors, their files, and the counter of drift."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import stat
import warnings
from typing import Any

import lazyrope
import pytest
import torch
from lazyrope import SpecError, StoreError, memory
from lazyrope.documents import DocumentStore
from lazyrope.errors import InaccurateMemory
from lazyrope.memory import nnls
from lazyrope.memory.compact import MIN_WEIGHT, CompactOptions, compact_heads
from lazyrope.memory.kmeans import clusters_of, filled_clusters_of, means, unit
from lazyrope.memory.memories import states_bytes
from lazyrope.memory.scores import Scores, Usage, exact_states
from lazyrope.memory.states import StatesOptions, looked_up, state_heads
from lazyrope.memory.traces import held_out

TOKENS, TRACES, KV_HEADS, GROUP, HEAD_DIM = 160, 320, 2, 3, 64
SCORES = Scores(HEAD_DIM**-0.5, None)


def spec_of(**changes: Any) -> lazyrope.AttentionSpec:
    values = {"head_dim": HEAD_DIM, "num_q_heads": KV_HEADS * GROUP, "num_kv_heads": KV_HEADS}
    values |= {"rope": lazyrope.rope.neox(), "query_form": "rotated"}
    return lazyrope.AttentionSpec(**(values | changes))


@pytest.fixture(scope="module")
def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns keys, values and queries that attend to few directions, as those of a model do."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    topics = normal(6, HEAD_DIM) * 2
    keys = topics[torch.randint(6, (TOKENS, KV_HEADS), generator=generator)] + normal(TOKENS, KV_HEADS, HEAD_DIM)
    queries = topics[torch.randint(6, (TRACES, KV_HEADS * GROUP), generator=generator)]
    return keys, normal(TOKENS, KV_HEADS, HEAD_DIM), queries + 0.7 * normal(TRACES, KV_HEADS * GROUP, HEAD_DIM)


def built(tensors: tuple[torch.Tensor, ...], **arguments: Any) -> Any:
    keys, values, queries = tensors
    return memory.build(spec_of(), (keys, values), queries, **({"budget": 48} | arguments))


def test_exact_states_agree_with_fp64(tensors):
    keys, values, queries = tensors
    q, k, v = queries[:, 0], keys[:, 0], values[:, 0]
    for softcap in (None, 3.0):
        usage = Usage.of_none(k)
        states = exact_states(q, k, v, Scores(0.2, softcap), usage)
        score = q.double() @ k.double().T * 0.2
        score = score if softcap is None else torch.tanh(score / softcap) * softcap
        weights = score.softmax(-1)
        torch.testing.assert_close(states.out.double(), weights @ v.double(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(states.lse.double(), score.logsumexp(-1), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(usage.mass.double(), weights.sum(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(usage.peak.double(), weights.amax(0), rtol=1e-4, atol=1e-6)


def test_states_do_not_depend_on_the_size_of_chunks(tensors, monkeypatch):
    keys, values, queries = tensors
    whole = exact_states(queries[:, 0], keys[:, 0], values[:, 0], SCORES)
    found = built(tensors)
    biased = found.states(0, queries)
    monkeypatch.setattr(exact_states.__globals__["row_chunks"], "__defaults__", (7 * TOKENS,))
    parts = exact_states(queries[:, 0], keys[:, 0], values[:, 0], SCORES)
    for given, expected in ((parts, whole), (found.states(0, queries), biased)):
        torch.testing.assert_close(given.out, expected.out)
        torch.testing.assert_close(given.lse, expected.lse)


def test_non_negative_least_squares_meet_the_conditions_of_optimality():
    """The gradient is 0 at positive weights, and not negative at zeros (Karush, Kuhn and Tucker)."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.rand((4, 60, 12), generator=generator, dtype=torch.float64) ** 4
    target = torch.randn((4, 60, 1), generator=generator, dtype=torch.float64) + 0.5
    gram, right = rows.mT @ rows, (rows.mT @ target).squeeze(-1)
    w = nnls.solve(gram, right, torch.ones_like(right), iterations=3000)
    gradient = (gram @ w[..., None]).squeeze(-1) - right
    assert (w >= 0).all() and (w == 0).any() and (w > 0).any()
    assert gradient[w > 0].abs().max() < 1e-6
    assert gradient[w == 0].min() > -1e-6


def test_the_fitted_bias_and_values_are_optimal_over_the_traces(tensors):
    """No change of one weight or of the values makes the objective smaller: both gradients are checked in fp64."""
    keys, values, queries = (x.double() for x in tensors)
    options = CompactOptions(budget=40, exact=4, fit="values", selection="mass")
    heads = compact_heads(*(x.float() for x in (keys, values, queries, queries[:32])), SCORES, options)
    for head in range(KV_HEADS):
        q = queries[:, head * GROUP : (head + 1) * GROUP].reshape(-1, HEAD_DIM)
        score = q @ keys[:, head].T * SCORES.scale
        shares = torch.exp(score - score.logsumexp(-1, keepdim=True))
        chosen = heads.index[head]
        weights = heads.bias[head].double().exp()
        mine = shares[:, chosen]
        size = mine.square().sum(0).sqrt()
        gradient, right = ((mine.T @ x / size)[4:] for x in (mine @ weights - 1, torch.ones(len(q)).double()))
        is_free = weights[4:] > 2 * MIN_WEIGHT
        assert is_free.any() and (gradient[is_free].abs() < 0.01 * right.max()).all()
        assert (gradient[~is_free] > -0.01 * right.max()).all()
        p = mine * weights
        p = p / p.sum(-1, keepdim=True)
        exact = shares @ values[:, head]
        fitted = heads.values[head].double()
        better = torch.linalg.lstsq(p[:, 4:], exact - p[:, :4] @ fitted[:4]).solution
        least = (p[:, :4] @ fitted[:4] + p[:, 4:] @ better - exact).norm()
        assert (p @ fitted - exact).norm() < 1.1 * least  # the ridge costs little
        assert (p @ values[chosen, head] - exact).norm() > 1.5 * least  # and the fit is worth something


@pytest.mark.parametrize("deviation", [40, 60])
def test_heads_with_peaked_attention_have_memories(deviation):
    """All weights of the chosen keys underflow in some rows, because a query attends to one key that is not chosen."""
    generator = torch.Generator().manual_seed(deviation)
    keys, values, queries = (torch.randn(n, KV_HEADS, HEAD_DIM, generator=generator) for n in (TOKENS, TOKENS, 200))
    found = memory.build(
        spec_of(num_q_heads=KV_HEADS), (keys, values), queries * deviation, budget=20, exact=0, fit="values"
    )
    assert found.values.isfinite().all() and found.bias.isfinite().all()


def test_values_stay_as_they_are_where_they_cannot_be_fitted(tensors, monkeypatch):
    factor = torch.linalg.cholesky_ex

    def fail_in_first_head(gram: torch.Tensor) -> Any:
        found, info = factor(gram)
        found[0] = torch.nan
        return found, info.index_fill(0, torch.tensor([0]), 1)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", fail_in_first_head)
    found = built(tensors, fit="values", selection="mass")
    values = tensors[1]
    assert torch.equal(found.values[0, 0], values[found.index[0, 0].long(), 0])
    assert not torch.equal(found.values[0, 1], values[found.index[0, 1].long(), 1])


def test_exact_tokens_are_stored_as_they_are(tensors):
    keys, values, _ = tensors
    found = built(tensors, exact=5)
    assert found.index[0, :, :5].tolist() == [[0, 1, 2, 3, 4]] * KV_HEADS
    assert torch.equal(found.keys[0, :, :5], keys[:5].transpose(0, 1))
    assert torch.equal(found.values[0, :, :5], values[:5].transpose(0, 1))
    assert (found.bias[0, :, :5] == 0).all() and (found.bias[0, :, 5:] != 0).any()
    assert all((row.diff() > 0).all() for row in found.index[0])


def test_keys_are_those_of_the_greatest_mass_or_weight(tensors):
    keys, _, queries = tensors
    fitted, _ = held_out(TRACES, 0.1, 0)
    chosen = {}
    for selection in ("mass", "max"):
        found = built(tensors, selection=selection, fit="none", exact=0, budget=20)
        for head in range(KV_HEADS):
            q = queries[fitted][:, head * GROUP : (head + 1) * GROUP].reshape(-1, HEAD_DIM)
            weights = (q.double() @ keys[:, head].double().T * SCORES.scale).softmax(-1)
            rank = weights.sum(0) if selection == "mass" else weights.amax(0)
            assert set(found.index[0, head].tolist()) == set(rank.topk(20).indices.tolist())
        chosen[selection] = found.index
    assert not torch.equal(chosen["mass"], chosen["max"])


def test_each_fit_makes_what_it_fits_better(tensors):
    none, bias, values, auto = (built(tensors, fit=fit).report for fit in ("none", "bias", "values", "auto"))
    assert bias.lse_error < 0.5 * none.lse_error
    assert values.output_error < 0.8 * min(none.output_error, bias.output_error)
    for head in range(KV_HEADS):
        errors = [(r.layers[0].output_error[head], r.layers[0].lse_error[head]) for r in (auto, none, bias, values)]
        squares = [output**2 + lse**2 for output, lse in errors]
        assert squares[0] <= min(squares[1:]) + 1e-9
    assert built(tensors, budget=100).report.output_error < values.output_error


def test_reports_measure_held_out_traces(tensors):
    keys, values, queries = tensors
    found = built(tensors, seed=5, holdout=0.2)
    fitted, held = held_out(TRACES, 0.2, 5)
    assert found.report.fitted == len(fitted) and found.report.held_out == len(held)
    assert not set(fitted.tolist()) & set(held.tolist()) and len(fitted) + len(held) == TRACES
    audit = memory.Drift(found).audit([queries[held]], [(keys, values)])
    assert audit.output_error == pytest.approx(found.report.output_error, rel=1e-3)
    assert audit.lse_error == pytest.approx(found.report.lse_error, rel=1e-3)
    assert found.num_bytes == KV_HEADS * 48 * (2 * HEAD_DIM * 4 + 4)
    assert found.report.exact_bytes == KV_HEADS * TOKENS * 2 * HEAD_DIM * 4
    assert len(str(found.report).splitlines()) == 4


def test_a_state_for_each_trace_gives_its_exact_attention(tensors):
    """Every query finds itself. With exact tokens, both parts merge to attention over the whole document."""
    keys, values, queries = tensors
    for exact in (0, 6):
        options = StatesOptions(TRACES, exact=exact, lookup="head")
        found, cosine = looked_up(state_heads(keys, values, queries, SCORES, options), queries, SCORES)
        assert cosine.min() > 0.9999
        for head in range(KV_HEADS * GROUP):
            kv = head // GROUP
            states = exact_states(queries[:, head], keys[:, kv], values[:, kv], SCORES)
            torch.testing.assert_close(found.out[head], states.out, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(found.lse[head], states.lse, rtol=1e-4, atol=1e-4)


def test_entries_average_their_clusters(tensors):
    """One entry is the mean over all queries, in log space or of exponentials."""
    keys, values, queries = tensors
    for average in ("log", "paper"):
        heads = state_heads(keys, values, queries, SCORES, StatesOptions(1, exact=0, lookup="head", average=average))
        states = exact_states(queries[:, 4], keys[:, 1], values[:, 1], SCORES)
        if average == "log":
            out, lse = states.out.mean(0), states.lse.mean()
        else:
            weight = states.lse.double().exp()
            out, lse = (weight[:, None] * states.out).sum(0) / weight.sum(), weight.mean().log().float()
        torch.testing.assert_close(heads.out[4, 0], out.float(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(heads.lse[4, 0], lse, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(heads.keys[4, 0], unit(unit(queries[:, 4]).mean(0)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("lookup", ["group", "head"])
@pytest.mark.parametrize("average", ["log", "paper"])
def test_entries_without_queries_are_never_found_as_such(tensors, lookup, average):
    """There are fewer different queries than entries. Each look-up gives the state of one of them.

    A key of zeros would be the nearest one of a query that all other keys point away from.
    """
    keys, values, queries = tensors
    distinct = queries[:6]
    options = StatesOptions(20, exact=0, lookup=lookup, average=average)
    heads = state_heads(keys, values, distinct.repeat(20, 1, 1), SCORES, options)
    torch.testing.assert_close(heads.keys.norm(dim=-1), torch.ones(heads.keys.shape[:2]))
    for q in (distinct, -distinct):
        found, cosine = looked_up(heads, q, SCORES)
        for head in range(KV_HEADS * GROUP):
            exact = exact_states(distinct[:, head], keys[:, head // GROUP], values[:, head // GROUP], SCORES)
            best = torch.cdist(found.out[head], exact.out).argmin(dim=-1)
            torch.testing.assert_close(found.out[head], exact.out[best], rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(found.lse[head], exact.lse[best], rtol=1e-4, atol=1e-4)
    assert cosine.min() < 0  # a key of zeros would have been nearer


def test_the_tangent_corrects_the_log_sum_exp(tensors):
    keys, values, queries = tensors
    near = queries[:1] + 0.1 * torch.randn((64, KV_HEADS * GROUP, HEAD_DIM), generator=torch.Generator().manual_seed(1))
    errors = []
    for tangent in (False, True):
        heads = state_heads(keys, values, near, SCORES, StatesOptions(1, exact=0, tangent=tangent))
        found, _ = looked_up(heads, near, SCORES)
        exact = exact_states(near[:, 0], keys[:, 0], values[:, 0], SCORES)
        errors.append((found.lse[0] - exact.lse).norm())
    assert errors[1] < 0.2 * errors[0]


def test_a_two_level_look_up_mostly_finds_the_nearest_entry(tensors):
    keys, values, queries = tensors
    flat = state_heads(keys, values, queries, SCORES, StatesOptions(128))
    grouped = state_heads(keys, values, queries, SCORES, StatesOptions(128, two_level=True))
    assert grouped.centres.shape[1] == 12 and grouped.keys.shape[1] == 12 * 14
    exact, found = (looked_up(heads, queries, SCORES)[1] for heads in (flat, grouped))
    assert (found <= exact + 1e-5).all() and (found > exact - 1e-5).float().mean() > 0.6


def test_cells_have_all_entries_and_repeat_some(tensors):
    keys, values, queries = tensors
    for lookup in ("group", "head"):
        flat, grouped = (
            state_heads(keys, values, queries, SCORES, StatesOptions(100, lookup=lookup, two_level=is_two_level))
            for is_two_level in (False, True)
        )
        each = KV_HEADS * GROUP // len(flat.keys)
        for head in range(KV_HEADS * GROUP):
            entries = [
                torch.cat([h.keys[head // each], h.out[head], h.lse[head, :, None]], dim=-1) for h in (flat, grouped)
            ]
            assert torch.equal(entries[0].unique(dim=0), entries[1].unique(dim=0))


def test_clusters_have_no_more_vectors_than_they_have_room_for():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((3, 16), generator=generator).repeat_interleave(40, 0) + 0.01 * torch.randn((120, 16))
    for count, most in ((12, 10), (12, 13), (3, 60)):
        cluster = filled_clusters_of(x, count, most, generator)
        assert len(cluster) == 120 and torch.bincount(cluster, minlength=count).max() <= most and cluster.min() >= 0


@pytest.mark.parametrize("two_level", [False, True])
def test_a_refused_budget_has_the_bytes_of_its_states(tensors, two_level):
    keys, values, queries = tensors
    options = StatesOptions(100, tangent=True, two_level=two_level)
    size, _ = states_bytes(state_heads(keys, values, queries, SCORES, options))
    with pytest.raises(SpecError, match=f"the memory would take {size} bytes"):
        built(tensors, kind="states", budget=100, tangent=True, two_level=two_level)


def test_clusters_are_of_near_directions():
    centres = torch.eye(8)[:4]
    x = centres.repeat_interleave(25, 0) * torch.rand(100, 1) + 0.05 * torch.randn(100, 8)
    cluster = clusters_of(x, 4, torch.Generator().manual_seed(0), iterations=20)
    assert len(cluster.unique()) >= 3
    mean = unit(means(unit(x), cluster, 4))
    assert ((unit(x) * mean[cluster]).sum(-1) > 0.5).float().mean() > 0.7


def test_the_key_covers_everything_that_decides_a_memory(tensors):
    first = built(tensors)
    assert built(tensors).key == first.key
    changed = copy.deepcopy(tensors)
    changed[2][300, 4, 3] += 1
    others = [built(tensors, seed=1), built(tensors, budget=47), built(tensors, fit="bias"), built(changed)]
    assert len({first.key, *(each.key for each in others)}) == 5
    other = memory.build(spec_of(rope=lazyrope.rope.llama3()), tensors[:2], tensors[2], budget=48)
    assert other.key != first.key and other.model != first.model
    scores = [{"scale": 0.2}, {"softcap": 3.0}, {"softcap": 4.0}]
    keys = [memory.build(spec_of(**each), tensors[:2], tensors[2], budget=48).key for each in scores]
    assert len({first.key, *keys}) == 4


@pytest.mark.parametrize("kind", ["compact", "states"])
def test_a_file_gives_the_same_memory(tensors, tmp_path, kind):
    tensors = tuple(x.bfloat16() for x in tensors)
    found = built(tensors, kind=kind, budget=40)
    memory.save(found, tmp_path / "a.memory")
    read = memory.load(tmp_path / "a.memory")
    assert type(read) is type(found)
    for field in dataclasses.fields(found):
        given, expected = getattr(read, field.name), getattr(found, field.name)
        if isinstance(expected, torch.Tensor):
            assert given.dtype == expected.dtype and torch.equal(given, expected), field.name
        else:
            assert given == expected, field.name
    for layer in range(found.num_layers):
        assert torch.equal(read.states(layer, tensors[2]).out, found.states(layer, tensors[2]).out)
    assert [each.name for each in tmp_path.iterdir()] == ["a.memory"]


def test_damaged_and_foreign_files_are_refused(tensors, tmp_path):
    file = tmp_path / "a.memory"
    memory.save(built(tensors), file)
    data = file.read_bytes()
    for at in (20, len(data) // 3, len(data) - 1):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(StoreError, match="damaged"):
            memory.load(file)
    for end in (30, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:end])
        with pytest.raises(StoreError, match="damaged"):
            memory.load(file)
    file.write_bytes(b"PK\x03\x04" + data)
    with pytest.raises(StoreError, match=r"no file of lazyrope\.memory\.save"):
        memory.load(file)
    file.write_bytes(data)
    store = DocumentStore(spec_of(), num_layers=1, budget="1MiB", device="cpu", model="another")
    with pytest.raises(StoreError, match="of another model"):
        memory.load(file, store)
    options: dict[str, Any] = {"num_layers": 1, "budget": "1MiB", "dtype": torch.float32, "device": "cpu"}
    found = memory.load(file, DocumentStore(spec_of(), **options))
    for changes, message in (
        ({"scale": 0.2}, r"in layer 0 it has scale = 0\.125 and .* and this store has scale = 0\.2"),
        ({"softcap": 3.0}, r"in layer 0 it has scale = 0\.125 and softcap = None, .* softcap = 3"),
    ):
        store = DocumentStore(spec_of(**changes), memories=True, **options)
        assert store.model_key == found.model
        with pytest.raises(StoreError, match="is fitted to other scores: " + message):
            memory.load(file, store)
        with pytest.raises(StoreError, match="the memory is fitted to other scores: " + message):
            store.acquire(found)


def test_a_failed_save_leaves_the_old_file(tensors, tmp_path, monkeypatch):
    file = tmp_path / "a.memory"
    memory.save(built(tensors), file)
    before = file.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        memory.save(built(tensors, budget=20), file)
    assert file.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["a.memory"]


def test_a_file_has_the_mode_of_the_umask_or_of_the_file_before(tensors, tmp_path):
    file, found = tmp_path / "a.memory", built(tensors)
    umask = os.umask(0o027)
    try:
        memory.save(found, file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        file.chmod(0o604)
        memory.save(found, file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o604
    finally:
        os.umask(umask)


def test_max_error_names_the_layer_the_head_and_the_value(tensors):
    keys, values, queries = tensors
    document, traces = [(keys, values), (keys, values)], [queries, torch.randn_like(queries) * 3]
    with pytest.raises(InaccurateMemory, match=r"layer 1, KV head \d: .* max_error is") as caught:
        errors = memory.build(spec_of(), document, traces, budget=48).report.layers
        limit = max(errors[0].output_error) * 1.01
        assert limit < max(errors[1].output_error)
        memory.build(spec_of(), document, traces, budget=48, max_error=limit)
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.layer == 1 and error.value == max(errors[1].output_error)
    assert errors[1].output_error[error.head] == error.value
    memory.build(spec_of(), document, traces, budget=48, max_error=1e6)


@pytest.mark.parametrize("name", ["keys", "values", "queries"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_elements_that_are_not_finite_are_refused(tensors, name, value):
    layers = {each: [x, x.clone()] for each, x in zip(("keys", "values", "queries"), tensors, strict=True)}
    layers[name][1][7, 1, 3] = value
    document = list(zip(layers["keys"], layers["values"], strict=True))
    with pytest.raises(SpecError, match=f"the {name} of layer 1 have NaN or infinite elements"):
        memory.build(spec_of(), document, layers["queries"], budget=48)


@pytest.mark.parametrize("kind", ["compact", "states"])
def test_an_error_that_is_not_finite_is_refused(tensors, kind):
    """The squares of such values overflow, so the relative error is no number. A limit of the error is not needed."""
    keys, values, queries = tensors
    values = values * torch.tensor([1.0, 1e25])[:, None]
    with pytest.raises(InaccurateMemory, match=r"layer 0, KV head 1: the errors on held-out traces are nan") as caught:
        memory.build(spec_of(), (keys, values), queries, kind=kind, budget=48)
    assert (caught.value.layer, caught.value.head) == (0, 1)


def test_a_fit_that_is_not_finite_is_not_chosen(tensors, monkeypatch):
    monkeypatch.setattr("lazyrope.memory.compact._fitted_values", lambda *given: torch.full_like(given[1], torch.nan))
    found = built(tensors)
    assert found.values.isfinite().all() and all("values" not in each for each in found.report.layers[0].chosen)


def test_drift_warns_of_queries_unlike_the_traces(tensors):
    keys, values, queries = tensors
    found = built(tensors)
    drift = memory.Drift(found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert drift.observe([queries]) < 0.15
        drift.audit([queries], [(keys, values)])
    foreign = torch.randn((2 * TRACES, KV_HEADS * GROUP, HEAD_DIM), generator=torch.Generator().manual_seed(2)) * 3
    with pytest.warns(RuntimeWarning, match="unlike the traces"):
        assert drift.observe([foreign]) > 0.9
    assert drift.seen == 3 * TRACES * KV_HEADS * GROUP and drift.below > drift.seen // 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drift.observe([foreign])  # the counter warns once
    with pytest.warns(RuntimeWarning, match="its errors on these queries"):
        drift.audit([foreign], [(keys, values)])


BAD = [
    ({"kind": "compressed"}, r"kind = 'compressed'; it must be one of compact, states"),
    ({"budget": 0}, r"budget = 0; it must be an integer, at least 1"),
    ({"budget": 4}, r"budget = 4; it must be more than exact = 4"),
    ({"budget": TOKENS + 1}, r"budget = 161; .*at most 160 tokens"),
    ({"budget": TOKENS}, r"the document's own keys and values take 163840\. Store the document"),
    ({"budget": True}, r"budget = True; it must be an integer"),
    ({"exact": -1}, r"exact = -1; it must be an integer, at least 0"),
    ({"fit": "best"}, r"fit = 'best'; it must be one of auto, none, bias, values"),
    ({"selection": "first"}, r"selection = 'first'; it must be one of auto, mass, max"),
    ({"holdout": 0}, r"holdout = 0; it must be a number between 0 and 1"),
    ({"holdout": 0.999}, r"traces have 320 tokens; holdout = 0\.999 leaves none to fit to"),
    ({"seed": -1}, r"seed = -1; it must be an integer"),
    ({"max_error": 0}, r"max_error = 0; it must be a number greater than 0"),
    ({"kind": "states", "lookup": "token"}, r"lookup = 'token'; it must be one of group, head"),
    ({"kind": "states", "average": "mean"}, r"average = 'mean'; it must be one of log, paper"),
    ({"kind": "states", "budget": 400}, r"budget = 400 entries; \d+ trace tokens are fitted to"),
    ({"kind": "states", "budget": 250}, r"the memory would take \d+ bytes"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_arguments_are_refused(tensors, arguments, message):
    with pytest.raises(SpecError, match=message):
        built(tensors, **arguments)


def test_bad_tensors_and_specs_are_refused(tensors):
    keys, values, queries = tensors
    for document, traces, message in (
        ((keys, values[:-1]), queries, r"keys have 160 tokens and values 159"),
        ((keys, values[:, :1]), queries, r"values of layer 0 is .*\[160, 1, 64\]; it must be .*\[160, 2, 64\]"),
        ((keys, values), queries[:, :2], r"traces of layer 0 is .*; it must be floating-point \[320, 6, 64\]"),
        (
            (keys.to(torch.float8_e4m3fn), values),
            queries,
            r"keys of layer 0 is torch\.float8_e4m3fn .* at least 16 bits",
        ),
        ((keys, values), [queries, queries], r"document has 1 layers and traces 2"),
        (keys, queries, r"document is Tensor; without an engine it must be a pair"),
        ((keys, values), "repeat", r"traces is str; without an engine it must be a tensor of queries"),
    ):
        with pytest.raises(SpecError, match=message):
            memory.build(spec_of(), document, traces, budget=48)
    for spec, message in (
        (spec_of(mask="sliding_window", window=64), r'mask = "sliding_window"; a memory stands for a document'),
        (spec_of(mask="chunked", chunk=64), r'mask = "chunked"'),
        (spec_of(key_form="raw"), r'key_form = "raw"; a key of a memory is in another slot'),
        (
            spec_of(query_form="raw", temperature=lazyrope.QueryTemperature(beta=0.1, interval=8192)),
            r'temperature with query_form = "raw": the kernel multiplies',
        ),
        (spec_of(kv_dtype="float8_e4m3fn"), r'kv_dtype = "float8_e4m3fn"; memories are of pools'),
    ):
        with pytest.raises(SpecError, match=message):
            memory.build(spec, (keys, values), queries, budget=48)
    with pytest.raises(SpecError, match=r"attention is 3; it must be an engine"):
        memory.build(3, (keys, values), queries, budget=48)
