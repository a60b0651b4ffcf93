"""Prompts with documents, and how a request of vLLM names its documents.

A request's ``extra_args`` say how many of its prompt's first tokens belong to each document:

    {"lazyrope_documents": [1790, 512], "lazyrope_prompt_tokens": 2340}

The number of all tokens may be left out. With it, a prompt that was cut on its way is refused. The OpenAI-compatible
server takes these arguments as ``vllm_xargs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._keys import int64_array
from ..errors import SpecError
from ..recovery import LEVELS

DOCUMENTS = "lazyrope_documents"
RECOVERY = "lazyrope_recovery"
PROMPT_TOKENS = "lazyrope_prompt_tokens"
KEYS = (DOCUMENTS, PROMPT_TOKENS, RECOVERY)
MAX_DOCUMENTS = 100


def prompt(
    tokenizer: Any,
    documents: Sequence[str | Sequence[int]],
    question: str | Sequence[int],
    *,
    prefix: str | Sequence[int] = (),
    recovery: str = "none",
) -> tuple[list[int], dict[str, Any]]:
    """Makes the prompt of a request that reads documents, for ``LLM.generate``.

    Each document is tokenised by itself, without special tokens, so that its tokens are the same in every prompt.

    Args:
        tokenizer: The model's tokenizer, such as that of ``LLM.get_tokenizer()``. None: everything is token ids.
        documents: The documents in the order in which the question sees them, each a text or token ids. They may be
            none, and a document may appear twice.
        question: The text, or the token ids, that follow the documents. It sees all of them.
        prefix: The text, or the token ids, before the documents, such as a system prompt. It is stored like a
            document: the question sees it, and the documents do not.
        recovery: The level of :mod:`lazyrope.recovery`. Only "none" is served: a document sees nothing before it.

    Returns:
        The token ids of the prompt, and the request's ``extra_args``.

    Raises:
        SpecError: A document or the question has no tokens; there are more than 100 documents; text is given without a
            tokenizer; or the level of recovery is another one.

    Example:
        ```python
        tokens, extra = lazyrope.vllm.prompt(llm.get_tokenizer(), [manual, licence], "\\nWhat is forbidden?\\n")
        llm.generate({"prompt_token_ids": tokens}, SamplingParams(extra_args=extra))
        ```
    """
    _check_recovery(recovery)
    if isinstance(documents, str | bytes):
        raise SpecError(f"documents = {documents!r:.80}; it must be a list of texts or of token ids")
    texts = [_encode(tokenizer, f"documents[{i}]", document) for i, document in enumerate(documents)]
    if len(prefix):
        texts.insert(0, _encode(tokenizer, "prefix", prefix))
    own = _encode(tokenizer, "question", question)
    lengths = [len(text) for text in texts]
    tokens = [token for text in (*texts, own) for token in text]
    _check_lengths(lengths, len(tokens))
    return tokens, {DOCUMENTS: lengths, PROMPT_TOKENS: len(tokens)} if lengths else {}


def document_lengths(extra_args: Mapping[str, Any] | None, num_tokens: int) -> tuple[int, ...]:
    """Reads the tokens of each document from the ``extra_args`` of a request.

    Args:
        extra_args: Those of the request's sampling parameters. Without ``lazyrope_documents``, there is no document.
        num_tokens: The tokens of the prompt, without padding.

    Raises:
        SpecError: The lengths are no list of positive integers, leave no token for the question, or are too many; the
            prompt has another number of tokens than ``lazyrope_prompt_tokens``; or the request asks for something that
            is not served.
    """
    given = extra_args or {}
    unknown = [key for key in given if isinstance(key, str) and key.startswith("lazyrope_") and key not in KEYS]
    if unknown:
        raise SpecError(f"extra_args has {unknown[0]!r:.80}; the keys of lazyrope are: {', '.join(KEYS)}")
    _check_recovery(given.get(RECOVERY, "none"))
    if given.get(PROMPT_TOKENS, num_tokens) != num_tokens:
        raise SpecError(
            f"{PROMPT_TOKENS} = {given[PROMPT_TOKENS]!r:.80}, and the prompt has {num_tokens} tokens; it must not be "
            "cut (truncate_prompt_tokens) or lengthened after its documents were counted"
        )
    lengths = given.get(DOCUMENTS, [])
    _check_lengths(lengths, num_tokens)
    return tuple(lengths)


def _check_lengths(lengths: Any, num_tokens: int) -> None:
    is_list = isinstance(lengths, list | tuple)
    if not is_list or not all(type(length) is int and length >= 1 for length in lengths):
        raise SpecError(f"{DOCUMENTS} = {lengths!r:.80}; it must be a list of integers, the tokens of each document")
    if len(lengths) > MAX_DOCUMENTS:
        raise SpecError(f"a prompt has {len(lengths)} documents, its prefix included; at most {MAX_DOCUMENTS} may be")
    if lengths and sum(lengths) >= num_tokens:
        raise SpecError(
            f"{DOCUMENTS} has {sum(lengths)} tokens together, and the prompt has {num_tokens}; the prompt is all "
            "documents and then at least one token of the question"
        )


def _check_recovery(level: Any) -> None:
    if level != "none":
        known = "which lazyrope.vllm does not serve yet" if level in LEVELS else "which is unknown"
        raise SpecError(f'recovery = {level!r:.80}, {known}; it must be "none": a document sees nothing before it')


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
