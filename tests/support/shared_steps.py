"""Makes steps in which requests read the same segments at positions of their own."""

from __future__ import annotations

import random
from dataclasses import replace

import lazyrope
import torch

from tests.support.cases import WINDOW, Case, Document, PoolBuilder, Request, Setting, Slice, assemble, poison_unused


def always_shares(config: lazyrope.KernelConfig) -> lazyrope.KernelConfig:
    """Returns the config with which a step shares all that it can, however little this saves."""
    return lazyrope.KernelConfig(
        decode=config.decode,
        prefill=config.prefill,
        min_split_blocks=config.min_split_blocks,
        heads_per_work_tile=config.heads_per_work_tile,
        share_above_kib=0,
    )


def with_private_lists(case: Case, seed: int) -> Case:
    """Returns the case with a page list for each segment, so that only the pages tell which segments are the same."""
    rng = random.Random(seed)
    size = case.setting.page_size
    pages = case.metadata["pages"].tolist()
    lists, first_page = [], []
    columns = (case.metadata[name].tolist() for name in ("first_page", "lead", "length"))
    for first, lead, length in zip(*columns, strict=True):
        lists += [0] * rng.randrange(3)
        first_page.append(len(lists))
        lists += pages[first : first + -(-(lead + length) // size)] or [0]
    ints = {"dtype": torch.int32, "device": case.q.device}
    metadata = case.metadata | {
        "pages": torch.tensor(lists or [0], **ints),
        "first_page": torch.tensor(first_page, **ints),
    }
    return replace(case, metadata=metadata)


def _cuts(length: int) -> list[tuple[int, int]]:
    """Returns slices of a document as (start, length): most of them whole, others that overlap, one empty."""
    middle = (min(9, length), max(length - 20, 0))
    return [(0, length)] * 3 + [middle, (0, max(length - 30, 0)), (length // 3, length - length // 3), (0, 0)]


def _segment(rng: random.Random, document: Document, cuts: dict[int, list[tuple[int, int]]]) -> Slice:
    """Returns one of the document's few cuts, at a base of its own."""
    start, length = rng.choice(cuts[id(document)])
    return Slice(document, rng.choice([rng.randint(-3000, 4000), 1_000_000 + rng.randint(0, 99)]), start, length)


def shared_case(setting: Setting, seed: int, device: str | torch.device, requests: int = 8) -> Case:
    """Returns a step of requests over few documents: whole, in overlapping slices, empty, or twice in one request."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    device = torch.device(device)
    lengths = [rng.choice([64, 65, 130, 200, 400, rng.randint(1, 500)]) for _ in range(rng.randint(1, 3))]
    owns = [rng.randint(1, 60) for _ in range(requests)]
    needed = sum(-(-(n + setting.page_size) // setting.page_size) for n in lengths + owns)
    pool = PoolBuilder(setting, needed + 3, rng, device)
    documents = [pool.add(n, rng.choice([0, rng.randrange(setting.page_size)]), generator) for n in lengths]
    cuts = {id(d): _cuts(d.length) for d in documents}
    made = []
    for own in owns:
        slices = [_segment(rng, rng.choice(documents), cuts) for _ in range(rng.randint(0, 4))]
        count = rng.choice([1, 1, 1, 2, 3, rng.choice([1, 40])])
        first = max((s.base + s.start + s.length for s in slices), default=0) + rng.randint(0, 50)
        if rng.random() < 0.3:  # some documents are not seen as a whole
            first -= rng.randint(0, 300)
        if setting.mask == "chunked" and rng.random() < 0.7:  # short documents fit into a chunk
            chunk = WINDOW * rng.randint(-20, 20)
            first = chunk + rng.randint(66, WINDOW - 4)
            for s in slices:
                s.base = chunk - s.start
        mine = pool.add(own, 0, generator)
        slices.append(Slice(mine, first - own + count, 0, own))
        made.append(Request(list(range(first, first + count)), slices))
    if setting.query_form == "rotated" and setting.key_form == "local" and seed % 3 == 1:
        for s in [s for request in made for s in request.slices]:
            s.shift = rng.randint(-1000, 1000)
    poison_unused(pool, documents, made)
    return assemble(setting, pool, made, generator)
