"""Describes the extension module. lazyrope exports its public names, and :mod:`lazyrope.errors` has its errors."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, final, overload, type_check_only

from ._arguments import AppendCapacity, Segments, StepCapacity, TokenSlots, TokenSpans
from ._config import KernelConfig as KernelConfig
from ._config import TileConfig as TileConfig
from ._emulator import Profile as Profile
from ._emulator import emulator_options as emulator_options
from ._emulator import set_emulator_options as set_emulator_options
from ._process import archs as archs
from ._process import clear_cache as clear_cache
from ._process import counters as counters
from ._process import doctor as doctor
from ._process import environment_variables as environment_variables
from ._process import is_tracing as is_tracing
from ._process import open_metrics as open_metrics
from ._process import set_nvrtc_directories as set_nvrtc_directories
from ._process import write_trace_event as write_trace_event
from ._reposition import Reposition as Reposition
from ._reposition import compile_reposition as compile_reposition
from ._spec import AttentionSpec as AttentionSpec
from ._spec import LayerGroup as LayerGroup
from ._spec import QueryTemperature as QueryTemperature
from ._spec import Rope as Rope
from ._spec import head_dims as head_dims
from ._spec import masks as masks
from ._spec import model_types as model_types
from ._spec import rope_variants as rope_variants
from ._steps import AppendStep as AppendStep
from ._steps import Batch as Batch
from ._steps import Step as Step
from ._steps import batch as batch
from ._tuning import Tuning

__version__: str

@type_check_only
class Tensor(Protocol):
    """A tensor of any framework with DLPack.

    PyTorch (by ``__dlpack_c_exchange_api__``) and CuPy report their current stream, which calls then use. Tensors of
    other frameworks are used on the default stream. The argument ``stream`` of a call overrides both.

    A read-only tensor, such as a memory-mapped array, serves wherever the call does not write. PyTorch tensors without
    memory, with the negative bit, or that require a gradient while gradients are enabled, raise :class:`SpecError`.
    """

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

_T = TypeVar("_T", bound=Tensor)

@final
class CompiledKernel:
    """One compiled kernel of an :class:`Attention` or a :class:`Reposition`."""

    @property
    def name(self) -> str:
        """The kernel's name, such as "attend_decode": a key of :attr:`Attention.kernels`, or "reposition"."""

    @property
    def arch(self) -> str:
        """The architecture of the kernel, one of :func:`archs`."""

    @property
    def entry(self) -> str:
        """The name of its function in the cubin."""

    @property
    def source(self) -> str:
        """The rendered CUDA C++ source, complete: it includes no file."""

    def ptx(self) -> str:
        """Compiles the source again and returns its PTX. For the emulator this is the host's assembly.

        Returns:
            The text of the PTX.

        Raises:
            CompileError: NVRTC is not installed.
        """

    @property
    def cubin(self) -> bytes:
        """The binary. For the emulator this is a shared library."""

    @property
    def registers(self) -> int:
        """The registers of a thread."""

    @property
    def spill_bytes(self) -> int:
        """The bytes of spilled registers and stack frame of a thread."""

    @property
    def shared_bytes(self) -> int:
        """The bytes of dynamic shared memory of a CTA."""

    @property
    def threads(self) -> int:
        """The number of threads of a CTA."""

    @property
    def compiler(self) -> str:
        """The name and version of the compiler that made the binary."""

    @property
    def compile_ms(self) -> float:
        """The milliseconds that the compiler took, now or when the cache was filled."""

    @property
    def ready_ms(self) -> float:
        """The milliseconds from the request to the binary: the look-up in the cache and, on a miss, compiling."""

    @property
    def from_cache(self) -> bool:
        """True if the binary came from the disk cache."""

