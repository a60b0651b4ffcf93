"""Makes document stores on the CPU, fills pages with values that identify their document, and runs threads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import lazyrope
import torch
from lazyrope.documents import Document, DocumentStore, PageRun

PAGE = 16
LAYERS = 2
PAGE_BYTES = LAYERS * 2 * PAGE * 1 * 64 * 4
SPEC = dict(head_dim=64, num_q_heads=2, num_kv_heads=1, rope=lazyrope.rope.neox())


def make_store(pages: int, **options: Any) -> DocumentStore:
    """Returns a store of float32 pages on the CPU."""
    given = dict(num_layers=LAYERS, budget=pages * PAGE_BYTES, dtype=torch.float32, device="cpu")
    return DocumentStore(lazyrope.AttentionSpec(**SPEC), **(given | options))


def document_tokens(name: int, pages: int) -> list[int]:
    """Returns the tokens of a document that needs `pages` pages. Other names give other tokens."""
    return [name * 1000 + i for i in range(pages * PAGE - name % PAGE)]


def pools(store: DocumentStore) -> list[torch.Tensor]:
    return [pool(layer) for layer in range(LAYERS) for pool in (store.k_pool, store.v_pool)]


def write(store: DocumentStore, pages: Document | PageRun, tag: float) -> None:
    """Fills all pages with ``tag``, plus a different fraction for K and V of each layer."""
    for i, pool in enumerate(pools(store)):
        pool[list(pages.page_ids)] = tag + i / 8


def holds(store: DocumentStore, pages: Document | PageRun, tag: float) -> bool:
    """Returns whether the pages, read through ``store.pages`` as a kernel reads them, have the values of write()."""
    page_list = store.pages[pages.first_page : pages.first_page + pages.num_pages].long()
    return all(bool((pool[page_list] == tag + i / 8).all()) for i, pool in enumerate(pools(store)))


def in_thread(work: Any, *arguments: Any) -> Future[Any]:
    """Runs work in a daemon thread, which cannot hang the tests, and returns its future."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in 10 s"
        time.sleep(0.001)
