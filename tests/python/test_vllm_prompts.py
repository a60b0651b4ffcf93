"""Tests the prompts of the vLLM plug-in. It needs no vLLM."""

from __future__ import annotations

import sys

import lazyrope
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lazyrope import SpecError
from lazyrope.recovery import LEVELS
from lazyrope.vllm import prompt
from lazyrope.vllm.layout import PromptLayout
from lazyrope.vllm.prompts import KEYS, MAX_DOCUMENTS, check_arguments, layout_of


class Letters:
    """A tokenizer of letters that would put a token 1 before every text."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]


def test_each_text_is_tokenised_by_itself():
    tokens, extra = prompt(Letters(), ["ab", [7, 8, 9]], "?!", prefix="s")
    assert tokens == [*b"s", *b"ab", 7, 8, 9, *b"?!"]
    assert extra == {"lazyrope_documents": [1, 2, 3], "lazyrope_prompt_tokens": 8}
    check_arguments(extra, len(tokens))
    assert layout_of(extra, 16) == PromptLayout((1, 2, 3), 16)


def test_a_prompt_without_documents_has_no_arguments():
    assert prompt(None, [], [5, 6]) == ([5, 6], {}) == prompt(None, [], [5, 6], recovery="first_page")
    for extra in (None, {}, {"other": 1, 3: 4}):
        check_arguments(extra, 2)
        assert layout_of(extra, 16) == PromptLayout((), 16)


@pytest.mark.parametrize(
    ("given", "extra", "layout"),
    [
        (
            {"recovery": "first_page"},
            {"lazyrope_recovery": "first_page", "lazyrope_overlay_tokens": 16},
            PromptLayout((2, 3), 16, overlay_tokens=16),
        ),
        (
            {"recovery": "first_page", "prefix": "s", "overlay_tokens": 2},
            {"lazyrope_prefix_tokens": 1, "lazyrope_recovery": "first_page", "lazyrope_overlay_tokens": 2},
            PromptLayout((1, 2, 3), 16, has_prefix=True, overlay_tokens=2),
        ),
        (
            {"recovery": "prefix", "prefix": [9, 9]},
            {"lazyrope_prefix_tokens": 2, "lazyrope_recovery": "prefix"},
            PromptLayout((2, 2, 3), 16, has_prefix=True),
        ),
    ],
)
def test_levels_of_recovery(given, extra, layout):
    tokens, made = prompt(Letters(), ["ab", [7, 8, 9]], "?!", **given)
    assert made == {"lazyrope_documents": [2, 3], "lazyrope_prompt_tokens": len(tokens), **extra}
    check_arguments(made, len(tokens))
    assert layout_of(made, 16) == layout


def test_first_page_computes_16_tokens_again_unless_a_request_says_otherwise():
    extra = {"lazyrope_documents": [2], "lazyrope_recovery": "first_page"}
    for more, expected in (({}, 16), ({"lazyrope_overlay_tokens": None}, 16), ({"lazyrope_overlay_tokens": 0}, 0)):
        check_arguments(extra | more, 10)
        assert layout_of(extra | more, 16).overlay_tokens == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"documents": "text"}, "documents = 'text'; it must be a list"),
        ({"documents": ["a", ""]}, r"documents\[1\] = '' has no tokens"),
        ({"question": ""}, "question = '' has no tokens"),
        ({"tokenizer": None}, r"documents\[0\] is text and tokenizer is None"),
        ({"documents": [[1]] * (MAX_DOCUMENTS + 1)}, "at most 100"),
        ({"documents": [[2**63]]}, "64-bit integers"),
        ({"recovery": "guided"}, "recovery = 'guided', which lazyrope.vllm does not serve yet"),
        ({"recovery": "all"}, "recovery = 'all', which is unknown; it must be one of none, prefix, first_page"),
        ({"recovery": "prefix"}, 'recovery = "prefix" needs prefix='),
        ({"recovery": "prefix", "prefix": "s", "overlay_tokens": 16}, 'recovery = "prefix" does not use it'),
        ({"overlay_tokens": 16}, 'overlay_tokens is given; recovery = "none" does not use it'),
        ({"recovery": "first_page", "overlay_tokens": -1}, "overlay_tokens = -1; it must be an integer, at least 0"),
        ({"recovery": "first_page", "prefix": "s", "documents": [[1]] * MAX_DOCUMENTS}, "101 documents, its prefix"),
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
        ({"lazyrope_recovery": ["prefix"]}, "which is unknown"),
        ({"lazyrope_recovery": "prefix"}, 'lazyrope_recovery = "prefix" needs lazyrope_prefix_tokens'),
        ({"lazyrope_prefix_tokens": 4}, 'prefix is given; recovery = "none" does not use it'),
        ({"lazyrope_prefix_tokens": "4", "lazyrope_recovery": "prefix"}, "it must be an integer, at least 0"),
        ({"lazyrope_prefix_tokens": 4, "lazyrope_documents": [6]}, "10 tokens together, its prefix included"),
        ({"lazyrope_overlay_tokens": 16}, 'recovery = "none" does not use it'),
        ({"lazyrope_recovery": "first_page", "lazyrope_overlay_tokens": 1.5}, "it must be an integer, at least 0"),
    ],
)
def test_mistakes_in_the_arguments_of_a_request(extra_args, message):
    with pytest.raises(SpecError, match=message):
        check_arguments(extra_args, 10)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from([1, *LEVELS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING))
def test_any_arguments_are_understood_or_refused(extra_args):
    """Another exception than SpecError would end the engine, not the request."""
    try:
        check_arguments(extra_args, 10)
    except SpecError:
        return
    layout = layout_of(extra_args, 16)
    assert layout.padded(list(range(10)))[layout.question :] == list(range(sum(layout.lengths), 10))


def test_the_package_imports_no_vllm():
    assert lazyrope.vllm.prompt is prompt and "vllm" not in sys.modules
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lazyrope.vllm.nothing  # noqa: B018
