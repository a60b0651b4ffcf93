"""The rows of ``python -m tools.bench shared``: steps in which several requests read the same documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lazyrope.bench import shared as user
from lazyrope.bench.shared import ANY_ORDER

from tools.bench.limits import Limit, aim
from tools.bench.prefix_peers import PREFIX_PEERS
from tools.bench.shapes import Shape

ONE_DOCUMENT: dict[str, Any] = {"stored": 1, "peers": PREFIX_PEERS}  # it is a prefix of every request
ALONE = {"alone": {"cascade": False}}  # each request reads its documents itself


@dataclass(frozen=True)
class SharedShape(user.SharedShape, Shape):
    """A step of ``lazyrope bench shared`` with the settings, variants and limits of this project's shapes."""


def _shared(batch: int, documents: int, *factors: float, query_tokens: int = 1, **options: Any) -> SharedShape:
    """Returns a row with the required and the aimed share of the time that the step takes without a cascade."""
    doc_tokens = options.setdefault("doc_tokens", 2048)
    kinds = (Limit, aim)
    limits = tuple(kind("alone", factor=factor) for kind, factor in zip(kinds, factors, strict=False))
    fields = {"variants": ALONE, "peers": (), "limits": limits} | options
    kernel = "decode" if query_tokens * 4 <= 16 else "prefill"
    return SharedShape(kernel, batch, query_tokens, documents * doc_tokens, **fields)


def _required() -> list[SharedShape]:
    return [
        _shared(32, 5, 0.52, 0.45, stored=100, zipf=1.1),
        _shared(32, 5, 0.33, 0.27, stored=100, zipf=2.1),
        _shared(128, 5, 0.28, 0.21, stored=100, zipf=1.1),
        _shared(128, 5, 0.23, 0.16, stored=100, zipf=2.1),
        _shared(32, 1, 0.15, 0.10, **ONE_DOCUMENT, doc_tokens=16384),
        _shared(128, 1, 0.085, 0.06, **ONE_DOCUMENT, doc_tokens=16384),
        _shared(256, 1, 0.11, 0.075, **ONE_DOCUMENT, doc_tokens=8192),
        _shared(32, 5, 1.01, 1.00),
        _shared(8, 5, 0.78, 0.68, stored=100, zipf=1.1),
        _shared(128, 5, 0.30, 0.20, query_tokens=4, stored=5, zipf=ANY_ORDER),
        _shared(64, 5, 0.75, 0.62, query_tokens=16, stored=5, zipf=ANY_ORDER),
        _shared(32, 16, 1.01, query_tokens=64, stored=16, zipf=ANY_ORDER, doc_tokens=1024),
    ]


def _sweeps() -> list[SharedShape]:
    counts = [2**i for i in range(10) if 2**i != 256]  # 256 is among the required rows
    rows = [_shared(count, 1, **ONE_DOCUMENT, doc_tokens=8192) for count in counts]
    rows += [_shared(64, 5, stored=100, zipf=zipf) for zipf in (0.0, 0.6, 1.1, 1.6, 2.1)]
    rows += [_shared(64, 16384 // n, stored=16384 // n, zipf=ANY_ORDER, doc_tokens=n) for n in (256, 1024, 4096)]
    for head_dim in (64, 256):
        rows.append(_shared(64, 5, stored=100, zipf=1.1, head_dim=head_dim))
    for heads in ((8, 8), (64, 8)):
        rows.append(_shared(64, 5, stored=100, zipf=1.1, heads=heads))
    rows.append(_shared(64, 5, stored=100, zipf=1.1, kv_dtype="float8_e4m3fn"))
    return rows


def shared() -> list[SharedShape]:
    return _required() + _sweeps()
