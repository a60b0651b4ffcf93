"""The position at which each block of vLLM's KV cache was written.

vLLM rotates a key by the token's position in its own prompt before the key reaches the cache. A block that another
request wrote holds keys rotated by positions of that other prompt. Its home says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import SpecError

Homes = Any  # a NumPy array, int32 [blocks]
NEVER_WRITTEN = -1


class BlockHomes:
    """The home of every block: the position of the token in its slot 0 when the block was last written.

    vLLM frees and reuses blocks without telling a worker. No event is needed: a request writes a block before any
    request reads it, and the write replaces the home. A worker calls :meth:`write` in the order of its passes.

    Attributes:
        block_size: The slots of a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """
        Args:
            num_blocks: The blocks of the KV cache, at least 1.
            block_size: The slots of a block, at least 1.

        Raises:
            SpecError: A number is not allowed.
        """
        if num_blocks < 1 or block_size < 1:
            raise SpecError(f"num_blocks is {num_blocks} and block_size is {block_size}; both must be at least 1")
        self.block_size = block_size
        self._homes: Homes = np.full(num_blocks, NEVER_WRITTEN, dtype=np.int32)

    def __repr__(self) -> str:
        return f"BlockHomes(num_blocks={len(self._homes)}, block_size={self.block_size})"

    def write(self, writes: Iterable[tuple[Sequence[int], int, int]]) -> None:
        """Records what requests write in one pass, each at its own positions.

        A block gets its home when its slot 0 is written. The request writes the other slots of it, too.

        Args:
            writes: Three values for each request. The first one is its block table: integers, [blocks], where block j
                holds the positions from ``j * block_size`` on. The second one is the position of the first written
                token, at least 0, and the third one the number of written tokens, at least 0.

        Raises:
            SpecError: The tokens of a request are not all in its blocks, or a block is not in the cache.
        """
        size = self.block_size
        written: list[int] = []
        homes: list[int] = []
        for blocks, first_token, num_tokens in writes:
            first, after_last = -(-first_token // size), -(-(first_token + num_tokens) // size)
            if first_token < 0 or num_tokens < 0 or (num_tokens > 0 and after_last > len(blocks)):
                raise SpecError(
                    f"tokens {first_token} to {first_token + num_tokens - 1} are written; the request's {len(blocks)} "
                    f"blocks hold tokens 0 to {len(blocks) * size - 1}"
                )
            if first < after_last:  # in decode, mostly no block begins
                written += blocks[first:after_last]
                homes += range(first * size, after_last * size, size)
        if written:
            self.write_blocks(written, homes)

    def write_blocks(self, blocks: Any, homes: Any) -> None:
        """Records that requests write blocks from slot 0 on.

        Args:
            blocks: The blocks, integers, [blocks]. If a block appears twice, its last home counts.
            homes: The position of the token in slot 0 of each block, integers, [blocks].

        Raises:
            SpecError: A block is not in the cache.
        """
        self._homes[self._checked(blocks)] = homes

    def peek(self, blocks: Any) -> Homes:
        """Returns the homes of blocks, int32 [blocks], which may be NEVER_WRITTEN.

        Raises:
            SpecError: A block is not in the cache.
        """
        homes: Homes = self._homes[self._checked(blocks)]
        return homes

    def read(self, blocks: Any) -> Homes:
        """Returns the homes of blocks, int32 [blocks].

        Raises:
            SpecError: A block is not in the cache, or it was never written.
        """
        wanted = self._checked(blocks)
        homes = self._homes[wanted]
        unknown = wanted[homes == NEVER_WRITTEN]
        if len(unknown):
            block = int(unknown[0])
            raise SpecError(
                f"block {block} is read and was never written in this process: documents work only with KV that this "
                "vLLM computes itself, not with KV that a connector loads"
            )
        return homes

    def _checked(self, blocks: Any) -> Any:
        result = np.asarray(blocks, dtype=np.int64)
        if len(result) and not (0 <= int(result.min()) and int(result.max()) < len(self._homes)):
            raise SpecError(f"blocks {result.min()} to {result.max()} are given; the cache has {len(self._homes)}")
        return result
