"""The interface of :func:`lazyrope.compile` in plain PyTorch: no kernels, any device, any floating dtype.

    kernel = lazyrope.eager.compile(spec)  # plan, plan_append, append and the call, as in lazyrope.compile(spec)
    step = kernel.plan(q_indptr, q_position, segments, pages)
    out, lse = kernel(q, k_pool, v_pool, step)

It serves machines without a GPU, and checks results of the kernels. Scores, softmax and sums are computed in float32,
and results are rounded once, also with ``compute="float8"``. Pools of 8 bits may have scales. A step is made from
device tensors or from a :class:`lazyrope.Batch`, whose ``pages`` must be a tensor of PyTorch. On the CPU, a batch needs
a build with the emulator. Planning reads metadata back to the host, so a captured CUDA graph cannot serve other
requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from ._arguments import AppendCapacity, Segments, StepCapacity, TokenSlots, TokenSpans
from ._checks import checked
from ._core import AttentionSpec, Batch
from ._eager_bias import read_key_bias
from ._eager_mass import MassPages, MassSum, counted_tokens
from ._eager_pool import Slots, Tokens, gather, read, scatter, tokens_of
from ._eager_scores import HIDDEN, modified, softmax_of
from ._eager_states import EntryLse, Memory, look_up, memories_of
from ._overloads import bound, check_format, check_ints, check_tensor, check_type, ints, only, step_tensors
from .errors import SpecError

__all__ = ["EagerAppendStep", "EagerAttention", "EagerReposition", "EagerStep", "compile", "compile_reposition"]

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor

# The most numbers of scores, rows x keys x heads, or of rotated queries that are computed at once.
MAX_SCORES = 1 << 24


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, pairing: str) -> Tensor:
    """Rotates the pairs of the last dimension in float32. Columns in no pair are copied.

    Args:
        x: The input, [..., head_dim].
        cosine: The cosines of the angles, float32 [..., n] for n pairs, broadcast against x.
        sine: The sines of the angles, of the same shape.
        pairing: As :attr:`lazyrope.AttentionSpec.rope_pairing`: "half" (columns i and i + n) or "interleaved" (columns
            2i and 2i + 1).

    Returns:
        The rotated tensor, float32 [..., head_dim].
    """
    n = cosine.shape[-1]
    x = x.float()
    if n == 0:
        return x
    a, b = (x[..., :n], x[..., n : 2 * n]) if pairing == "half" else (x[..., 0 : 2 * n : 2], x[..., 1 : 2 * n : 2])
    rotated = a * cosine - b * sine, b * cosine + a * sine
    columns = torch.cat(rotated, dim=-1) if pairing == "half" else torch.stack(rotated, dim=-1).flatten(-2)
    if 2 * n == x.shape[-1]:
        return columns
    rest = x[..., 2 * n :].expand(*columns.shape[:-1], -1)
    return torch.cat([columns, rest], dim=-1)


@dataclass
class _Segment:
    keys: slice  # the segment's keys among its request's keys
    end: int  # the logical position after its last key
    is_memory: bool


@dataclass
class _Request:
    rows: slice  # the request's rows of q
    counted: int  # the first of them whose attention counts in the masses of pages
    positions: Tensor  # [rows], int64
    first: int  # the lowest of the positions
    bases: Tensor  # [segments]
    segments: list[_Segment]
    keys: slice  # the request's keys among the step's keys
    memories: list[Memory]
    cos_sin: tuple[Tensor, Tensor] | None = None  # the cosines and sines for each segment, made at first use


class EagerStep:
    """A step for :class:`EagerAttention`, like :class:`lazyrope.Step`. It has no capacity."""

    def __init__(self, page_size: int, layout: str) -> None:
        check_format(page_size, layout)
        self.page_size = page_size
        self.layout = layout
        self.num_tokens = 0
        self.has_mask_base = False
        self.requests: list[_Request] = []
        self.tokens: Tokens
        self.key_positions: Tensor  # [keys], int64
        self.mass_pages: MassPages

    def __repr__(self) -> str:
        return f"EagerStep(num_tokens={self.num_tokens}, page_size={self.page_size}, layout={self.layout!r})"

    @overload
    def update(
        self,
        q_indptr: Tensor,
        q_position: Tensor,
        segments: Segments,
        pages: Tensor,
        *,
        check: bool = False,
        stream: int | None = None,
    ) -> None: ...
    @overload
    def update(self, batch: Batch, *, check: bool = False, stream: int | None = None) -> None: ...
    @checked
    def update(self, *given: Any, check: bool = False, stream: int | None = None, **named: Any) -> None:
        """Refills the step, as :meth:`lazyrope.Step.update` does: with device tensors, or with a batch alone.

        ``check`` and ``stream`` are ignored.
        """
        q_indptr, q_position, segments, pages = step_tensors(given, named)
        check_tensor("pages", pages)
        rows, spans = ints("q_indptr", q_indptr), ints("segments.indptr", segments.indptr)
        lengths = ints("segments.length", segments.length)
        starts, q_positions = ints("segments.start", segments.start), ints("q_position", q_position)
        check_ints("segments.first_page", segments.first_page)
        check_ints("segments.base", segments.base)
        self.tokens = tokens_of(lengths, segments.first_page, segments.lead, pages, self.page_size)
        base: Tensor = segments.base
        mask_base = base if segments.mask_base is None else segments.mask_base
        check_ints("segments.mask_base", mask_base)
        if len(mask_base) != len(base):
            raise SpecError(f"segments.mask_base has {len(mask_base)} elements; it must have {len(base)}")
        self.has_mask_base = segments.mask_base is not None
        self.key_positions = (mask_base.long() + segments.start)[self.tokens.run] + self.tokens.offset
        positions, at, firsts = q_position.long(), 0, ints("segments.mask_base", mask_base)
        self.mass_pages = MassPages(lengths, segments.lead, self.tokens)
        codes = [0] * len(lengths) if segments.memory is None else ints("segments.memory", segments.memory)
        counts = counted_tokens(segments.mass_tokens, len(rows) - 1, len(q_position))
        self.requests = []
        for (row, last_row), (begin, end), count in zip(pairwise(rows), pairwise(spans), counts, strict=True):
            mine, first = [], at
            for s in range(begin, end):
                keys = slice(at - first, at - first + lengths[s])
                mine.append(_Segment(keys, firsts[s] + starts[s] + lengths[s], codes[s] != 0))
                at += lengths[s]
            own = slice(row, last_row)
            lowest = min(q_positions[own], default=0)
            keys, counted = slice(first, at), max(row, last_row - max(0, count))
            memories = memories_of(codes[begin:end], [segment.keys for segment in mine])
            self.requests.append(_Request(own, counted, positions[own], lowest, base[begin:end], mine, keys, memories))
        self.num_tokens = rows[-1]


class EagerAppendStep:
    """An append step for :class:`EagerAttention`, like :class:`lazyrope.AppendStep`.

    Attributes:
        capacity: The most that the step can hold.
        page_size: Slots of a page.
        layout: "NHD" or "HND".
        num_rows: The fewest rows that k and v must have.
        rows: The rows of k and v that are stored, int64 [stored]. A slot mapping may skip rows.
        index: The index of each of these rows in its document, int64 [stored].
        slots: The slots of these rows in the pool.
    """

    def __init__(self, capacity: AppendCapacity, page_size: int, layout: str) -> None:
        check_format(page_size, layout)
        self.capacity = capacity
        self.page_size = page_size
        self.layout = layout
        self.num_rows = 0
        self.rows = self.index = torch.empty(0, dtype=torch.int64)
        self.slots = Slots(self.index, self.index, page_size)

    def __repr__(self) -> str:
        return f"EagerAppendStep(capacity={self.capacity}, page_size={self.page_size}, layout={self.layout!r})"

    @overload
    def update(self, spans: TokenSpans, pages: Tensor, *, check: bool = False, stream: int | None = None) -> None: ...
    @overload
    def update(self, slots: TokenSlots, *, check: bool = False, stream: int | None = None) -> None: ...
    @checked
    def update(self, *given: Any, check: bool = False, stream: int | None = None, **named: Any) -> None:
        """Refills the step, as :meth:`lazyrope.AppendStep.update` does: with spans and pages, or with slots alone.

        ``check`` and ``stream`` are ignored.
        """
        slots = only(given, named, "slots", TokenSlots)
        if slots is not None:
            self._update_slots(slots)
        else:
            message = "give a lazyrope.TokenSpans and pages, or a lazyrope.TokenSlots alone"
            self._update_spans(*bound(("spans", "pages"), given, named, message))

    def _update_spans(self, spans: TokenSpans, pages: Tensor) -> None:
        check_type("spans", spans, TokenSpans)
        check_tensor("pages", pages)
        indptr = ints("spans.indptr", spans.indptr)
        self._check_capacity(indptr[-1])
        check_ints("spans.start", spans.start)
        check_ints("spans.first_page", spans.first_page)
        if spans.lead is not None:
            check_ints("spans.lead", spans.lead)
        counts = [end - begin for begin, end in pairwise(indptr)]
        tokens = tokens_of(counts, spans.first_page, spans.lead, pages, self.page_size)
        start: Tensor = spans.start
        self.index = start.long()[tokens.run] + tokens.offset
        self.slots = tokens.slots
        self.rows = torch.arange(indptr[-1], device=self.index.device)
        self.num_rows = indptr[-1]

    def _update_slots(self, slots: TokenSlots) -> None:
        slot_mapping: Tensor = slots.slot_mapping
        index: Tensor = slots.index
        for name, tensor in (("slots.slot_mapping", slot_mapping), ("slots.index", index)):
            check_ints(name, tensor, torch.int64)
        if len(index) != len(slot_mapping):
            raise SpecError(f"slots.index has {len(index)} elements; it must have {len(slot_mapping)}")
        self._check_capacity(len(slot_mapping))
        self.rows = (slot_mapping >= 0).nonzero().squeeze(-1)
        self.num_rows = int(self.rows[-1]) + 1 if len(self.rows) else 0
        self.index = index[self.rows]
        slot = slot_mapping[self.rows]
        self.slots = Slots(slot // self.page_size, slot % self.page_size, self.page_size)

    def _check_capacity(self, tokens: int) -> None:
        if tokens > self.capacity.tokens:
            raise SpecError(f"{tokens} tokens to append; the step's capacity is {self.capacity.tokens}")


class _RopeAttention:
    """The rotation, pools and scales that attention and reposition share."""

    def __init__(self, spec: AttentionSpec) -> None:
        if spec.mask not in HIDDEN:
            raise SpecError(f'mask "{spec.mask}" is not supported in plain PyTorch; allowed are: {", ".join(HIDDEN)}')
        if spec.rope_pairing not in ("none", "half", "interleaved"):
            raise SpecError(
                f'RoPE pairing "{spec.rope_pairing}" is not supported in plain PyTorch; allowed are: half, interleaved'
            )
        self.spec = spec
        self._frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec})"

    def cos_sin(self, positions: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        """Returns the cosine and the sine of the angles at integer positions, times factor.

        Args:
            positions: Integer positions, [...].
            factor: The attention factor.

        Returns:
            Cosine and sine, each float32 [..., rotary_dim / 2].
        """
        angle = positions.double()[..., None] * self._frequencies.to(positions.device)
        return (angle.cos() * factor).float(), (angle.sin() * factor).float()

    def rotate(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
        """Rotates x by :meth:`cos_sin` in the spec's pairing, in float32."""
        return rotate(x, *cos_sin, self.spec.rope_pairing)

    def _pool(self, name: str, pool: Tensor) -> Tensor:
        """Returns the pool, viewed as the spec's kv_dtype if that has 8 bits."""
        if self.spec.kv_dtype == self.spec.dtype:
            return pool
        dtype = getattr(torch, self.spec.kv_dtype)
        if pool.dtype not in (dtype, torch.uint8):
            raise SpecError(f"{name} is {pool.dtype}; it must be {dtype}, or uint8")
        return pool.view(dtype)

    def _scale(self, name: str, scale: Tensor | None) -> Tensor | None:
        """Returns the scale in a shape that broadcasts against [tokens, kv_heads, head_dim], or None for 1."""
        if scale is None:
            return None
        if self.spec.kv_dtype == self.spec.dtype:
            raise SpecError(f"{name} is given; a pool of {self.spec.dtype} has no scales")
        is_one = scale.numel() == 1
        is_per_head = tuple(scale.shape) == (self.spec.num_kv_heads,) and scale.is_contiguous()
        if scale.dtype != torch.float32 or not (is_one or is_per_head):
            wanted = f"float32, one element or [kv_heads] = [{self.spec.num_kv_heads}], contiguous"
            raise SpecError(f"{name} is {scale.dtype} {list(scale.shape)}; it must be {wanted}")
        return scale.reshape(-1, 1)


