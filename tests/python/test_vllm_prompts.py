"""Tests the prompts of the vLLM plug-in. It needs no vLLM."""

from __future__ import annotations

import sys

import lazyrope
import pytest
from lazyrope import SpecError
from lazyrope.vllm import prompt
from lazyrope.vllm.prompts import MAX_DOCUMENTS, document_lengths


class Letters:
    """A tokenizer of letters that would put a token 1 before every text."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]


def test_each_text_is_tokenised_by_itself():
    tokens, extra = prompt(Letters(), ["ab", [7, 8, 9]], "?!", prefix="s")
    assert tokens == [*b"s", *b"ab", 7, 8, 9, *b"?!"]
    assert extra == {"lazyrope_documents": [1, 2, 3], "lazyrope_prompt_tokens": 8}
    assert document_lengths(extra, len(tokens)) == (1, 2, 3)


def test_a_prompt_without_documents_has_no_arguments():
    assert prompt(None, [], [5, 6]) == ([5, 6], {})
    assert document_lengths(None, 2) == document_lengths({}, 2) == document_lengths({"other": 1, 3: 4}, 2) == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"documents": "text"}, "documents = 'text'; it must be a list"),
        ({"documents": ["a", ""]}, r"documents\[1\] = '' has no tokens"),
        ({"question": ""}, "question = '' has no tokens"),
        ({"tokenizer": None}, r"documents\[0\] is text and tokenizer is None"),
        ({"documents": [[1]] * (MAX_DOCUMENTS + 1)}, "at most 100"),
        ({"documents": [[2**63]]}, "64-bit integers"),
        ({"recovery": "prefix"}, "recovery = 'prefix', which lazyrope.vllm does not serve yet"),
        ({"recovery": "all"}, "recovery = 'all', which is unknown"),
    ],
)
def test_mistakes_in_a_prompt(given, message):
    with pytest.raises(SpecError, match=message):
        prompt(**{"tokenizer": Letters(), "documents": ["a"], "question": "b", **given})


@pytest.mark.parametrize(
    ("extra_args", "message"),
    [
        ({"lazyrope_documents": 3}, "it must be a list of integers"),
        ({"lazyrope_documents": [3, 0]}, "it must be a list of integers"),
        ({"lazyrope_documents": [3, True]}, "it must be a list of integers"),
        ({"lazyrope_documents": ["3"]}, "it must be a list of integers"),
        ({"lazyrope_documents": [3, 7]}, "has 10 tokens together, and the prompt has 10"),
        ({"lazyrope_documents": [3], "lazyrope_prompt_tokens": 12}, "= 12, and the prompt has 10 tokens"),
        ({"lazyrope_document": [3]}, "extra_args has 'lazyrope_document'; the keys of lazyrope are"),
        ({"lazyrope_recovery": "guided"}, "does not serve yet"),
    ],
)
def test_mistakes_in_the_arguments_of_a_request(extra_args, message):
    with pytest.raises(SpecError, match=message):
        document_lengths(extra_args, 10)


def test_the_package_imports_no_vllm():
    assert lazyrope.vllm.prompt is prompt and "vllm" not in sys.modules
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lazyrope.vllm.nothing  # noqa: B018
