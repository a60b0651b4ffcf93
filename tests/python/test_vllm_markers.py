"""Tests how document tokens divide a prompt, and which tokens may do it. It needs no vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lazyrope.vllm
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lazyrope import SpecError
from lazyrope.vllm.markers import DocumentToken, document_token, read_document_token
from lazyrope.vllm.prompts import check_arguments, layout_of

MARK = DocumentToken(9)
tokens = st.lists(st.integers(0, 8), min_size=1, max_size=5)


@given(st.lists(st.integers(0, 8), max_size=5), st.lists(tokens, max_size=4), tokens)
def test_a_joined_prompt_is_divided_into_its_parts(prefix, documents, question):
    prompt = [*prefix, *(token for document in documents for token in (9, *document)), 9, *question]
    rest, extra = MARK.divide(prompt, {"other": 1})
    assert MARK.is_in(prompt) and not MARK.is_in(rest)
    parts = [part for part in (prefix, *documents) if part]
    assert rest == [token for part in (*parts, question) for token in part] and extra["other"] == 1
    check_arguments(extra, len(rest))
    layout = layout_of(extra, 1)
    assert layout.lengths == tuple(map(len, parts)) and not layout.has_prefix


@pytest.mark.parametrize("level", ["prefix", "first_page"])
def test_at_a_level_of_recovery_the_prefix_is_no_document(level):
    rest, extra = MARK.divide([1, 2, 9, 3, 9, 4, 5, 9, 6], {"lazyrope_recovery": level})
    expected, counted = lazyrope.vllm.prompt(None, [[3], [4, 5]], [6], prefix=[1, 2], recovery=level)
    assert rest == expected
    assert layout_of(extra, 16) == layout_of(counted, 16) and layout_of(extra, 16).has_prefix
    check_arguments(extra, len(rest))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([1, 9, 9, 2], "document 0 of 1 has no tokens"),
        ([1, 9, 3, 9, 9, 2], "document 1 of 2 has no tokens"),
        ([1, 9, 2, 9], "the prompt ends with the document token"),
        ([9], "the prompt ends with the document token"),
    ],
)
def test_empty_parts_are_refused(prompt, message):
    with pytest.raises(SpecError, match=message):
        MARK.divide(prompt, None)


@pytest.mark.parametrize("key", ["lazyrope_documents", "lazyrope_prefix_tokens", "lazyrope_prompt_tokens"])
def test_documents_are_counted_or_divided_not_both(key):
    with pytest.raises(SpecError, match=f"{key} is given, and the prompt has the document token"):
        MARK.divide([1, 9, 2], {key: 1})


class Letters:
    """A tokenizer of letters with special tokens, of which it finds `<reserved>` inside a text."""

    bos_token_id, eos_token_id, pad_token_id, unk_token_id = 256, 257, None, 261
    chat_template = "{% for m in messages %}<message>{{ m.content }}{% endfor %}"

    def get_added_vocab(self) -> dict[str, int]:
        return {"<bos>": 256, "<eos>": 257, "<message>": 258, "<reserved>": 259, "<hidden>": 260, "<unk>": 261}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        head, mark, tail = text.partition("<reserved>")
        return [*head.encode(), *([259] if mark else []), *tail.encode()]


def test_the_document_token_of_a_tokenizer():
    assert document_token(Letters(), "<reserved>") == DocumentToken(259)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("the", "which is no special token of the tokenizer"),
        (259, "which is no special token of the tokenizer"),
        (["<reserved>"], "which is no special token of the tokenizer"),
        ("<eos>", "which the model's prompts use already"),
        ("<unk>", "which the model's prompts use already"),
        ("<message>", "which the model's prompts use already"),
        ("<hidden>", "which the tokenizer does not find inside a text"),
    ],
)
def test_tokens_that_cannot_divide_documents(text, reason):
    with pytest.raises(SpecError, match=f"{reason}; .* for example, <reserved>, <hidden>"):
        document_token(Letters(), text)


def settings(options: Any) -> Any:
    model = SimpleNamespace(skip_tokenizer_init=True, get_vocab_size=lambda: 1024)
    return SimpleNamespace(model_config=model, additional_config=options)


def test_a_server_without_a_tokenizer_names_an_id():
    assert read_document_token(settings({"lazyrope": {"document_token": 7}})) == DocumentToken(7)


@pytest.mark.parametrize("options", [{}, {"other": 1}, {"lazyrope": {}}, object()])
def test_a_server_may_have_no_document_token(options):
    assert read_document_token(settings(options)) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"document_tokens": 7}, "its only option is document_token"),
        ("document_token", "its only option is document_token"),
        ({"document_token": 1024}, "a token id from 0 to 1023"),
        ({"document_token": True}, "a token id from 0 to 1023"),
        ({"document_token": "<reserved>"}, "a token id from 0 to 1023"),
    ],
)
def test_mistakes_in_the_options(options, message):
    with pytest.raises(SpecError, match=message):
        read_document_token(settings({"lazyrope": options}))
