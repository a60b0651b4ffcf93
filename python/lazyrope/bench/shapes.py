"""The shapes that ``lazyrope bench`` measures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import lazyrope

from .timer import Memory

# Rotated columns of a partial rotary embedding at these head_dims, as models have them; 32 at every other head_dim.
PARTIAL_ROTARY_DIMS = {80: 20, 96: 24}


def _rotary_dim(head_dim: int) -> int:
    return PARTIAL_ROTARY_DIMS.get(head_dim, 32)


ROPES = {
    "none": lambda head_dim: lazyrope.rope.none(),
    "neox": lambda head_dim: lazyrope.rope.neox(10000.0),
    "gptj": lambda head_dim: lazyrope.rope.gptj(10000.0),
    "linear": lambda head_dim: lazyrope.rope.linear(10000.0, factor=4.0),
    "llama3": lambda head_dim: lazyrope.rope.llama3(),
    "yarn": lambda head_dim: lazyrope.rope.yarn(150000.0, factor=32.0, original_max_position_embeddings=4096),
    "partial neox": lambda head_dim: lazyrope.rope.neox(10000.0, rotary_dim=_rotary_dim(head_dim)),
    "partial gptj": lambda head_dim: lazyrope.rope.gptj(10000.0, rotary_dim=_rotary_dim(head_dim)),
}

TORCH_PEERS = ("cudnn", "flash_attention_2")


@dataclass(frozen=True)
class Shape:
    """A batch of requests. Each request has query_tokens queries over context tokens of stored documents."""

    kernel: str  # "decode", "prefill", "append" or "reposition"
    batch: int
    query_tokens: int  # for append and reposition: the tokens that are written
    context: int
    doc_tokens: int = 1024
    heads: tuple[int, int] = (32, 8)  # query heads, KV heads
    head_dim: int = 128
    dtype: Literal["bfloat16", "float16"] = "bfloat16"
    kv_dtype: Literal["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"] = "bfloat16"
    page_size: int = 16
    mask: str = "full"  # full: the queries come after the context; causal: they are its last tokens
    rope: str = "llama3"
    peers: tuple[str, ...] = TORCH_PEERS

    def spec(self, **options: Any) -> lazyrope.AttentionSpec:
        """Returns a causal spec with further fields. Its mask hides nothing from queries that come after all keys."""
        return lazyrope.AttentionSpec(
            head_dim=self.head_dim,
            num_q_heads=self.heads[0],
            num_kv_heads=self.heads[1],
            rope=ROPES[self.rope](self.head_dim),
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            **options,
        )

    @property
    def memory_code(self) -> int:
        """The number that ``Segments.memory`` has for each document, in specs with states."""
        return 1

    @property
    def kernel_key(self) -> str:
        """A text that two shapes share if they run the same kernels."""
        return repr(self.spec())

    def about(self) -> dict[str, Any]:
        """Returns the fields that the row has in JSON."""
        return {
            "kernel": self.kernel,
            "mask": self.mask,
            "batch": self.batch,
            "query_tokens": self.query_tokens,
            "context": self.context,
            "doc_tokens": self.doc_tokens,
            "heads": list(self.heads),
            "head_dim": self.head_dim,
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "page_size": self.page_size,
            "rope": self.rope,
        }

    def pools(self, memory: Memory, num_pages: int) -> tuple[Any, Any]:
        """Returns the key pool and the value pool, [num_pages, page_size, KV heads, head_dim] each."""
        return memory.pools((num_pages, self.page_size, self.heads[1], self.head_dim), self.kv_dtype)

    @property
    def contexts(self) -> list[int]:
        """Stored tokens of each request."""
        return [self.context] * self.batch

    @property
    def tokens(self) -> list[int]:
        """Query tokens of each request."""
        return [self.query_tokens] * self.batch

    @property
    def documents(self) -> list[list[int]]:
        """Tokens of each document of each request. Every call returns the same lengths."""
        return [self._documents(context) for context in self.contexts]

    def _documents(self, context: int) -> list[int]:
        whole, rest = divmod(context, self.doc_tokens)
        return [self.doc_tokens] * whole + ([rest] if rest else [])

    @property
    def document_ids(self) -> list[int]:
        """The stored document that each document of each request is. Those with one number are the same."""
        return [*range(sum(map(len, self.documents)))]

    @property
    def bases(self) -> list[list[int]]:
        """Position of the first token of each document of each request."""
        return [list(accumulate(lengths[:-1], initial=0)) for lengths in self.documents]

    @property
    def first_query(self) -> list[int]:
        """Position of each request's first query."""
        if self.mask != "causal":
            return self.contexts
        return [context - tokens for context, tokens in zip(self.contexts, self.tokens, strict=True)]

    @property
    def kv_tokens(self) -> int:
        """Stored tokens that at least one query sees."""
        return sum(self.contexts)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values that the queries see."""
        return 2 * self.kv_tokens * self.heads[1] * self.head_dim * (1 if self.kv_dtype.startswith("float8") else 2)

    @property
    def flops(self) -> float:
        """Floating-point operations of all pairs of a query and a key that it sees."""
        requests = Counter(zip(self.contexts, self.tokens, strict=True))
        pairs = sum(
            count * self.keys_seen(context, tokens, i)
            for (context, tokens), count in requests.items()
            for i in range(tokens)
        )
        return 4.0 * self.heads[0] * pairs * self.head_dim

    def keys_seen(self, context: int, tokens: int, query: int) -> int:
        """Returns how many of `context` keys the query with this index among `tokens` queries sees."""
        return context - tokens + 1 + query if self.mask == "causal" else context
