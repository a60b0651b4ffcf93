"""lazyrope as an attention backend of vLLM.

Queries and keys arrive rotated by vLLM's positions. The pool is vLLM's own. On a GPU, lazyrope's kernels are compiled
for the model; on the CPU, attention runs in plain PyTorch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from vllm.v1.attention.backend import AttentionBackend as VllmBackend
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from .. import compile as compile_kernels
from .. import eager
from .._arguments import Segments, StepCapacity
from .._core import AttentionSpec, head_dims
from ..errors import SpecError
from .fragments import SEGMENTS_PER_REQUEST
from .ledger import Ledger
from .limits import layer_specs
from .plan import Plan, Rows, plan, plan_again
from .pool import key_and_value_pools, store
from .releases import current_release

PASSES = 0  # the key of a step for passes of any kind
CASCADE = -1  # the key of the step for decode passes in which requests share what several of them read
# With fewer requests, a cascade reads little less and costs two launches (tests/gpu/experiments/2026-11-30-cascade.md).
LEAST_SHARING = 8


@functools.cache
def kernel_of(spec: AttentionSpec, device_type: str) -> Any:
    """Returns the attention of a spec: compiled kernels, or plain PyTorch on the CPU."""
    return eager.compile(spec) if device_type == "cpu" else compile_kernels(spec)


class AttentionBackend(current_release().pool_methods(), VllmBackend):  # type: ignore[misc]
    """The backend CUSTOM."""

    forward_includes_kv_cache_update = False
    supported_dtypes = [torch.bfloat16, torch.float16, torch.float32]  # noqa: RUF012
    supported_kv_cache_dtypes = ["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"]  # noqa: RUF012

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type:
        return Attention

    @staticmethod
    def get_builder_cls() -> type:
        return MetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(*_: Any) -> list[Any]:
        return [MultipleOf(16)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return list(head_dims())

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True


@dataclass
class Metadata(AttentionMetadata):  # type: ignore[misc]
    """The attention of one pass.

    Attributes:
        layers: For each layer by its name, its kernels and the step.
    """

    layers: dict[str, tuple[Any, Any]]


class MetadataBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Plans the segments of each pass, and keeps the steps that captured graphs replay."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        """
        Raises:
            SpecError: The model is not served, or vLLM's layers are not those of the model's config.
        """
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._block_size: int = kv_cache_spec.block_size
        self._kernels = _kernels_of(layer_specs(vllm_config), layer_names, device)
        for name, kernel in self._kernels.items():
            vllm_config.compilation_config.static_forward_context[name].impl.check(name, kernel.spec)
        scheduler = vllm_config.scheduler_config
        tokens: int = scheduler.max_num_batched_tokens
        requests: int = scheduler.max_num_seqs
        self._max_blocks = -(-vllm_config.model_config.max_model_len // self._block_size)  # those of one request
        self._graph_sizes = frozenset(vllm_config.compilation_config.cudagraph_capture_sizes or ())
        self._most_decoding = max({requests} | self._graph_sizes)
        self._sharing: dict[str, Any] = {}  # the kernels with a cascade
        if self._most_decoding >= LEAST_SHARING:
            self._sharing = _kernels_of(layer_specs(vllm_config, cascade=True), layer_names, device)
        # A request of vLLM becomes several requests of the step where its rows pass from one document to the next.
        self._room = StepCapacity(
            2 * requests + tokens // self._block_size,
            (requests + tokens // self._block_size // 2) * SEGMENTS_PER_REQUEST + self._max_blocks,
            tokens,
        )
        self._steps: dict[tuple[int, int], Any] = {}
        self._last: tuple[list[Rows], int, Plan | None] = [], 0, None  # the plan of the last pass
        self._ledger: Ledger | None = None
        self._request_names: Callable[[], Sequence[str]] = list

    def bind(self, ledger: Ledger, request_names: Callable[[], Sequence[str]]) -> None:
        """Takes the worker's ledger, and a function that returns the requests in the order of the pass's rows."""
        self._ledger, self._request_names = ledger, request_names

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Metadata:
        """Makes the steps of a pass. Outside of the worker's passes, as in a graph's capture, its rows see nothing."""
        common = common_attn_metadata
        rows = self._rows(np.diff(common.query_start_loc_cpu.numpy()).tolist())
        pages = common.block_table_tensor
        made = self._plan(rows, pages.shape[1])
        key = self._key(common.num_reqs, common.max_query_len)
        if key == PASSES:
            self._make_room(made)
        of_layers = self._sharing if key == CASCADE else self._kernels
        kernels = {id(kernel): kernel for kernel in of_layers.values()}
        arrays = _on_device(made, self.device)
        steps = {i: self._step(kernel, key, arrays, pages.flatten()) for i, kernel in kernels.items()}
        return Metadata({name: (kernel, steps[id(kernel)]) for name, kernel in of_layers.items()})

    def _key(self, num_requests: int, max_query_len: int) -> int:
        """Returns the key of the steps of a pass."""
        if max_query_len == 1 and num_requests >= LEAST_SHARING:
            return CASCADE
        return num_requests if max_query_len == 1 and num_requests in self._graph_sizes else PASSES

    def _plan(self, rows: list[Rows], table_width: int) -> Plan:
        """Returns the plan of a pass, made from the last one if the requests are the same."""
        last_rows, last_width, last = self._last
        made = plan_again(last, last_rows, rows) if last is not None and table_width == last_width else None
        if made is None:
            made = plan(rows, table_width)
        self._last = rows, table_width, made
        return made

    def _rows(self, counts: list[int]) -> list[Rows]:
        """Returns the rows of each request of vLLM's batch, whose last requests may be padding.

        Raises:
            SpecError: The ledger and vLLM differ about the rows of a request.
        """
        if self._ledger is None or not self._ledger.is_in_pass:
            return [Rows(None, 0, count) for count in counts]
        rows = self._ledger.rows(list(self._request_names()))
        if [row.num_rows for row in rows] != counts[: len(rows)]:
            raise SpecError(
                f"vLLM runs {counts} rows, and its scheduler has announced {[row.num_rows for row in rows]}"
            )
        return [*rows, *(Rows(None, 0, count) for count in counts[len(rows) :])]

    def _step(self, kernel: Any, key: int, arrays: tuple[Any, Any, Segments], pages: Any) -> Any:
        """Returns the step of a kernel, new, or filled in place so that a captured graph reads the pass."""
        step = self._steps.get((id(kernel), key))
        if step is not None:
            step.update(*arrays, pages)
            return step
        capacity = self._room
        if key != PASSES:  # all decode passes with a cascade have one step: 100 MB of results for 32 heads of 128
            requests = self._most_decoding if key == CASCADE else key
            segments = requests * SEGMENTS_PER_REQUEST + self._max_blocks
            capacity = StepCapacity(requests, segments, requests, tokens_per_request=1)
        step = kernel.plan(*arrays, pages, page_size=self._block_size, layout="NHD", capacity=capacity)
        self._steps[id(kernel), key] = step
        return step

    def _make_room(self, made: Plan) -> None:
        """Drops the steps of PASSES if a plan does not fit into them. The new ones are larger. No graph reads them.

        Each overlay sees all documents before it, so a pass of many overlays has many more segments than others.
        """
        requests, segments = len(made.q_indptr) - 1, len(made.base)
        room = self._room
        if requests <= room.requests and segments <= room.segments:
            return
        counts = {"requests": max(room.requests, requests), "segments": max(room.segments, segments * 5 // 4)}
        self._room = replace(room, **counts)
        self._steps = {key: step for key, step in self._steps.items() if key[1] != PASSES}


def _kernels_of(specs: dict[int, AttentionSpec], layer_names: Sequence[str], device: Any) -> dict[str, Any]:
    """Returns the attention of each layer by its name."""
    return {name: kernel_of(specs[_layer_index(name)], torch.device(device).type) for name in layer_names}


def _on_device(made: Plan, device: Any) -> tuple[Any, Any, Segments]:
    """Copies a plan to the device at once. Returns q_indptr, q_position and the segments."""
    arrays = [made.q_indptr, made.position, made.indptr, made.base, made.start, made.length, made.first_page, made.lead]
    sizes = [-(-len(array) // 4) * 4 for array in arrays]  # each array begins at a multiple of 16 bytes
    offsets = list(accumulate(sizes, initial=0))
    host = torch.empty(offsets[-1], dtype=torch.int32, pin_memory=torch.device(device).type != "cpu")
    buffer = host.numpy()
    for array, offset in zip(arrays, offsets, strict=False):
        buffer[offset : offset + len(array)] = array
    whole = host.to(device, non_blocking=True)
    parts = [whole[offset : offset + len(array)] for array, offset in zip(arrays, offsets, strict=False)]
    return parts[0], parts[1], Segments(*parts[2:])


class Attention(AttentionImpl):  # type: ignore[misc]
    """The attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Any = None,
    ) -> None:
        """
        Raises:
            SpecError: The layer has ALiBi, is no decoder's, or shares the keys of another layer.
        """
        for is_refused, what in (
            (alibi_slopes is not None, "ALiBi"),
            (attn_type != AttentionType.DECODER, f"attention of type {attn_type}"),
            (kv_sharing_target_layer_name is not None, "keys of another layer"),
        ):
            if is_refused:
                raise SpecError(f"a layer has {what}, which lazyrope.vllm does not serve")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.sliding_window, self.logits_soft_cap = sliding_window, logits_soft_cap or None
        self.kv_cache_dtype = kv_cache_dtype
        self.sinks = sinks  # a parameter that is loaded later
        self._kernel_sinks: Any = None

    def process_weights_after_loading(self, act_dtype: Any) -> None:
        """Keeps the sinks in float32, which the kernels read.

        Weights may be loaded again. Captured graphs read the same memory, so it is filled in place.
        """
        if self.sinks is None:
            return
        if self._kernel_sinks is None:
            self._kernel_sinks = torch.empty_like(self.sinks, dtype=torch.float32, requires_grad=False)
        self._kernel_sinks.copy_(self.sinks.detach())

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any) -> None:
        """Stores keys and values as they are, rotated by vLLM's positions."""
        store(layer, key, value, kv_cache, slot_mapping, self.kv_cache_dtype)

    def forward(
        self,
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        kv_cache: Any,
        attn_metadata: Metadata | None,
        output: Any,
        output_scale: Any = None,
        output_block_scale: Any = None,
    ) -> Any:
        """Computes the attention of [tokens, heads, head_dim] queries into output, of the same shape."""
        if output_scale is not None or output_block_scale is not None:
            raise SpecError("lazyrope.vllm writes outputs of the model's dtype alone, without a scale")
        if attn_metadata is None:  # vLLM measures the memory of the other layers
            return output.fill_(0)
        kernel, step = attn_metadata.layers[layer.layer_name]
        k_pool, v_pool = key_and_value_pools(kv_cache)
        is_narrow = kernel.spec.kv_dtype != kernel.spec.dtype
        scales = {"k_scale": layer._k_scale, "v_scale": layer._v_scale} if is_narrow else {}
        kernel(query, k_pool, v_pool, step, out=output, return_lse=False, sinks=self._kernel_sinks, **scales)
        return output

    def check(self, name: str, spec: AttentionSpec) -> None:
        """Checks, when the weights are loaded, that vLLM's layer is the one that the spec describes.

        Raises:
            SpecError: Something of the layer differs.
        """
        window = spec.window if spec.mask == "sliding_window" else None
        for what, given, known in (
            ("scale", self.scale, spec.scale),
            ("query heads", self.num_heads, spec.num_q_heads),
            ("KV heads", self.num_kv_heads, spec.num_kv_heads),
            ("head_dim", self.head_size, spec.head_dim),
            ("a sliding window", self.sliding_window, window),
            ("a softcap", self.logits_soft_cap, spec.softcap),
            ("sinks", self.sinks is not None, spec.sinks),
        ):
            is_near = isinstance(given, float) and isinstance(known, float) and abs(given - known) <= 1e-6 * abs(known)
            if given != known and not is_near:
                raise SpecError(f"{name} of vLLM has {what} = {given}; by the model's config, lazyrope expects {known}")


def _layer_index(name: str) -> int:
    """Returns the number of a layer by its name, such as ``model.layers.3.self_attn.attn``."""
    numbers = [int(part) for part in name.split(".") if part.isdecimal()]
    if len(numbers) != 1:
        raise SpecError(f"the layer {name} has no single number in its name, by which lazyrope knows it")
    return numbers[0]
