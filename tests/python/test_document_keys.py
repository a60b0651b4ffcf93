"""The keys of the document store: equal keys mean equal keys and values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lazyrope
import pytest
import torch
from lazyrope._keys import Keys, int64_array
from lazyrope.documents import DocumentStore

from tests.support.stores import SPEC, document_tokens, make_store

A = document_tokens(16, 1)


def test_keys_do_not_depend_on_the_type_of_the_token_sequence():
    numpy = pytest.importorskip("numpy")
    store = make_store(4)
    tokens = [0, 1, 5, 70_000, 2**31 - 1]
    forms = [tuple(tokens), torch.tensor(tokens), torch.tensor(tokens, dtype=torch.int32), numpy.array(tokens)]
    forms += [numpy.array(tokens, dtype=kind) for kind in ("uint32", ">i8")]
    forms += [[numpy.int32(token) for token in tokens], torch.tensor(tokens).repeat_interleave(2)[::2]]
    assert {store.key(form) for form in forms} == {store.key(tokens)}
    assert store.key(range(9)) == store.key(list(range(9))) == store.key(bytes(range(9)))
    document, _ = store.acquire(torch.tensor(tokens))
    assert document.key == store.key(tokens) and len(document.key) == 64 and int(document.key, 16)
    assert store.acquire(numpy.array(tokens)) == (document, False) and store.lookup(tokens) is document


def test_keys_depend_on_everything_that_decides_a_documents_kv():
    def key(spec: dict[str, Any], **options: Any) -> str:
        store = DocumentStore(
            lazyrope.AttentionSpec(**(SPEC | spec)), **(dict(num_layers=2, budget="1M", device="cpu") | options)
        )
        return store.key(A)

    rope = lazyrope.rope
    same = key({})
    different = [
        key(dict(head_dim=128)),
        key(dict(num_kv_heads=2)),
        key(dict(dtype="float16")),
        key(dict(rope=rope.none())),
        key(dict(rope=rope.neox(20000.0))),
        key(dict(rope=rope.neox(rotary_dim=32))),
        key(dict(rope=rope.llama3(10000.0))),
        key(dict(rope=rope.llama3(10000.0, factor=16.0))),
        key(dict(rope=rope.longrope(factors=[1.0] * 32))),
        key(dict(rope=rope.longrope(factors=[1.0] * 31 + [2.0]))),
        key({}, model="m"),
        key({}, num_layers=3),
        key({}, dtype=torch.float32),
    ]
    assert len({same, *different}) == len(different) + 1
    assert {
        key(dict(num_q_heads=4, scale=0.5, mask="full", query_form="rotated")),
        key(dict(append_form="rotated")),
        key(dict(rope=rope.neox(rotary_dim=64))),
        key({}, budget="2M", page_size=32),
        key({}, dtype=torch.bfloat16, device="cpu", model=""),
    } == {same}


def test_keys_depend_on_the_key_form():
    """Specs have one key form today, so the test substitutes an object for the spec."""
    spec = lazyrope.AttentionSpec(**SPEC)
    names = ("head_dim", "num_kv_heads", "dtype", "kv_dtype", "rope", "key_form")
    local = SimpleNamespace(**{name: getattr(spec, name) for name in names})
    raw = SimpleNamespace(**vars(local) | {"key_form": "raw"})
    groups = ([SimpleNamespace(spec=each, layers=(0, 1))] for each in (spec, local, raw))
    keys = (Keys(group, "", torch.bfloat16) for group in groups)
    ours, same, other = (key.key(int64_array(A), "") for key in keys)
    assert ours == same != other


def test_keys_depend_on_each_token_and_on_the_salt():
    store = make_store(4)
    lists = [[1], [2], [1, 2], [2, 1], [1, 2, 0], [0, 1, 2], [1 + 2**32], [1 + 2**8], [-1], [2**63 - 1], [-(2**63)]]
    assert len({store.key(tokens, salt=salt) for tokens in lists for salt in ("", "a", "b", "ab")}) == 4 * len(lists)


def test_keys_depend_on_the_context():
    store = make_store(8)
    fields = [(salt, context) for salt in ("", "a", "ab") for context in ("", "a", "b")]
    assert len({store.key(A, salt=salt, context=context) for salt, context in fields}) == len(fields)
    assert store.key(A, context="") == store.key(A)
    first, _ = store.acquire(A, context="a")
    assert store.lookup(A) is None and store.lookup(A, context="a") is first
    [(same, is_new), (other, other_is_new)], _ = store.reserve([A, A], 1, contexts=["a", ""])
    assert (same, is_new, other_is_new) == (first, False, True) and other.key == store.key(A)
    store.commit(first)
    with store.use(A, lambda document: None, context="a") as used:
        assert used is first
    with pytest.raises(lazyrope.SpecError, match="contexts has 1 entries; it must have one for each of 2 documents"):
        store.reserve([A, A], 1, contexts=["a"])
    for wrong in ("ab", ["a", 3]):
        with pytest.raises(lazyrope.SpecError, match=r"contexts is .*; it must be a list of texts"):
            store.reserve([A, A], 1, contexts=wrong)
    assert store.stats.referenced == 2


def test_keys_separate_their_fields():
    """Text that moves from one field to the next changes the key, and so does text that looks like tokens."""
    one, two = make_store(4, model="ab"), make_store(4, model="a")
    assert one.key([1], salt="c") != two.key([1], salt="bc")
    number = (1).to_bytes(8, "little").decode()
    assert one.key([1, 1], salt="") != one.key([1], salt=number)
    assert one.key([1], salt="\x00") != one.key([1], salt="") != one.key([0, 1], salt="")


@pytest.mark.parametrize(
    "tokens",
    [[1.0], torch.ones(2), [[1]], torch.ones(2, 2, dtype=torch.int64), torch.tensor(1), "ab", [2**63], 5, None],
)
def test_malformed_tokens_are_refused(tokens):
    store = make_store(4)
    for call in (store.key, store.acquire, store.lookup):
        with pytest.raises(
            lazyrope.SpecError, match=r"^tokens must be a one-dimensional sequence of 64-bit integers: "
        ):
            call(tokens)
