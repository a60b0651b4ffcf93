"""Compares remembered chains of block hashes with those of a hasher that remembers nothing. It needs no vLLM."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from lazyrope.vllm.chains import HashChains, Hasher

SIZE = 4


class Adapter(NamedTuple):
    lora_name: str
    lora_path: str


@dataclass
class Request:
    """A request of vLLM, as far as its hasher reads it."""

    all_token_ids: list[int]
    cache_salt: str | None = None
    lora_request: Adapter | None = None
    block_hashes: list[bytes] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


def stock(request: Request) -> list[bytes]:
    """Hashes as vLLM does: a block depends on the block before it and the adapter, the first one on the salt."""
    hashes = list(request.block_hashes)
    for block in range(len(hashes), request.num_tokens // SIZE):
        tokens = request.all_token_ids[block * SIZE : (block + 1) * SIZE]
        before = hashes[-1] if hashes else request.cache_salt
        hashes.append(hashlib.sha256(repr((before, tokens, request.lora_request)).encode()).digest())
    return hashes[len(request.block_hashes) :]


def counted(calls: list[Any]) -> Hasher:
    def hasher(request: Any) -> list[bytes]:
        calls.append(request)
        return stock(request)

    return hasher


requests = st.builds(
    Request,
    all_token_ids=st.lists(st.integers(0, 1), max_size=3 * SIZE),
    cache_salt=st.sampled_from([None, "a", "b"]),
    lora_request=st.sampled_from([None, Adapter("a", "x"), Adapter("a", "y"), Adapter("b", "x")]),
    block_hashes=st.sampled_from([[], [b"one"], [b"two"], [b"one", b"two"]]),
)


@given(st.lists(requests, max_size=60), st.integers(0, 12))
def test_remembered_chains_are_those_of_the_hasher(histories, capacity):
    chains = HashChains(capacity)
    hasher = chains.remembering(stock, SIZE)
    for request in histories:
        given = hasher(request)
        assert given == stock(request)
        given.append(b"the request owns its list")
        assert chains.num_hashes == sum(map(len, chains._chains.values())) <= capacity


def test_a_chain_is_computed_once():
    calls: list[Any] = []
    hasher = HashChains(100).remembering(counted(calls), SIZE)
    for _ in range(3):
        hasher(Request([1] * 9))
    assert len(calls) == 1
    for other in (Request([1] * 9, "salt"), Request([1] * 9, None, Adapter("a", "x")), Request([1] * 12)):
        hasher(other)
    assert len(calls) == 4


def test_the_chain_that_was_not_used_for_longest_is_forgotten():
    calls: list[Any] = []
    hasher = HashChains(4).remembering(counted(calls), SIZE)
    for token in (1, 2, 1, 3, 1):  # each chain has 2 hashes, so that 3 replaces 2
        hasher(Request([token] * 8))
    assert len(calls) == 3
    hasher(Request([2] * 8))
    assert len(calls) == 4


def test_a_request_without_a_new_block_is_not_hashed():
    calls: list[Any] = []
    assert HashChains(4).remembering(counted(calls), SIZE)(Request([1] * 5, block_hashes=[b"one"])) == [] == calls