class EagerAttention(_RopeAttention):
    """The attention of a spec in plain PyTorch, like :class:`lazyrope.Attention`.

    Tensors may have any floating dtype. The pools have the dtype of q, or the spec's kv_dtype if that has 8 bits.
    """

    arch = "eager"

    @overload
    def plan(
        self,
        q_indptr: Tensor,
        q_position: Tensor,
        segments: Segments,
        pages: Tensor,
        *,
        page_size: int = 16,
        layout: Literal["NHD", "HND"] = "NHD",
        capacity: StepCapacity | None = None,
        check: bool = False,
        stream: int | None = None,
    ) -> EagerStep: ...
    @overload
    def plan(
        self,
        batch: Batch,
        *,
        page_size: int = 16,
        layout: Literal["NHD", "HND"] = "NHD",
        capacity: StepCapacity | None = None,
        check: bool = False,
        stream: int | None = None,
    ) -> EagerStep: ...
    @checked
    def plan(
        self,
        *given: Any,
        page_size: int = 16,
        layout: Literal["NHD", "HND"] = "NHD",
        capacity: StepCapacity | None = None,
        check: bool = False,
        stream: int | None = None,
        **named: Any,
    ) -> EagerStep:
        """Makes a step, as :meth:`lazyrope.Attention.plan` does: from device tensors, or from a batch alone.

        ``capacity``, ``check`` and ``stream`` are ignored.
        """
        step = EagerStep(page_size, layout)
        step.update(*given, **named)
        return step

    @checked
    def __call__(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        step: EagerStep,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = True,
        sinks: Tensor | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        page_mass: Tensor | None = None,
        key_bias: Tensor | None = None,
        entry_lse: Tensor | None = None,
        check: bool = False,
        stream: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes attention, as :meth:`lazyrope.Attention.__call__` does. ``check`` and ``stream`` are ignored."""
        k_pool, v_pool = self._pool("k_pool", k_pool), self._pool("v_pool", v_pool)
        k_scale, v_scale = self._scale("k_scale", k_scale), self._scale("v_scale", v_scale)
        heads = (self.spec.num_q_heads, self.spec.head_dim)
        if q.dim() != 3 or tuple(q.shape[1:]) != heads or q.shape[0] < step.num_tokens:
            raise SpecError(f"q is {list(q.shape)}; it must be [{step.num_tokens} or more, {heads[0]}, {heads[1]}]")
        if lse is None and return_lse:
            lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        if out is None:
            out = torch.empty_like(q)
        if step.has_mask_base and self.spec.query_form == "raw" and self.spec.rope_pairing != "none":
            raise SpecError('segments.mask_base with query_form = "raw"; give rotated queries, or no mask_base')
        if step.has_mask_base and self.spec.key_form == "raw":
            raise SpecError('segments.mask_base with key_form = "raw"; store local keys, or give no mask_base')
        if (sinks is not None) != self.spec.sinks or (sinks is not None and tuple(sinks.shape) != heads[:1]):
            raise SpecError(f"sinks must be [{heads[0]}] if the spec has sinks, and None otherwise")
        masses = MassSum(self.spec, step.mass_pages, page_mass)
        entries = EntryLse(self.spec, entry_lse, k_pool, step)
        keys = self._keys(read(k_pool, step.layout, step.tokens.slots, k_scale), step, q.dtype).permute(1, 2, 0)
        values = read(v_pool, step.layout, step.tokens.slots, v_scale).transpose(0, 1)
        biases = read_key_bias(self.spec, key_bias, len(k_pool), step.tokens.slots, step.page_size)
        for request in step.requests:
            k, v, seen = keys[..., request.keys], values[:, request.keys], step.key_positions[request.keys]
            numbers = max(k.shape[-1], len(request.segments) * heads[1])  # for each row: scores or rotated queries
            rows = max(1, MAX_SCORES // max(1, heads[0] * numbers))
            for begin in range(request.rows.start, request.rows.stop, rows):
                at = slice(begin, min(begin + rows, request.rows.stop))
                score = self._scores(q, at, k, seen, request, None if biases is None else biases[:, request.keys])
                for memory in request.memories:
                    look_up(score, memory, entries.of(request.keys))
                weights, lse_rows = softmax_of(score, sinks, lse is not None)
                out[at] = (weights.flatten(1, 2) @ v).unflatten(1, score.shape[1:3]).permute(2, 0, 1, 3).flatten(1, 2)
                if lse is not None and lse_rows is not None:
                    lse[at] = lse_rows.permute(2, 0, 1, 3).flatten(1)
                masses.add(weights[:, :, max(0, request.counted - begin) :], request.keys)
        masses.store()
        return out, lse

    def _keys(self, stored: Tensor, step: EagerStep, dtype: torch.dtype) -> Tensor:
        """Returns the keys of a step, float32 [keys, kv_heads, head_dim]. Raw ones are rotated by their positions."""
        if self.spec.key_form == "local":
            return stored
        angles = self.cos_sin(step.key_positions[:, None], self.spec.attention_factor)
        return self.rotate(stored, angles).to(dtype).float()

    def _scores(
        self, q: Tensor, rows: slice, k: Tensor, key_positions: Tensor, request: _Request, bias: Tensor | None
    ) -> Tensor:
        """Computes the scores of some rows of one request. Those of keys that a query does not see are -inf.

        Args:
            q: The queries of the whole step.
            rows: The rows of q to compute.
            k: The request's keys, float32 [kv_heads, head_dim, keys].
            key_positions: The logical positions of the keys, [keys].
            request: The request.
            bias: The bias of the keys, float32 [kv_heads, keys], or None.

        Returns:
            The scores, float32 [kv_heads, group, rows, keys].
        """
        mine = slice(rows.start - request.rows.start, rows.stop - request.rows.start)
        count, kv_heads, group = rows.stop - rows.start, k.shape[0], self.spec.group_size
        rotated = self._rotated_queries(q[rows], mine, request) * self.spec.scale
        packed = rotated.unflatten(2, (kv_heads, group)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        parts = [own @ k[..., segment.keys] for own, segment in zip(packed, request.segments, strict=True)]
        nothing = k.new_empty((kv_heads, group * count, 0))  # for requests without segments
        score = (parts[0] if len(parts) == 1 else torch.cat([nothing, *parts], dim=-1)).unflatten(1, (group, count))
        score = modified(self.spec, score, request.positions[mine], bias)
        for segment in request.segments:
            hides = HIDDEN[self.spec.mask]
            if segment.is_memory:
                continue
            if hides is not None and self._may_hide(segment, request):
                hidden = hides(self.spec, request.positions[mine, None], key_positions[segment.keys])
                score[..., segment.keys].masked_fill_(hidden, -torch.inf)
        return score

    def _may_hide(self, segment: _Segment, request: _Request) -> bool:
        """Returns False if the mask surely lets all queries of the request see the whole segment."""
        if self.spec.mask == "causal":
            return segment.end > request.first + 1
        return HIDDEN[self.spec.mask] is not None

    def _rotated_queries(self, q: Tensor, rows: slice, request: _Request) -> Tensor:
        """Returns the queries rotated for the keys of each segment, after one rounding to their own dtype.

        Args:
            q: The queries, [rows, q_heads, head_dim].
            rows: Their rows among those of the request.
            request: The request.

        Returns:
            The rotated queries, float32 [segments, rows, q_heads, head_dim].
        """
        is_rotated = self.spec.query_form == "rotated"
        if request.cos_sin is None:  # every layer rotates by the same angles
            positions = torch.zeros_like(request.positions[:1]) if is_rotated else request.positions
            factor = 1.0 if is_rotated else self.spec.attention_factor
            bases = request.bases if self.spec.key_form == "local" else torch.zeros_like(request.bases)
            request.cos_sin = self.cos_sin((positions - bases[:, None])[..., None], factor)
        cosine, sine = request.cos_sin if is_rotated else (t[:, rows] for t in request.cos_sin)
        return self.rotate(q, (cosine, sine)).to(q.dtype).float().expand(len(request.segments), *q.shape)

    @overload
    def plan_append(
        self,
        spans: TokenSpans,
        pages: Tensor,
        *,
        capacity: AppendCapacity,
        page_size: int = 16,
        layout: Literal["NHD", "HND"] = "NHD",
        check: bool = False,
        stream: int | None = None,
    ) -> EagerAppendStep: ...
    @overload
    def plan_append(
        self,
        slots: TokenSlots,
        *,
        capacity: AppendCapacity,
        page_size: int = 16,
        layout: Literal["NHD", "HND"] = "NHD",
        check: bool = False,
        stream: int | None = None,
    ) -> EagerAppendStep: ...
    @checked
    def plan_append(
        self,
        *given: Any,
        capacity: AppendCapacity,
        page_size: int = 16,
        layout: Literal["NHD", "HND"] = "NHD",
        check: bool = False,
        stream: int | None = None,
        **named: Any,
    ) -> EagerAppendStep:
        """Makes an append step, as :meth:`lazyrope.Attention.plan_append` does: from spans and pages, or from slots.

        ``check`` and ``stream`` are ignored.
        """
        step = EagerAppendStep(capacity, page_size, layout)
        step.update(*given, **named)
        return step

    @checked
    def append(
        self,
        k: Tensor,
        v: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        step: EagerAppendStep,
        *,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        check: bool = False,
        stream: int | None = None,
    ) -> None:
        """Stores keys and values, as :meth:`lazyrope.Attention.append` does. ``check`` and ``stream`` are ignored."""
        k_pool, v_pool = self._pool("k_pool", k_pool), self._pool("v_pool", v_pool)
        scales = self._scale("k_scale", k_scale), self._scale("v_scale", v_scale)
        if len(k) < step.num_rows or len(v) < step.num_rows:
            raise SpecError(f"k and v have {len(k)} and {len(v)} tokens; the step has {step.num_rows}")
        if len(step.rows) == step.num_rows:  # no row is skipped
            k, v = k[: step.num_rows], v[: step.num_rows]
        else:
            k, v = k[step.rows], v[step.rows]
        if self.spec.append_form == "raw" and self.spec.key_form == "local":
            k = self.rotate(k, self.cos_sin(step.index[:, None], self.spec.attention_factor))
        if self.spec.kv_dtype != self.spec.dtype:
            k, v = (x if scale is None else x.float() / scale for x, scale in zip((k, v), scales, strict=True))
        scatter(k_pool, step.layout, step.slots, k)
        scatter(v_pool, step.layout, step.slots, v)


class EagerReposition(_RopeAttention):
    """Reposition in plain PyTorch, like :class:`lazyrope.Reposition`."""

    arch = "eager"

    @checked
    def __call__(
        self,
        k_pool: Tensor,
        v_pool: Tensor,
        source: EagerAppendStep,
        target: EagerAppendStep,
        *,
        check: bool = False,
        stream: int | None = None,
    ) -> None:
        """Copies rows, as :meth:`lazyrope.Reposition.__call__` does. ``check`` and ``stream`` are ignored.

        Both steps must have the same rows; :class:`lazyrope.Reposition` skips a row that one of them lacks.
        """
        if not torch.equal(source.rows, target.rows):
            raise SpecError(
                f"source has {len(source.rows)} tokens and target {len(target.rows)}; both must have the same rows"
            )
        k_pool, v_pool = self._pool("k_pool", k_pool), self._pool("v_pool", v_pool)
        k = gather(k_pool, source.layout, source.slots)
        v = gather(v_pool, source.layout, source.slots)
        if self.spec.key_form == "local":
            k = self.rotate(k, self.cos_sin((target.index - source.index)[:, None]))
        scatter(k_pool, target.layout, target.slots, k)
        scatter(v_pool, target.layout, target.slots, v)


@checked
def compile(spec: AttentionSpec) -> EagerAttention:
    """Returns the attention of a spec in plain PyTorch.

    Raises:
        SpecError: The spec has a mask or a RoPE pairing that is not supported here.
    """
    return EagerAttention(spec)


@checked
def compile_reposition(spec: AttentionSpec) -> EagerReposition:
    """Returns the reposition of a spec in plain PyTorch.

    Raises:
        SpecError: As in :func:`compile`.
    """
    return EagerReposition(spec)
