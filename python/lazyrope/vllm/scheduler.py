"""vLLM's scheduler, with documents that are found in the cache whatever stands before them.

A document is padded to whole blocks, and its blocks are hashed as if it were a prompt of its own. After the prefix of a
level of recovery, they are hashed as if the prompt were the prefix and the document. vLLM's prefix caching then finds
them for every request, keeps them and evicts them as usual. Its search stops at the first missing block. Where a
document is missing before one that is not, a request of the scheduler computes it first.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.request import StructuredOutputRequest

from ..errors import SpecError
from . import metrics
from .chains import HashChains, Hasher
from .fills import Fills
from .fragments import SEGMENTS_PER_REQUEST, num_blocks_to_take
from .homes import BlockHomes
from .layout import PromptLayout
from .limits import check_config, check_pool
from .markers import DocumentToken, read_document_token
from .prompts import DOCUMENTS, KEYS, PREFIX_TOKENS, arguments, check_arguments, layout_of
from .requests import check_with_documents

# The hashes of documents that are kept, for each block of the pool. An evicted document often comes back.
CHAINS_PER_POOL = 4

logger = logging.getLogger(__name__)


@dataclass
class Counts:
    """Counts of requests and documents since the scheduler was made.

    Attributes:
        documents: The documents of all requests.
        hits: The documents that were in the cache, or on their way into it, when their request came.
        fills: The requests that the scheduler made to compute a document.
        refused: The requests that were refused.
        tokens_not_recomputed: The prompt tokens of requests with documents that were found in the cache.
        shifted_blocks: The blocks that requests with documents found in the cache, and have at another position than
            the requests that wrote them.
    """

    documents: int = 0
    hits: int = 0
    fills: int = 0
    refused: int = 0
    tokens_not_recomputed: int = 0
    shifted_blocks: int = 0

    def metrics(self) -> dict[str, int]:
        """Returns the counts by their names in :mod:`lazyrope.vllm.metrics`."""
        return {
            "documents": self.documents,
            "document_hits": self.hits,
            "document_fills": self.fills,
            "refused_requests": self.refused,
            "tokens_not_recomputed": self.tokens_not_recomputed,
            "shifted_blocks": self.shifted_blocks,
        }


class Scheduler(AsyncScheduler):  # type: ignore[misc]
    """The scheduler that vLLM takes by ``--scheduler-cls lazyrope.vllm.Scheduler``.

    Attributes:
        counts: Its counts of requests and documents.
        homes: The positions at which the blocks of the cache were written, for the counts and for the limit of
            segments. Workers have their own.
        most_segments: The most segments that a request may see.
        document_token: The token that divides the documents of a prompt, or None.
    """

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        """
        Raises:
            SpecError: The configuration is not served. The message says why.
        """
        check_config(vllm_config)
        check_pool(kv_cache_config)
        super().__init__(vllm_config, kv_cache_config, *args, **kwargs)
        self.document_token = read_document_token(vllm_config)
        self.counts = Counts()
        self.homes = BlockHomes(kv_cache_config.num_blocks, self.block_size)
        self.most_segments = SEGMENTS_PER_REQUEST
        self._allocated: list[int] = []  # the blocks whose homes are not recorded yet
        self._homes_of_allocated: list[int] = []
        manager = self.kv_cache_manager
        self._tables = manager.coordinator.single_type_managers[0].req_to_blocks
        self._find_stock, manager.get_computed_blocks = manager.get_computed_blocks, self._find
        self._allocate_slots_stock, manager.allocate_slots = manager.allocate_slots, self._allocate_slots
        self._reported = self.counts.metrics()
        self._chains = HashChains(CHAINS_PER_POOL * kv_cache_config.num_blocks)
        self._fills = Fills()
        # The requests that compute a document and are not finished, by the hash of the document's last block.
        self._coming: WeakValueDictionary[bytes, Any] = WeakValueDictionary()
        self._with_documents: WeakSet[Any] = WeakSet()  # the requests of users that have documents

    def add_request(self, request: Any) -> None:
        """Queues a request, after requests for the missing documents before its last stored one.

        A request with a mistake ends with the finish reason "error", and the log says what is wrong.
        """
        try:
            fills = self._prepare(request)
        except SpecError as error:
            self._refuse(request, error)
            fills = []
        for fill in fills:
            super().add_request(fill)
        super().add_request(request)

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        """Ends requests from outside, as when clients abort them, and the fills that only they waited for."""
        if request_ids is not None:  # otherwise all requests end
            names = {request_ids} if isinstance(request_ids, str) else set(request_ids)
            gone = [self.requests[name] for name in names if name in self.requests]
            request_ids = names.union(fill.request_id for fill in self._fills.abandoned(gone))
        return super().finish_requests(request_ids, finished_status)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Decides about a pass, as vLLM does, and counts what its new requests found in the cache."""
        output = super().schedule(*args, **kwargs)
        self._record_homes()
        for new in output.scheduled_new_reqs:
            if self.requests[new.req_id] in self._with_documents:
                self._count_found(new.block_ids[0], new.num_computed_tokens)
        return output

    def _find(self, request: Any) -> tuple[Any, int, int]:
        """Finds the stored blocks of a request, as vLLM does, and leaves some if they would be too many segments."""
        found, computed, boundary = self._find_stock(request)
        if not computed:
            return found, computed, boundary
        [blocks] = found.blocks
        layout = layout_of(request.sampling_params and request.sampling_params.extra_args, self.block_size)
        self._record_homes()
        homes = self.homes.peek([block.block_id for block in blocks])
        taken = num_blocks_to_take(layout, homes, self.most_segments)
        if taken == len(blocks):
            return found, computed, boundary
        fewer = self.kv_cache_manager.create_kv_cache_blocks((list(blocks[:taken]),))
        return fewer, taken * self.block_size, boundary

    def _allocate_slots(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Allocates blocks for a request, as vLLM does. A later request of the same pass may find them."""
        allocated = self._allocate_slots_stock(request, *args, **kwargs)
        if allocated is not None and allocated.blocks[0]:
            [blocks] = allocated.blocks
            end = len(self._tables[request.request_id])
            self._allocated += [block.block_id for block in blocks]
            self._homes_of_allocated += range(
                (end - len(blocks)) * self.block_size, end * self.block_size, self.block_size
            )
        return allocated

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Preempts a request. Nobody finds the blocks that this pass would have computed for it.

        vLLM gives blocks their hashes when it allocates them. Among requests of several priorities, it may preempt a
        request afterwards, in the same pass, and leaves the hashes (vllm#43569).
        """
        uncomputed = self._tables[request.request_id][request.num_computed_tokens // self.block_size :]
        self.kv_cache_manager.block_pool.evict_blocks({block.block_id for block in uncomputed})
        super()._preempt_request(request, *args, **kwargs)

    def _record_homes(self) -> None:
        """Records the homes of the blocks that were allocated since the last call, of all of them at once."""
        if self._allocated:
            self.homes.write_blocks(self._allocated, self._homes_of_allocated)
            self._allocated, self._homes_of_allocated = [], []

    def _count_found(self, table: Sequence[int], computed: int) -> None:
        """Counts the blocks that a new request with documents found in the cache."""
        homes = self.homes.peek(table[: computed // self.block_size])
        own = np.arange(len(homes), dtype=np.int32) * self.block_size
        self.counts.tokens_not_recomputed += computed
        self.counts.shifted_blocks += int(np.count_nonzero(homes != own))

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Returns vLLM's statistics with the counts since the last ones."""
        stats = super().make_stats(*args, **kwargs)
        if stats is not None:
            counts = self.counts.metrics()
            metrics.put(stats, {name: count - self._reported[name] for name, count in counts.items()})
            self._reported = counts
        return stats

    def _prepare(self, request: Any) -> list[Any]:
        """Pads and hashes the documents of a request. Returns the requests that must run before it."""
        params = request.sampling_params
        if params is None:
            return []
        mark = self.document_token
        if mark is not None and not mark.is_in(request.prompt_token_ids):
            mark = None
        if request.request_id in self.requests:  # a session goes on, as it began: without documents
            if mark is not None or {DOCUMENTS, PREFIX_TOKENS} & set(params.extra_args or {}):
                logger.warning("session %s: the documents of a later part are ignored", request.request_id)
            request.sampling_params = _without_documents(params)
            return []
        if mark is not None:
            _check_request(request)
            params = _divide(request, mark)
        check_arguments(params.extra_args, request.num_prompt_tokens)
        layout = layout_of(params.extra_args, self.block_size)
        if not layout.lengths:
            return []
        _check_request(request)
        padded = self._padded(request, layout)
        self._with_documents.add(request)
        self.counts.documents += len(layout.lengths)
        _replace_prompt(request, padded)
        if request._block_hasher is None:  # without prefix caching, each request computes its documents
            return []
        hasher = self._chains.remembering(request._block_hasher, self.block_size)
        documents = _documents(request, layout, hasher)
        request._block_hasher = question_hasher(request._block_hasher, layout, documents)
        request.block_hashes = []
        request.update_block_hashes()
        return [document.request for document in self._missing(request, documents)]

    def _padded(self, request: Any, layout: PromptLayout) -> list[int]:
        """Returns the padded prompt of a request. It must leave room for an answer."""
        padded = layout.padded(request.prompt_token_ids)
        if len(padded) >= self.max_model_len:
            raise SpecError(
                f"the prompt has {len(padded)} tokens with each document padded to a multiple of {self.block_size} and "
                f"{sum(layout.overlays)} tokens of overlays; at most {self.max_model_len - 1} leave room for an answer "
                f"(--max-model-len {self.max_model_len})"
            )
        return padded

    def _missing(self, request: Any, documents: Sequence[Document]) -> list[Document]:
        """Returns the missing documents before the last one that is not missing.

        The request itself computes the missing ones after it. Nothing stored comes after them.
        """
        first: dict[bytes, Document] = {}  # each document once
        is_stored = []
        for document in documents:
            is_stored.append(document.key in first or self._is_stored(document))
            first.setdefault(document.key, document)
        self.counts.hits += sum(is_stored)
        last = max((i for i, stored in enumerate(is_stored) if stored), default=0)
        fills = [document for document, stored in zip(documents[:last], is_stored, strict=False) if not stored]
        for document, stored in zip(documents, is_stored, strict=True):
            if not stored:
                self._coming[document.key] = document.request if document in fills else request
        for fill in fills:
            self._fills.add(fill.request)
        for key in first:
            coming = self._coming.get(key)
            if coming is not None and coming in self._fills:
                self._fills.wait(request, coming)
        self.counts.fills += len(fills)
        return fills

    def _is_stored(self, document: Document) -> bool:
        """Returns True if the cache has all blocks of a document, or a request that came before computes them."""
        coming = self._coming.get(document.key)
        if coming is not None and not coming.is_finished():
            return True
        pool = self.kv_cache_manager.block_pool
        return all(pool.get_cached_block(block, [0]) for block in document.hashes)

    def _refuse(self, request: Any, error: SpecError) -> None:
        """Makes vLLM end the request as one whose grammar cannot be compiled: with an error, and without running it."""
        logger.warning("request %s is refused: %s", request.request_id, error)
        self.counts.refused += 1
        failed = StructuredOutputRequest(params=StructuredOutputsParams(json_object=True))
        failed._grammar = error
        request.structured_output_request = failed
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR


def _divide(request: Any, mark: DocumentToken) -> Any:
    """Removes the document tokens from a prompt. Returns its new sampling parameters, which count the documents."""
    params = copy.copy(request.sampling_params)  # other requests may have the same ones
    tokens, params.extra_args = mark.divide(request.prompt_token_ids, params.extra_args)
    request.sampling_params = params
    _replace_prompt(request, tokens)
    request.block_hashes = []
    if not params.extra_args.get(DOCUMENTS):  # an ordinary prompt
        request.update_block_hashes()
    return params


def _without_documents(params: Any) -> Any:
    """Returns sampling parameters without the arguments of lazyrope, which nothing has checked."""
    params = copy.copy(params)  # other requests may have the same ones
    params.extra_args = {key: value for key, value in (params.extra_args or {}).items() if key not in KEYS}
    return params


def _replace_prompt(request: Any, tokens: list[int]) -> None:
    request.prompt_token_ids = tokens
    request.num_prompt_tokens = len(tokens)
    request._all_token_ids[:] = tokens  # request.all_token_ids is a view of this list


def _check_request(request: Any) -> None:
    """Refuses what does not go together with documents."""
    for is_refused, reason in (
        (request.prompt_token_ids is None or request.prompt_embeds is not None, "prompt embeddings have no documents"),
        (bool(request.mm_features), "images and audio are not served"),
        (request.resumable, "sessions of streamed input are not served"),
    ):
        if is_refused:
            raise SpecError(f"a request with documents: {reason}")
    check_with_documents(request.sampling_params)


@dataclass(frozen=True, eq=False)
class Document:
    """A document of a request.

    Attributes:
        request: A request of the scheduler that computes it.
        hashes: The hashes of its blocks.
    """

    request: Any
    hashes: list[bytes]

    @property
    def key(self) -> bytes:
        """The hash of its last block, which depends on all of its tokens, and on those of the prefix."""
        return self.hashes[-1]


def _documents(request: Any, layout: PromptLayout, stock: Hasher) -> list[Document]:
    """Returns the documents of a request, each computed by itself, or after the prefix."""
    texts = [
        request.prompt_token_ids[start : start + length]
        for start, length in zip(layout.starts, layout.padded_lengths, strict=True)
    ]
    documents: list[Document] = []
    for i, text in enumerate(texts):
        known, hasher, extra_args = 0, stock, None
        if layout.has_prefix and i > 0:
            prefix = documents[0]
            known, text = len(prefix.hashes), texts[0] + text
            hasher = continued_hasher(stock, prefix.hashes, prefix_seed(prefix.key, layout))
            extra_args = arguments([layout.lengths[i]], layout.lengths[0], "prefix", 0)
        computing = _document_request(request, i, text, hasher, extra_args)
        documents.append(Document(computing, computing.block_hashes[known:]))
    return documents


def _document_request(request: Any, i: int, tokens: list[int], hasher: Hasher, extra_args: Any) -> Any:
    """Returns a request of the scheduler that computes tokens for another request, and no answer."""
    return Request(
        request_id=f"{request.request_id}-document-{i}",
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(
            max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False, extra_args=extra_args
        ),
        pooling_params=None,
        client_index=request.client_index,
        arrival_time=math.nextafter(request.arrival_time, 0.0),  # in the order of priorities, just before it
        lora_request=request.lora_request,
        cache_salt=request.cache_salt,
        priority=request.priority,
        block_hasher=hasher,
    )


def prefix_seed(last: bytes, layout: PromptLayout) -> bytes:
    """Returns the hash that the blocks of documents after a prefix continue.

    It is the hash of the prefix's last block, as in a prompt that is the prefix and the document. If the prefix is
    padded, no such prompt has these blocks, and documents see the prefix without the padding.
    """
    length = layout.lengths[0]
    if length == layout.padded_lengths[0]:
        return last
    return hashlib.sha256(b"lazyrope.vllm prefix" + struct.pack("<Q", length) + last).digest()


def question_hasher(stock: Hasher, layout: PromptLayout, documents: Sequence[Document]) -> Hasher:
    """Returns a hasher of a request's blocks, whose first block after the documents depends on all of them.

    It also depends on the overlays, because the same tokens may be an overlay or the beginning of a question.

    Args:
        stock: vLLM's hasher. It takes a request and returns the hashes of its new whole blocks.
        layout: The documents of the request.
        documents: The documents with their hashes.
    """
    digest = hashlib.sha256(b"lazyrope.vllm documents")
    for length, overlay, document in zip(layout.lengths, layout.overlays, documents, strict=True):
        digest.update(struct.pack("<QQ", length, overlay) + document.key)
    known = [block for document in documents for block in document.hashes]
    return continued_hasher(stock, known, digest.digest())


def continued_hasher(stock: Hasher, known: Sequence[bytes], seed: bytes) -> Hasher:
    """Returns a hasher of blocks, the first of which have known hashes. The blocks after them continue a seed.

    vLLM's hasher continues the hash of the last block, which does not depend on everything before it.

    Args:
        stock: vLLM's hasher.
        known: The hashes of the first blocks, at least one.
        seed: Stands for the hash of the last one of them.
    """

    def hasher(request: Any) -> list[bytes]:
        hashes = request.block_hashes
        if len(hashes) > len(known):
            return stock(request)
        request.block_hashes = [*known[:-1], seed]
        try:
            return [*known[len(hashes) :], *stock(request)]
        finally:
            request.block_hashes = hashes

    return hasher
