"""Documents and traces that memories are fitted to: from an engine that runs a model, or from tensors."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .._core import AttentionSpec, LayerGroup
from .._keys import Keys, int64_array
from ..errors import SpecError, StoreFull
from .scores import Scores

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor

REPEAT = "repeat"
BLOCK = 32  # neighbouring trace tokens are alike, so runs of this length are held out together


@dataclass(frozen=True)
class Source:
    """A document's keys and values, and the queries of its traces.

    Attributes:
        specs: The spec of each layer.
        keys: Each layer's keys, rotated by their index in the document, [tokens, kv_heads, d].
        values: Each layer's values, of the same shape.
        queries: Each layer's queries, [traces, q_heads, d], rotated by their positions where the document's token 0 is
            at position 0.
        model: A hexadecimal hash of the model: its name, layers, RoPE and dtype.
        digest: A hexadecimal hash of the model, the document and the traces.
    """

    specs: Sequence[AttentionSpec]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    queries: Sequence[Tensor]
    model: str
    digest: str

    @property
    def num_tokens(self) -> int:
        return len(self.keys[0])

    @property
    def num_traces(self) -> int:
        return len(self.queries[0])


def source_of(attention: Any, document: Any, traces: Any) -> Source:
    """Returns the document and the queries of its traces.

    Raises:
        SpecError: A value is not allowed or not finite, or the attention is of a kind that has no memories.
        StoreFull: The engine's store has no room for the document.
    """
    source = _source_of(attention, document, traces)
    _check_finite(source)
    return source


def _source_of(attention: Any, document: Any, traces: Any) -> Source:
    if hasattr(attention, "record") and hasattr(attention, "store"):
        return _of_engine(attention, document, traces)
    spec = attention if isinstance(attention, AttentionSpec) else getattr(attention, "spec", None)
    if not isinstance(spec, AttentionSpec):
        raise SpecError(
            f"attention is {attention!r:.80}; it must be an engine of lazyrope.transformers, a kernel of "
            "lazyrope.compile(), or an AttentionSpec"
        )
    return _of_tensors(spec, document, traces)


def refuse_unfit(spec: AttentionSpec, layer: int) -> None:
    """Raises SpecError if documents of this spec have no memories."""
    where = f"layer {layer} has"
    if spec.mask not in ("causal", "full"):
        raise SpecError(
            f'{where} mask = "{spec.mask}"; a memory stands for a document that every query sees as a whole: masks '
            "causal and full have memories"
        )
    if spec.key_form != "local":
        raise SpecError(
            f'{where} key_form = "{spec.key_form}"; a key of a memory is in another slot than its token, so it must be '
            'rotated by its index in the document: key_form = "local"'
        )
    if spec.temperature is not None and spec.query_form == "raw":
        raise SpecError(
            f'{where} temperature with query_form = "raw": the kernel multiplies raw queries by it, and a memory is '
            'fitted to rotated ones. Multiply the queries by it before the call, and give query_form = "rotated"'
        )
    if spec.kv_dtype != spec.dtype:
        raise SpecError(
            f'{where} kv_dtype = "{spec.kv_dtype}"; memories are of pools in the model\'s own dtype, "{spec.dtype}"'
        )


def held_out(traces: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Returns the trace tokens to fit to and those to measure on, int64, both ascending.

    Raises:
        SpecError: There are too few traces.
    """
    block = max(1, min(BLOCK, traces // 20))
    blocks = -(-traces // block)
    held = max(1, round(share * blocks))
    if held >= blocks:
        raise SpecError(f"traces have {traces} tokens; holdout = {share:g} leaves none to fit to. Give more traces")
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed))
    is_held = torch.zeros(blocks, dtype=torch.bool)
    is_held[order[:held]] = True
    is_held = is_held.repeat_interleave(block)[:traces]
    return (~is_held).nonzero().squeeze(1), is_held.nonzero().squeeze(1)


def _of_engine(engine: Any, document: Any, traces: Any) -> Source:
    tokens = engine._encode("document", document)
    if not tokens:
        raise SpecError("document is empty; it must have at least one token")
    specs = _specs_of(engine._runner.backend)
    for layer, spec in enumerate(specs):
        refuse_unfit(spec, layer)
    texts = _texts(engine, tokens, traces)
    queries = _joined([engine.record(text, [tokens]) for text in texts])
    with _stored(engine.store, tokens) as stored:
        keys, values = ([_gathered(pool(i), stored) for i in range(len(specs))] for pool in _pools(engine.store))
    model = engine.store.model_key
    digest = _digest(model, *(int64_array(text).tobytes() for text in (tokens, *texts)))
    return Source(specs, keys, values, queries, model, digest)


def _joined(recorded: list[list[Tensor]]) -> list[Tensor]:
    """Returns each layer's queries of all texts, and takes them out of the given lists, so that they exist once."""
    return [torch.cat([layers.pop(0) for layers in recorded]) for _ in range(len(recorded[0]))]


def _specs_of(backend: Any) -> list[AttentionSpec]:
    return [backend.kernels[backend.group_of(layer)].spec for layer in range(backend.num_layers)]


def _pools(store: Any) -> tuple[Any, Any]:
    return store.k_pool, store.v_pool


@contextmanager
def _stored(store: Any, tokens: Sequence[int]) -> Iterator[Any]:
    """Yields the document that the traces have just read."""
    document = store.lookup(tokens)
    if document is None:
        raise StoreFull("the document was evicted while its traces ran; raise the budget of the store")
    try:
        document.wait()
        yield document
    finally:
        store.release(document)


def _gathered(pool: Tensor, document: Any) -> Tensor:
    pages = torch.tensor(document.page_ids, device=pool.device)
    return pool[pages].flatten(0, 1)[: document.num_tokens].clone()


def _texts(engine: Any, tokens: Sequence[int], traces: Any) -> list[list[int]]:
    """Returns the token lists of the traces: each is run after the document."""
    if isinstance(traces, str):
        if traces != REPEAT:
            raise SpecError(f'traces = {traces!r:.80}; it must be "{REPEAT}", or a list of texts or of token ids')
        return [list(tokens)]
    if not isinstance(traces, Iterable) or isinstance(traces, bytes):
        raise SpecError(f'traces = {traces!r:.80}; it must be "{REPEAT}", or a list of texts or of token ids')
    texts = [text for each in traces if (text := engine._encode("traces", each))]
    if not texts:
        raise SpecError("traces have no tokens; give texts like those of the requests that will read the memory")
    return texts


def _of_tensors(spec: AttentionSpec, document: Any, traces: Any) -> Source:
    """Returns the source of tensors: a pair (keys, values) for each layer, and queries for each layer."""
    pairs = _of_layers("document", document, tuple)
    queries = _of_layers("traces", traces, torch.Tensor)
    if len(pairs) != len(queries):
        raise SpecError(f"document has {len(pairs)} layers and traces {len(queries)}; both must have the same")
    refuse_unfit(spec, 0)
    kv, q = (spec.num_kv_heads, spec.head_dim), (spec.num_q_heads, spec.head_dim)
    for name, tensors, heads in (
        ("keys", [k for k, _ in pairs], kv),
        ("values", [v for _, v in pairs], kv),
        ("traces", queries, q),
    ):
        for layer, tensor in enumerate(tensors):
            _check_tensor(f"{name} of layer {layer}", tensor, (len(tensors[0]), *heads))
    if len(pairs[0][0]) != len(pairs[0][1]):
        raise SpecError(f"keys have {len(pairs[0][0])} tokens and values {len(pairs[0][1])}; both must have the same")
    dtype, layers = pairs[0][0].dtype, len(pairs)
    model = Keys((LayerGroup(spec, range(layers)),), "", dtype).model
    tensors = [tensor for pair, query in zip(pairs, queries, strict=True) for tensor in (*pair, query)]
    digest = _digest(model, *(_bytes_of(tensor) for tensor in tensors))
    return Source([spec] * layers, [k for k, _ in pairs], [v for _, v in pairs], queries, model, digest)


def _of_layers(name: str, given: Any, kind: type) -> list[Any]:
    """Returns a list of one entry for each layer. One entry alone is that of a single layer."""
    entries = [given] if isinstance(given, kind) else given
    what = "a pair (keys, values)" if kind is tuple else "a tensor of queries"
    if isinstance(entries, list) and entries and all(isinstance(each, kind) for each in entries):
        if kind is torch.Tensor or all(len(each) == 2 for each in entries):
            return entries
    raise SpecError(f"{name} is {type(given).__name__}; without an engine it must be {what}, or a list of one a layer")


def _check_tensor(name: str, tensor: Any, shape: tuple[int, ...]) -> None:
    is_tensor = isinstance(tensor, torch.Tensor) and tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1
    if not is_tensor or tuple(tensor.shape) != shape or len(tensor) == 0:
        given = f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else repr(tensor)[:80]
        raise SpecError(
            f"{name} is {given}; it must be floating-point {list(shape)} of at least 16 bits, with a token or more"
        )


def _check_finite(source: Source) -> None:
    for name, tensors in (("keys", source.keys), ("values", source.values), ("queries", source.queries)):
        for layer, tensor in enumerate(tensors):
            if not tensor.isfinite().all():
                raise SpecError(
                    f"the {name} of layer {layer} have NaN or infinite elements; a memory is fitted to finite ones. "
                    "Look for an overflow in the model, or for slots that nothing has written"
                )


def _bytes_of(tensor: Tensor) -> bytes:
    """Returns bytes that identify a tensor's elements: sums of their bits, computed on its device.

    Each sum is of one column with weights that are odd and differ from row to row, modulo 2^64. A copy of all elements
    to the host would take longer than the construction.
    """
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    flat = tensor.detach().contiguous().view(bits).flatten(1).long()
    weights = torch.arange(len(flat), device=flat.device) * 0x9E3779B97F4A7C + 1
    sums: bytes = torch.stack([(flat * weights[:, None]).sum(0), flat.sum(0)]).cpu().numpy().tobytes()
    return repr(tuple(tensor.shape)).encode() + sums


def _digest(*fields: str | bytes) -> str:
    digest = hashlib.sha256()
    for field in fields:
        data = field.encode() if isinstance(field, str) else field
        # The length before each field makes the bytes unambiguous.
        digest.update(struct.pack("<Q", len(data)))
        digest.update(data)
    return digest.hexdigest()


def key_of(source: Source, arguments: dict[str, Any]) -> str:
    """Returns the content hash of a memory: model, RoPE, scores, document, traces, and all arguments with the seed."""
    scores = [Scores.of(spec) for spec in source.specs]
    return _digest(source.digest, repr(scores), repr(sorted(arguments.items())))
