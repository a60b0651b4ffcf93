"""Stores documents of known raw keys in a paged pool, and makes requests that place them anywhere."""

from __future__ import annotations

import random

import torch

from tests.support.cases import DTYPES, Case, PoolBuilder, Request, Setting, Slice, metadata_of
from tests.support.reference import rotate


class DocumentFixture:
    """Documents whose raw keys are known, and whose stored keys are rotated by their index in the document."""

    def __init__(self, setting: Setting, lengths: list[int], seed: int, device: str, pages: int = 400) -> None:
        self.setting, self.device = setting, torch.device(device)
        self.spec = setting.spec()
        self.generator = torch.Generator().manual_seed(seed)
        self.pool = PoolBuilder(setting, pages, random.Random(seed), self.device)
        self.raw = [self._raw(n) for n in lengths]
        self.documents = [self.add(keys, values, 0) for keys, values in self.raw]

    def _raw(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (length, self.setting.kv_heads, self.setting.head_dim)
        return tuple(torch.randn(shape, generator=self.generator).to(self.device) for _ in range(2))

    def add(self, keys: torch.Tensor, values: torch.Tensor, first_position: int):
        """Stores the values, and the raw keys rotated by first_position, first_position + 1, ..."""
        document = self.pool.add(len(keys), 0, self.generator)
        dtype = DTYPES[self.setting.dtype]
        document.keys = self.rotated(keys, torch.arange(len(keys)) + first_position).to(dtype)
        document.values = values.to(dtype)
        slot = torch.arange(len(keys), device=self.device)
        size = self.setting.page_size
        page = torch.tensor(self.pool.pages, device=self.device)[document.first_page + slot // size]
        self.pool.slots(self.pool.k_pool)[page, slot % size] = document.keys
        self.pool.slots(self.pool.v_pool)[page, slot % size] = document.values
        return document

    def rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        frequencies = torch.tensor(self.spec.frequencies, dtype=torch.float64)
        return rotate(x, positions.to(x.device), frequencies, self.spec.rope.rotary_dim, self.spec.rope_pairing)

    def queries(self, tokens: int) -> torch.Tensor:
        heads = self.setting.group * self.setting.kv_heads
        q = torch.randn((tokens, heads, self.setting.head_dim), generator=self.generator)
        return q.to(DTYPES[self.setting.dtype]).to(self.device)

    def case(self, q: torch.Tensor, requests: list[Request]) -> Case:
        metadata = metadata_of(self.setting, requests, self.pool.pages, self.device)
        return Case(self.setting, self.spec, requests, q, self.pool.k_pool, self.pool.v_pool, metadata)


def in_order(fixture: DocumentFixture, order: list[int], tokens: int) -> Request:
    """Returns a request that sees the documents consecutively from position 0; the queries follow them."""
    slices, base = [], 0
    for i in order:
        document = fixture.documents[i]
        slices.append(Slice(document, base, 0, document.length))
        base += document.length
    return Request(list(range(base, base + tokens)), slices)
