"""Mistakes of requests, found where a request arrives: vLLM's server then answers with status 400 and the reason.

Platforms of vLLM have a method that may refuse a request. It takes the request before the engine does. What only the
scheduler knows, such as the room in ``--max-model-len``, it checks itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import SpecError
from .prompts import DOCUMENTS, PREFIX_TOKENS, check_arguments, check_names


class RequestCheck:
    """Takes the place of a platform's ``validate_request``. It also checks lazyrope's arguments."""

    def __init__(self, stock: Callable[..., Any]) -> None:
        self._stock = stock

    def __call__(self, processed_inputs: Mapping[str, Any], params: Any, *args: Any, **kwargs: Any) -> Any:
        """
        Raises:
            SpecError: The request has arguments of lazyrope with a mistake. It is also vLLM's error for such requests.
        """
        result = self._stock(processed_inputs, params, *args, **kwargs)
        try:
            check_request(processed_inputs, params)
        except SpecError as error:
            raise _mistake_class()(str(error)) from None
        return result


@functools.cache
def _mistake_class() -> type[SpecError]:
    """Returns the class of errors for which vLLM's server answers with status 400."""
    from vllm.exceptions import VLLMValidationError

    return type("RequestMistake", (VLLMValidationError, SpecError), {"__module__": __name__})


def __getattr__(name: str) -> Any:
    """Finds the class of errors by its name, as pickle does. vLLM is imported no earlier than that."""
    if name == "RequestMistake":
        return _mistake_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check_request(inputs: Mapping[str, Any], params: Any) -> None:
    """Checks the names of a request's arguments and its level of recovery.

    If the arguments also count documents or the tokens of their prefix, checks all of them. The document token of a
    chat counts documents, too, but only the scheduler knows it.

    Args:
        inputs: vLLM's inputs of the request, with ``prompt_token_ids``.
        params: Its sampling parameters, or pooling parameters, which have no documents.

    Raises:
        SpecError: There is a mistake.
    """
    given = getattr(params, "extra_args", None) or {}
    check_names(given)
    if not {DOCUMENTS, PREFIX_TOKENS} & given.keys():
        return
    tokens = inputs.get("prompt_token_ids")
    if tokens is None:
        raise SpecError("a request with documents: prompt embeddings have no documents")
    check_arguments(given, len(tokens))
    if given.get(DOCUMENTS) or given.get(PREFIX_TOKENS):
        check_with_documents(params)


def check_with_documents(params: Any) -> None:
    """Refuses sampling parameters that do not go together with documents.

    Raises:
        SpecError: There is one.
    """
    if params.prompt_logprobs is not None:
        raise SpecError("a request with documents: prompt_logprobs would count the padding of documents")


def check_on_arrival(platform: Any) -> None:
    """Makes a platform of vLLM check requests. It may be given again."""
    if not isinstance(platform.validate_request, RequestCheck):
        platform.validate_request = RequestCheck(platform.validate_request)