@final
class Attention:
    """The compiled kernels of one :class:`AttentionSpec` for one architecture, and the calls that launch them.

    :func:`compile` makes it. It is immutable and may be used from several threads. A copy of it is the object itself. A
    pickle of it holds the spec, the arch and the config, and to load it compiles the kernels or takes them from the
    cache. The record :attr:`tuning` is not pickled.

    Example:
        ```python
        step = kernel.plan(q_indptr, q_position, segments, pages)  # once a step
        for layer in layers:
            kernel.append(k, v, layer.k_pool, layer.v_pool, writes)
            out, lse = kernel(q, layer.k_pool, layer.v_pool, step)
        ```
    """

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
    ) -> Step:
        """Makes a step from the requests of one pass of the model and plans its work.

        The requests are given as device tensors, or as one :class:`Batch` that was filled on the host. All tensors are
        int32, one-dimensional, contiguous and on the device of q.

        Args:
            q_indptr: Offsets into q, [requests + 1]. The query tokens of request r are rows q_indptr[r] to
                q_indptr[r + 1] - 1 of q.
            q_position: Logical positions of the query tokens, [query tokens], in any order.
            segments: The segments of all requests.
            pages: Page lists, of any length: indices of pages of the pool. The step refers to this tensor until the
                next update and does not copy it.
            page_size: Slots of a page, a multiple of 16.
            layout: "NHD" (pools are [pages, page_size, kv_heads, head_dim]) or "HND" ([pages, kv_heads, page_size,
                head_dim]).
            capacity: The most that the step can hold, now and after :meth:`Step.update`. The default is exactly what
                these tensors need, or the batch's capacity. For raw keys and packed_prefill on Hopper, a batch's
                step also has scratch for the rotated keys of its present requests, if that takes at most 1 GiB
                (``rotated_tokens``). So it has room for their masses of pages, if the spec has page_mass
                (``mass_pages``).
            check: If True, the call waits for the stream and checks all values. It is refused during stream capture.
            stream: A cudaStream_t or CUstream. The default is the current stream of q_indptr's framework, or that of
                the batch's ``pages``.

        Returns:
            The step. It is ready for the calls of every layer.

        Raises:
            SpecError: A tensor has a wrong dtype, rank, length or device; the capacity is too small or illegal; or the
                kernels are for another architecture. With ``check``, also an illegal value; the message names the
                request and the segment.
            DriverError: A call of the driver failed.
        """

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
    ) -> Step: ...
    def step_nbytes(self, capacity: StepCapacity, *, sm_count: int) -> int:
        """Returns the bytes of device memory that a step of this capacity takes.

        The call allocates nothing and needs no GPU.

        Args:
            capacity: The capacity of the step.
            sm_count: The number of streaming multiprocessors of the step's GPU.

        Raises:
            SpecError: The capacity is illegal, or sm_count is less than 1.
        """

    @overload
    def __call__(
        self,
        q: _T,
        k_pool: Tensor,
        v_pool: Tensor,
        step: Step,
        *,
        out: _T | None = None,
        lse: _T | None = None,
        return_lse: Literal[True] = True,
        sinks: Tensor | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        page_mass: Tensor | None = None,
        key_bias: Tensor | None = None,
        entry_lse: Tensor | None = None,
        check: bool = False,
        stream: int | None = None,
    ) -> tuple[_T, _T]:
        """Computes the attention of q over the step's segments.

        The call is asynchronous, and a CUDA graph can capture it.

        Args:
            q: Queries, [tokens, num_q_heads, head_dim], of the spec's dtype. It has at least the step's tokens; if it
                has more, out must be given, and lse too unless return_lse is False. The last dimension is contiguous.
                The address and the other strides are multiples of 16 bytes.
            k_pool: Keys, [pages, page_size, kv_heads, head_dim] (layout NHD) or [pages, kv_heads, page_size, head_dim]
                (HND), of the spec's kv_dtype. The strides give the order of the dimensions in memory. A pool of 8 bits
                may also be given as uint8. Contiguity and alignment are those of q.
            v_pool: Values, of the same shape and strides.
            step: A step of :meth:`plan` for the same device.
            out: The output, of the shape and dtype of q, aligned to 16 bytes. By default q's framework allocates it, on
                q's device. Rows beyond the step's tokens are not written. A query that sees no key gets 0. The
                elements may alternate with those of q, but no byte is shared with another argument.
            lse: The log-sum-exp, [tokens, num_q_heads], float32, allocated by default. It shares no byte with another
                argument. It is the natural logarithm of
                the sum of the exponentials of the scaled scores, and -inf for a query that sees no key.
            return_lse: If True, lse is allocated if it is not given.
            sinks: A logit of each query head, [num_q_heads], float32. Its exponential is added to the softmax's sum,
                and lse includes it. A NaN makes the head's rows NaN; +inf makes them 0, with an lse of +inf. It must
                be given if and only if the spec has sinks.
            k_scale: For pools of 8 bits only: the factor of stored keys, float32, one element or [kv_heads]. The
                default is 1.
            v_scale: The same for values.
            page_mass: A tensor for the attention mass of pages, [pages], float32, contiguous: the sum of the softmax's
                weights in each run of 16 slots, over the query heads and the query tokens of its request that count
                (``mass_tokens``). :attr:`Batch.page_indptr` numbers the pages; masses beyond the tensor's end are
                dropped. The spec must have page_mass, and the step's capacity ``mass_pages``.
            key_bias: The bias of each key, float32 [pages, kv_heads, page_size] for pools of either layout: a natural
                logarithm that is added to the key's scores. The last dimension is contiguous, and the address and the
                other strides are multiples of 16 bytes. 0 changes nothing, and -inf hides the key from its KV head.
                Slots outside the segments may have any bias; NaN or +inf inside them makes results NaN. It must be
                given if and only if the spec has key_bias.
            entry_lse: The log-sum-exp of each entry of attention states, natural logarithm, float32 [pages, kv_heads,
                page_size], contiguous, whatever the layout of the pool. Only slots with entries of the step's memories
                are read. It must be given if and only if the spec has states.
            check: If True, the call waits for the stream and checks that every page of the step is in the pool. It is
                refused during stream capture.
            stream: A cudaStream_t or CUstream. The default is the current stream of q's framework.

        Returns:
            The pair (out, lse). lse is None if it was not given and return_lse is False.

        Raises:
            SpecError: A tensor has a wrong dtype, shape, stride, alignment or device, or out or lse shares memory with
                another argument. With ``check``, also a page that is not in the pool.
            DriverError: A call of the driver failed.
        """

    @overload
    def __call__(
        self,
        q: _T,
        k_pool: Tensor,
        v_pool: Tensor,
        step: Step,
        *,
        out: _T | None = None,
        lse: _T | None = None,
        return_lse: bool,
        sinks: Tensor | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        page_mass: Tensor | None = None,
        key_bias: Tensor | None = None,
        entry_lse: Tensor | None = None,
        check: bool = False,
        stream: int | None = None,
    ) -> tuple[_T, _T | None]: ...
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
    ) -> AppendStep:
        """Makes an append step from the tokens that one pass of the model stores.

        The tokens are given as spans with their page lists, or as one :class:`TokenSlots` with a slot for each token,
        as in vLLM: ``plan_append(slots, capacity=...)``. All tensors are one-dimensional, contiguous and on the device
        of the pool. The tensors of spans and ``pages`` are int32.

        Args:
            spans: The tokens of the rows of k and v, and their slots.
            pages: Page lists, of any length: indices of pages of the pool.
            capacity: The most that the step can hold, now and after :meth:`AppendStep.update`.
            page_size: Slots of a page, a multiple of 16.
            layout: "NHD" or "HND", as in :meth:`plan`.
            check: If True, the call waits for the stream and checks all values. It is refused during stream capture.
            stream: A cudaStream_t or CUstream. The default is the current stream of the framework of spans.indptr, or
                of slots.slot_mapping.

        Returns:
            The append step. It is ready for the calls of every layer.

        Raises:
            SpecError: A tensor has a wrong dtype, rank, length or device; the capacity is too small or illegal; or the
                kernels are for another architecture. With ``check``, also an illegal value; the message names the span
                or the row.
            DriverError: A call of the driver failed.
        """

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
    ) -> AppendStep: ...
    def append(
        self,
        k: Tensor,
        v: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        step: AppendStep,
        *,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        check: bool = False,
        stream: int | None = None,
    ) -> None:
        """Stores new keys and values in the pool.

        Each key is rotated by its index in its document, unless the spec's append_form is "rotated": then it is
        copied. The call is asynchronous, and a CUDA graph can capture it.

        Args:
            k: New keys, [tokens, num_kv_heads, head_dim], of the spec's dtype. A row without a slot is not stored. The
                last dimension is contiguous. The address and the other strides are multiples of 8 bytes.
            v: New values, of the same shape and dtype.
            k_pool: The keys' pool, as in :meth:`__call__`. Its elements may alternate with those of v_pool, but every
                element has memory of its own.
            v_pool: The values' pool, as in :meth:`__call__`.
            step: A step of :meth:`plan_append` for the same device.
            k_scale: For pools of 8 bits only: the divisor of keys after their rotation, float32, one element or
                [kv_heads]. The quotient is rounded to the nearest 8-bit number and saturates at the greatest one. The
                default is 1.
            v_scale: The same for values.
            check: If True, the call waits for the stream and checks the step. Every page must be in the pool, k must
                have a row for every slot, and no slot may be written twice. It is refused during stream capture.
            stream: A cudaStream_t or CUstream. The default is the current stream of k's framework.

        Raises:
            SpecError: A tensor has a wrong dtype, shape, stride, alignment or device; k has more rows than the step's
                capacity; or the kernels are for another architecture. With ``check``, also an illegal slot.
            DriverError: A call of the driver failed.
        """

    @property
    def handle(self) -> int:
        """The number of this object in the operators of :mod:`lazyrope.torch`, unique in this process."""

    @property
    def spec(self) -> AttentionSpec:
        """The attention that the kernels compute."""

    @property
    def arch(self) -> str:
        """The architecture of the kernels, one of :func:`archs`."""

    @property
    def config(self) -> KernelConfig:
        """The config of the attend kernels."""

    @property
    def tuning(self) -> Tuning | None:
        """The record of the measurements that chose the config. None if the config is the default or was given."""

    @property
    def kernels(self) -> dict[str, CompiledKernel]:
        """The kernels by name: "plan", "attend_decode", "attend_prefill", "plan_append", "append" and further ones."""

    @property
    def source(self) -> str:
        """The source of the kernel "attend_decode". :meth:`ptx` and :attr:`cubin` are of this kernel too."""

    def ptx(self) -> str: ...
    @property
    def cubin(self) -> bytes: ...
    @property
    def registers(self) -> int:
        """The registers of a thread, the most of all kernels. So are :attr:`shared_bytes` and :attr:`spill_bytes`."""

    @property
    def shared_bytes(self) -> int: ...
    @property
    def spill_bytes(self) -> int: ...
    @property
    def compile_ms(self) -> float:
        """The milliseconds of compiling, summed over the kernels that did not come from the disk cache."""

    @property
    def from_cache(self) -> bool:
        """True if all kernels came from the disk cache."""

    def __copy__(self) -> Attention: ...
    def __deepcopy__(self, memo: Any, /) -> Attention: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def compile(
    spec: AttentionSpec,
    arch: str | None = None,
    *,
    config: KernelConfig | None = None,
    tune: bool | None = None,
    allow_spills: bool = False,
    threads: int = 0,
    timeout: float | None = None,
    progress: Callable[[int, int, str], object] | None = None,
    wait_for_prefill: bool = True,
) -> Attention:
    """Returns the kernels of an attention, from memory, else from the disk cache, else compiled.

    The call needs a GPU only if arch is not given or tune is True. It needs NVRTC only for kernels that are not in the
    cache.

    Args:
        spec: The attention.
        arch: One of :func:`archs`. The default is that of the current GPU.
        config: One of :func:`configs`, or another legal one. By default, tune decides.
        tune: The source of the config. True: the config that was measured to be the fastest on the current GPU. If
            the cache has no record of that, configs are measured now, with random inputs. This takes some ten seconds
            and up to 3 GiB of the GPU's memory, and the GPU must be idle otherwise. The choice, its gain and its
            duration are logged, and kept as :attr:`Attention.tuning`. None: the config of such a record if there is
            one and arch is not given, else the default. False: the default, which is the first of :func:`configs`
            that does not spill registers. Results of different configs differ by rounding: give config or False if
            they must be the same on every machine.
        allow_spills: If True, kernels that spill registers are accepted.
        threads: The number of threads that compile. 0: one for each core.
        timeout: The seconds after which the call gives up, more than 0 and at most a million. NVRTC 13 stops within a
            second; an older one ends its kernels first. The measurements of tune are not limited. None: there is no
            limit. Ctrl-C ends the call in the same way. Compiled kernels are kept, so a second call continues.
        progress: A function that is called after each kernel, from any thread but one call at a time, with the number
            of kernels that are ready, their total and the kernel's name. The total grows if a config spills and the
            next one is tried. An exception of the function ends the call.
        wait_for_prefill: If False, the call returns as soon as steps of decode can run. The kernel of prefill takes the
            longest; a thread compiles it, from the beginning where there are three cores or more.
            :meth:`Attention.plan` waits for it if the step has room for more tokens of a request than decode serves,
            and so do :attr:`Attention.kernels` and other facts of all kernels; they then raise its CompileError. A
            first use after fork() compiles it. With a tuning record, the call waits for all kernels.

    Returns:
        The attention, ready for :meth:`Attention.plan`.

    Raises:
        SpecError: The arch is unknown, or has too little shared memory for the spec. With ``tune=True``, also an arch
            that is not that of the current GPU.
        CompileError: A kernel does not compile or spills registers, NVRTC is not installed, or the timeout is over.
        CacheError: LAZYROPE_POLICY forbids to compile or to tune, and the cache has no such entry.
        DriverError: arch is not given, or tune is True, and there is no usable driver or GPU.

    Example:
        ```python
        spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.llama3())
        kernel = lazyrope.compile(spec, arch="sm_90a")  # needs no GPU
        ```
    """

def configs(spec: AttentionSpec, arch: str | None = None) -> list[KernelConfig]:
    """Returns the configs that are legal for a spec on an arch, the default one first.

    Args:
        spec: The attention.
        arch: One of :func:`archs`. The default is that of the current GPU.

    Raises:
        SpecError: The arch is unknown, or no config of the spec fits it.
        DriverError: arch is not given, and there is no usable driver or GPU.
    """
