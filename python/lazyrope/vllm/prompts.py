"""Prompts with documents, and how a request of vLLM names its documents.

A request's ``extra_args`` say how many of its prompt's first tokens belong to each document:

    {"lazyrope_documents": [1790, 512], "lazyrope_prompt_tokens": 2340}

The number of all tokens may be left out. With it, a prompt that was cut on its way is refused. A request with a level
of recovery says so, and how many tokens before the documents are the prefix after which they are computed:

    {"lazyrope_documents": [1790, 512], "lazyrope_prefix_tokens": 30, "lazyrope_recovery": "first_page",
     "lazyrope_overlay_tokens": 16, "lazyrope_prompt_tokens": 2370}

The OpenAI-compatible server takes these arguments as ``vllm_xargs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._keys import int64_array
from ..errors import SpecError
from ..recovery import LEVELS, Recovery
from .layout import PromptLayout

DOCUMENTS = "lazyrope_documents"
PREFIX_TOKENS = "lazyrope_prefix_tokens"
RECOVERY = "lazyrope_recovery"
OVERLAY_TOKENS = "lazyrope_overlay_tokens"
PROMPT_TOKENS = "lazyrope_prompt_tokens"
KEYS = (DOCUMENTS, PREFIX_TOKENS, RECOVERY, OVERLAY_TOKENS, PROMPT_TOKENS)
SERVED_LEVELS = ("none", "prefix", "first_page")
MAX_DOCUMENTS = 100


def prompt(
    tokenizer: Any,
    documents: Sequence[str | Sequence[int]],
    question: str | Sequence[int],
    *,
    prefix: str | Sequence[int] = (),
    recovery: str = "none",
    overlay_tokens: int | None = None,
) -> tuple[list[int], dict[str, Any]]:
    """Makes the prompt of a request that reads documents, for ``LLM.generate``.

    Each document is tokenised by itself, without special tokens, so that its tokens are the same in every prompt.

    Args:
        tokenizer: The model's tokenizer, such as that of ``LLM.get_tokenizer()``. None: everything is token ids.
        documents: The documents in the order in which the question sees them, each a text or token ids. They may be
            none, and a document may appear twice.
        question: The text, or the token ids, that follow the documents. It sees all of them.
        prefix: The text, or the token ids, before the documents, such as a system prompt. The question sees it. The
            documents see it at the levels "prefix" and "first_page"; at "none", it is stored like a document.
        recovery: The level of :mod:`lazyrope.recovery`: "none", a document sees nothing before it; "prefix", each
            document is computed after the prefix; or "first_page", as "prefix" if there is a prefix, and the first
            tokens of each document but the first are computed again over everything before them.
        overlay_tokens: How many first tokens "first_page" computes again, at least 0. None: 16.

    Returns:
        The token ids of the prompt, and the request's ``extra_args``.

    Raises:
        SpecError: A document or the question has no tokens; there are more than 100 documents; text is given without a
            tokenizer; the level of recovery is another one; or the level needs a prefix, or does not use
            overlay_tokens.

    Example:
        ```python
        tokens, extra = lazyrope.vllm.prompt(llm.get_tokenizer(), [manual, licence], "\\nWhat is forbidden?\\n")
        llm.generate({"prompt_token_ids": tokens}, SamplingParams(extra_args=extra))
        ```
    """
    _check_level(recovery)
    if isinstance(documents, str | bytes):
        raise SpecError(f"documents = {documents!r:.80}; it must be a list of texts or of token ids")
    texts = [_encode(tokenizer, f"documents[{i}]", document) for i, document in enumerate(documents)]
    before = _encode(tokenizer, "prefix", prefix) if len(prefix) else []
    own = _encode(tokenizer, "question", question)
    tokens = [token for text in (before, *texts, own) for token in text]
    lengths = [len(text) for text in texts]
    if recovery == "none":  # the prefix is a document
        lengths, before = ([len(before), *lengths] if before else lengths), []
    recovered = Recovery().changed(recovery, before or None, overlay_tokens)
    extra = arguments(lengths, len(before), recovery, recovered.overlay_tokens)
    check_arguments(extra, len(tokens))
    return tokens, extra and extra | {PROMPT_TOKENS: len(tokens)}


def arguments(lengths: Sequence[int], prefix_tokens: int, level: str, overlay_tokens: int) -> dict[str, Any]:
    """Returns the ``extra_args`` of a request, without the number of all tokens.

    Args:
        lengths: The tokens of each document.
        prefix_tokens: The tokens of the prefix after which documents are computed, or 0.
        level: The level of recovery.
        overlay_tokens: The tokens that the level "first_page" computes again.
    """
    if not lengths and not prefix_tokens:
        return {}
    extra: dict[str, Any] = {DOCUMENTS: list(lengths)}
    if prefix_tokens:
        extra[PREFIX_TOKENS] = prefix_tokens
    if level != "none":
        extra[RECOVERY] = level
    if level == "first_page":
        extra[OVERLAY_TOKENS] = overlay_tokens
    return extra


def layout_of(extra_args: Mapping[str, Any] | None, block_size: int) -> PromptLayout:
    """Returns the layout of a request's padded prompt.

    Args:
        extra_args: Those of the request's sampling parameters, which :func:`check_arguments` allows. Without
            ``lazyrope_documents`` and a prefix, there is no document.
        block_size: The slots of a block.
    """
    given = extra_args or {}
    prefix = given.get(PREFIX_TOKENS)
    lengths = (*([prefix] if prefix else []), *given.get(DOCUMENTS, ()))
    overlay_tokens = 0
    if given.get(RECOVERY) == "first_page":
        overlay_tokens = Recovery().changed("first_page", overlay_tokens=given.get(OVERLAY_TOKENS)).overlay_tokens
    return PromptLayout(lengths, block_size, has_prefix=bool(prefix), overlay_tokens=overlay_tokens)


def check_arguments(extra_args: Mapping[str, Any] | None, num_tokens: int) -> None:
    """Checks the ``extra_args`` of a request.

    Args:
        extra_args: Those of the request's sampling parameters.
        num_tokens: The tokens of the prompt, without padding.

    Raises:
        SpecError: The lengths are no list of positive integers, leave no token for the question, or are too many; the
            prompt has another number of tokens than ``lazyrope_prompt_tokens``; or the request asks for something that
            is not served, or that its level of recovery does not use.
    """
    given = extra_args or {}
    check_names(given)
    if given.get(PROMPT_TOKENS, num_tokens) != num_tokens:
        raise SpecError(
            f"{PROMPT_TOKENS} = {given[PROMPT_TOKENS]!r:.80}, and the prompt has {num_tokens} tokens; it must not be "
            "cut (truncate_prompt_tokens) or lengthened after its documents were counted"
        )
    prefix = _checked_prefix(given)
    _check_lengths(given.get(DOCUMENTS, []), prefix, num_tokens)
    level = given.get(RECOVERY, "none")
    if level == "prefix" and not prefix:
        raise SpecError(
            f'{RECOVERY} = "prefix" needs {PREFIX_TOKENS}, the tokens of the prompt before its first document'
        )
    Recovery().changed(level, [0] if prefix else None, given.get(OVERLAY_TOKENS))


def check_names(given: Mapping[str, Any]) -> None:
    """Checks the keys of a request's ``extra_args`` that are lazyrope's, and the name of the level of recovery.

    Raises:
        SpecError: One of them is unknown.
    """
    unknown = [key for key in given if isinstance(key, str) and key.startswith("lazyrope_") and key not in KEYS]
    if unknown:
        raise SpecError(f"extra_args has {unknown[0]!r:.80}; the keys of lazyrope are: {', '.join(KEYS)}")
    _check_level(given.get(RECOVERY, "none"))


def _checked_prefix(given: Mapping[str, Any]) -> int:
    """Returns the tokens of the prefix, 0 if there is none."""
    prefix = given.get(PREFIX_TOKENS, 0)
    if type(prefix) is not int or prefix < 0:
        raise SpecError(f"{PREFIX_TOKENS} = {prefix!r:.80}; it must be an integer, at least 0")
    return prefix


def _check_lengths(lengths: Any, prefix: int, num_tokens: int) -> None:
    is_list = isinstance(lengths, list | tuple)
    if not is_list or not all(type(length) is int and length >= 1 for length in lengths):
        raise SpecError(f"{DOCUMENTS} = {lengths!r:.80}; it must be a list of integers, the tokens of each document")
    count, total = len(lengths) + (prefix > 0), sum(lengths) + prefix
    if count > MAX_DOCUMENTS:
        raise SpecError(f"a prompt has {count} documents, its prefix included; at most {MAX_DOCUMENTS} may be")
    if count and total >= num_tokens:
        raise SpecError(
            f"{DOCUMENTS} has {total} tokens together{', its prefix included' if prefix else ''}, and the prompt has "
            f"{num_tokens}; the prompt is all documents and then at least one token of the question"
        )


def _check_level(level: Any) -> None:
    if level not in SERVED_LEVELS:
        known = "which lazyrope.vllm does not serve yet" if level in LEVELS else "which is unknown"
        raise SpecError(f"recovery = {level!r:.80}, {known}; it must be one of {', '.join(SERVED_LEVELS)}")


def _encode(tokenizer: Any, name: str, text: str | Sequence[int]) -> list[int]:
    if isinstance(text, str):
        if tokenizer is None:
            raise SpecError(f"{name} is text and tokenizer is None; give token ids, or the model's tokenizer")
        ids = list(tokenizer.encode(text, add_special_tokens=False))
    else:
        ids = int64_array(text).tolist() if len(text) else []
    if not ids:
        raise SpecError(f"{name} = {text!r:.80} has no tokens; it must have at least one")
    return ids
