"""Documents in the text of a prompt, such as a message of a chat: the document token divides them.

The document token is a reserved special token, which is named once at vLLM's start:

    --additional-config '{"lazyrope": {"document_token": "<|reserved_special_token_0|>"}}'

It comes before each document and before the question. What comes before the first one, such as the template's system
message, is a prefix, which is stored like a document. The model sees no document token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import SpecError
from .prompts import DOCUMENTS, PREFIX_TOKENS, PROMPT_TOKENS, RECOVERY

SECTION = "lazyrope"
OPTION = "document_token"
START = f'--additional-config \'{{"{SECTION}": {{"{OPTION}": "<|reserved_special_token_0|>"}}}}\''


@dataclass(frozen=True)
class DocumentToken:
    """The document token of a server.

    Attributes:
        id: Its token id.
    """

    id: int

    def is_in(self, tokens: Sequence[int] | None) -> bool:
        """Returns True if a prompt has the token."""
        return tokens is not None and self.id in tokens

    def divide(self, tokens: Sequence[int], given: Mapping[str, Any] | None) -> tuple[list[int], dict[str, Any]]:
        """Divides a prompt that has the token.

        Args:
            tokens: The prompt.
            given: The ``extra_args`` of its request, which may have a level of recovery.

        Returns:
            The prompt without document tokens, and the ``extra_args`` with the tokens of its documents.

        Raises:
            SpecError: A document or the question has no tokens, or the request counts its documents itself.
        """
        extra = dict(given or {})
        for key in (DOCUMENTS, PREFIX_TOKENS, PROMPT_TOKENS):
            if key in extra:
                raise SpecError(
                    f"{key} is given, and the prompt has the document token (id {self.id}); count the tokens of "
                    "documents, or put document tokens between them, not both"
                )
        prefix, lengths = self._lengths(tokens)
        if prefix and extra.get(RECOVERY, "none") == "none":  # the prefix is a document
            prefix, lengths = 0, [prefix, *lengths]
        if prefix:
            extra[PREFIX_TOKENS] = prefix
        if prefix or lengths:
            extra[DOCUMENTS] = lengths
        return [token for token in tokens if token != self.id], extra

    def _lengths(self, tokens: Sequence[int]) -> tuple[int, list[int]]:
        """Returns the tokens of the prefix, and of each document."""
        marks = [i for i, token in enumerate(tokens) if token == self.id]
        lengths = [end - mark - 1 for mark, end in pairwise(marks)]
        if 0 in lengths:
            raise SpecError(
                f"document {lengths.index(0)} of {len(lengths)} has no tokens: two document tokens (id {self.id}) "
                "follow one another; the token comes once before each document and once before the question"
            )
        if marks[-1] == len(tokens) - 1:
            raise SpecError(
                f"the prompt ends with the document token (id {self.id}); the question comes after the last one"
            )
        return marks[0], lengths


def read_document_token(config: Any) -> DocumentToken | None:
    """Returns the document token that a VllmConfig names, or None if it names none.

    Raises:
        SpecError: ``--additional-config`` has an unknown option for lazyrope, or the token cannot divide documents.
    """
    options = config.additional_config.get(SECTION, {}) if isinstance(config.additional_config, Mapping) else {}
    if not isinstance(options, Mapping) or not all(key == OPTION for key in options):
        raise SpecError(f"--additional-config has {SECTION} = {options!r:.80}; its only option is {OPTION}: {START}")
    if OPTION not in options:
        return None
    model = config.model_config
    if model.skip_tokenizer_init:
        return _known_by_id(options[OPTION], model.get_vocab_size())
    from vllm.tokenizers import cached_tokenizer_from_config

    return document_token(cached_tokenizer_from_config(model), options[OPTION])


def _known_by_id(token: Any, vocab_size: int) -> DocumentToken:
    """Returns the token of a server without a tokenizer."""
    if type(token) is not int or not 0 <= token < vocab_size:
        raise SpecError(
            f"{OPTION} = {token!r:.80}; without a tokenizer (--skip-tokenizer-init) it must be a token id from 0 to "
            f"{vocab_size - 1}"
        )
    return DocumentToken(token)


def document_token(tokenizer: Any, text: Any) -> DocumentToken:
    """Returns the document token with this text.

    Raises:
        SpecError: The tokenizer has no such special token, does not find it inside a text, or uses it for something
            else.
    """
    added = tokenizer.get_added_vocab()
    used = [getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "unk")]
    template = str(getattr(tokenizer, "chat_template", None) or "")
    free = sorted(name for name, number in added.items() if number not in used and name not in template)
    if text in free:
        token = DocumentToken(added[text])
        if list(tokenizer.encode(f"a{text}b", add_special_tokens=False)).count(token.id) == 1:
            return token
        reason = "which the tokenizer does not find inside a text"
    else:
        is_known = isinstance(text, str) and text in added
        reason = "which the model's prompts use already" if is_known else "which is no special token of the tokenizer"
    free.sort(key=lambda name: not any(word in name for word in ("reserved", "unused", "extra")))
    allowed = f"the tokenizer has, for example, {', '.join(free[:4])}" if free else "the tokenizer has none left"
    raise SpecError(f"{OPTION} = {text!r:.80}, {reason}; it must be a special token that nothing else uses; {allowed}")
