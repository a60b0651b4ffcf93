"""The block hashes of documents, kept for the next request with the same documents.

vLLM hashes each block of 16 tokens by itself, with the hash of the block before it. The hashes of a document's blocks,
its chain, are the same in every request. One hash over all tokens of the document finds the chain.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

Hasher = Callable[[Any], list[bytes]]


class HashChains:
    """The chains of the documents that were used last.

    Attributes:
        capacity: The most hashes that are kept, in all chains together.
        num_hashes: The hashes that are kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_hashes = 0
        self._chains: OrderedDict[tuple[Any, ...], list[bytes]] = OrderedDict()  # the one used last is at the end

    def remembering(self, stock: Hasher, block_size: int) -> Hasher:
        """Returns a hasher of blocks that gives the same hashes as another one, and computes each chain once.

        Args:
            stock: vLLM's hasher. It takes a request and returns the hashes of its new whole blocks.
            block_size: The tokens of a block.
        """

        def hasher(request: Any) -> list[bytes]:
            known = len(request.block_hashes)
            end = request.num_tokens // block_size
            if end <= known:
                return []
            tokens = request.all_token_ids[known * block_size : end * block_size]
            before = request.block_hashes[-1] if known else request.cache_salt  # the salt is a part of the first hash
            lora = request.lora_request
            packed = struct.pack(f"{len(tokens)}q", *tokens)
            key = hashlib.sha256(packed).digest(), before, lora and (lora.lora_name, lora.lora_path)
            chain = self._chains.get(key)
            if chain is None:
                chain = stock(request)
                self._keep(key, chain)
            else:
                self._chains.move_to_end(key)
            return list(chain)

        return hasher

    def _keep(self, key: tuple[Any, ...], chain: list[bytes]) -> None:
        self._chains[key] = chain
        self.num_hashes += len(chain)
        while self.num_hashes > self.capacity:
            self.num_hashes -= len(self._chains.popitem(last=False)[1])
