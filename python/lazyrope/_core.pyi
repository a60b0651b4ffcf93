"""Types and meaning of the extension module. Its names are those of the lazyrope package.

Errors are those of lazyrope.errors; each says what was given, what is allowed and what to do.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar, final, overload, type_check_only

from ._arguments import AppendCapacity, Segments, StepCapacity, TokenSpans
from ._emulator import Profile as Profile
from ._emulator import emulator_options as emulator_options
from ._emulator import set_emulator_options as set_emulator_options
from ._reposition import Reposition as Reposition
from ._reposition import compile_reposition as compile_reposition
from ._spec import AttentionSpec as AttentionSpec
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
    """A tensor of any framework that speaks DLPack. torch (by ``__dlpack_c_exchange_api__``) and CuPy tell on which
    stream they work; others work on the default stream, or on the one given as ``stream``."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

_T = TypeVar("_T", bound=Tensor)

@final
class TileConfig:
    """The shape of one attend kernel. Either warps_m or warps_n is 1."""

    def __init__(
        self,
        *,
        warps_m: int,
        warps_n: int,
        warp_m: int,
        warp_n: int,
        mma_n: int,
        stages: int,
        ctas_per_sm: int,
        family: str = "sm80",
        heads: int = 1,
    ) -> None: ...
    @property
    def warps_m(self) -> int:
        """Warps that divide the query rows among them."""

    @property
    def warps_n(self) -> int:
        """Warps that divide the keys among them."""

    @property
    def warp_m(self) -> int:
        """Query rows of a warp, a multiple of 16."""

    @property
    def warp_n(self) -> int:
        """Keys of a warp's block, a multiple of 16."""

    @property
    def mma_n(self) -> int:
        """Keys of one product, a multiple of 16 that divides warp_n."""

    @property
    def stages(self) -> int:
        """Blocks of keys and values in flight, at least 2."""

    @property
    def ctas_per_sm(self) -> int:
        """CTAs that an SM must have registers and shared memory for."""

    @property
    def family(self) -> str:
        """ "sm80" (mma, on every GPU) or "sm90a" (wgmma and TMA, on Hopper)."""

    @property
    def heads(self) -> int:
        """KV heads side by side in a tile, which share its rows: 1 or, in decode of "sm90a" at head_dim 64, 2."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, arg0: dict[str, Any], /) -> None: ...

@final
class KernelConfig:
    """What is chosen, not asked for: kernels of different configs compute the same. See :func:`configs`."""

    def __init__(
        self,
        *,
        decode: TileConfig,
        prefill: TileConfig,
        min_split_blocks: int = 2,
        heads_per_work_tile: int = 1,
        fixed_split_blocks: int = 0,
    ) -> None: ...
    @property
    def decode(self) -> TileConfig:
        """For requests whose query tokens x group_size fit one tile of it."""

    @property
    def prefill(self) -> TileConfig:
        """For all other requests."""

    @property
    def min_split_blocks(self) -> int:
        """KV is not divided into parts of fewer blocks than this."""

    @property
    def heads_per_work_tile(self) -> int:
        """KV heads that one CTA of decode may attend to at a time."""

    @property
    def fixed_split_blocks(self) -> int:
        """Unless 0, how a request's KV is divided does not depend on the other requests: in equal parts of so many
        blocks at the most, unless that were more than 16 parts."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, arg0: dict[str, Any], /) -> None: ...

@final
class CompiledKernel:
    """One compiled kernel of an :class:`Attention`, or that of a :class:`Reposition`."""

    @property
    def name(self) -> str:
        """One of "plan", "attend_decode", "attend_prefill", "plan_append", "append" and "reposition"."""

    @property
    def arch(self) -> str: ...
    @property
    def entry(self) -> str:
        """The function's name in the cubin."""

    @property
    def source(self) -> str:
        """The rendered CUDA C++, with no includes left."""

    def ptx(self) -> str:
        """Compiles the source once more, to PTX (for the emulator: to the host's assembly).

        Raises:
            CompileError: there is no NVRTC.
        """

    @property
    def cubin(self) -> bytes:
        """The binary; for the emulator a shared library."""

    @property
    def registers(self) -> int:
        """Of a thread."""

    @property
    def spill_bytes(self) -> int:
        """Of a thread: spilled registers and stack frame."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""

    @property
    def threads(self) -> int:
        """Of a CTA."""

    @property
    def compiler(self) -> str:
        """Identity of the very compiler that made the binary."""

    @property
    def compile_ms(self) -> float:
        """Milliseconds that the compiler took, now or when the cache was filled."""

    @property
    def ready_ms(self) -> float:
        """Milliseconds from the request to the binary: a look into the cache, or that and compiling."""

    @property
    def from_cache(self) -> bool:
        """Whether the binary came from the disk cache."""

@final
class Attention:
    """The compiled kernels of one :class:`AttentionSpec` for one architecture, and the calls that launch them. Made by
    :func:`compile`. Immutable; may be used from several threads."""

    @overload
    def plan(
        self,
        q_indptr: Tensor,
        q_position: Tensor,
        segments: Segments,
        pages: Tensor,
        *,
        page_size: int = 16,
        layout: str = "NHD",
        capacity: StepCapacity | None = None,
        check: bool = False,
        stream: int | None = None,
    ) -> Step:
        """Makes a step: what the requests of one pass of the model attend to. They are given as four tensors on the
        device, or as one :class:`Batch`, filled on the host.

        All tensors are int32, one-dimensional, contiguous and on the device that q will be on.

        Args:
            q_indptr: [requests + 1]; the query tokens of request r are rows q_indptr[r] to q_indptr[r + 1] - 1 of q.
            q_position: [query tokens]; logical positions, in any order.
            segments: of all requests.
            pages: [any]; page lists: indices of pages of the pool. The step refers to them until the next update, and
                copies nothing.
            page_size: slots of a page, a multiple of 16.
            layout: "NHD" (pools are [pages, page_size, kv_heads, head_dim]) or "HND" ([pages, kv_heads, page_size,
                head_dim]).
            capacity: the most that the step can hold, now and after :meth:`Step.update`. By default it is what these
                tensors take, or the batch's.
            check: waits for the stream and checks all values; refused while the stream is captured.
            stream: a cudaStream_t or CUstream; the stream that q_indptr's framework works on by default.

        Raises:
            SpecError: a tensor's dtype, rank, length or device is wrong, the capacity is too small or illegal, the
                kernels are for another architecture, or, with ``check``, a value is illegal: the message names
                request and segment.
            DriverError: a call of the driver failed.
        """

    @overload
    def plan(
        self,
        batch: Batch,
        *,
        page_size: int = 16,
        layout: str = "NHD",
        capacity: StepCapacity | None = None,
        check: bool = False,
        stream: int | None = None,
    ) -> Step: ...
    def step_nbytes(self, capacity: StepCapacity, *, sm_count: int) -> int:
        """Returns the device memory, in bytes, that a step of this capacity takes. Allocates nothing and needs no GPU.

        Args:
            capacity: of the step.
            sm_count: streaming multiprocessors of the GPU that the step will be on.

        Raises:
            SpecError: the capacity is illegal, or sm_count is less than 1.
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
        check: bool = False,
        stream: int | None = None,
    ) -> tuple[_T, _T]:
        """Attention of q over the step's segments. Asynchronous; capturable in a CUDA graph.

        Args:
            q: [tokens, num_q_heads, head_dim], of the spec's dtype, at least as many tokens as the step has; with
                more, out and lse must be given. The last dimension is contiguous; the address and the other strides
                are multiples of 16 bytes.
            k_pool: keys, [pages, page_size, kv_heads, head_dim] (layout NHD) or [pages, kv_heads, page_size, head_dim]
                (HND), of the spec's kv_dtype (one of 8 bits may also come as uint8), contiguous and aligned as q.
            v_pool: values, of the same shape and strides.
            step: from :meth:`plan`, for the same device.
            out: as q, aligned to 16 bytes; allocated by q's framework by default. Rows beyond the step's tokens are
                left alone. A query that sees no key gets 0.
            lse: [tokens, num_q_heads], float32; allocated by default. The natural logarithm of the sum of the
                exponentials of the scaled scores; -inf for a query that sees no key.
            return_lse: whether lse is allocated where it is not given.
            sinks: if and only if the spec has them: [num_q_heads], float32, a logit beside those of the keys, which lse
                counts in.
            k_scale: of pools of 8 bits only: what stored keys are to be multiplied by, float32, one element or
                [kv_heads]; 1 by default.
            v_scale: the same of values.
            check: waits for the stream and checks that every page of the step is one of the pool's; refused while the
                stream is captured.
            stream: a cudaStream_t or CUstream; the stream that q's framework works on by default.

        Returns:
            out and lse; lse is None where it was neither given nor asked for.

        Raises:
            SpecError: a tensor's dtype, shape, strides, alignment or device is wrong, or, with ``check``, a page is
                not in the pool.
            DriverError: a call of the driver failed.
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
        check: bool = False,
        stream: int | None = None,
    ) -> tuple[_T, _T | None]: ...
    def plan_append(
        self,
        spans: TokenSpans,
        pages: Tensor,
        *,
        capacity: AppendCapacity,
        page_size: int = 16,
        layout: str = "NHD",
        check: bool = False,
        stream: int | None = None,
    ) -> AppendStep:
        """Makes an append step: where the new keys and values of one pass go.

        All tensors are int32, one-dimensional, contiguous and on the device that the pool is on.

        Args:
            spans: which tokens of which document the rows of k and v are, and where those tokens go.
            pages: [any]; page lists: indices of pages of the pool.
            capacity: the most that the step can hold, now and after :meth:`AppendStep.update`.
            page_size, layout: as in :meth:`plan`.
            check: waits for the stream and checks all values; refused while the stream is captured.
            stream: a cudaStream_t or CUstream; the stream that spans.indptr's framework works on by default.

        Raises:
            SpecError, DriverError: as :meth:`plan`.
        """

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
        """Stores new keys and values in the pool. Keys are turned by their index in their document, unless the spec's
        append_form is "rotated". Asynchronous; capturable in a CUDA graph.

        Args:
            k: [tokens, num_kv_heads, head_dim], of the spec's dtype. The last dimension is contiguous; the address and
                the other strides are multiples of 8 bytes.
            v: as k.
            k_pool, v_pool: as in :meth:`__call__`.
            step: from :meth:`plan_append`, for the same device.
            k_scale, v_scale: as in :meth:`__call__`: what is stored is the turned key, and the value, divided by them,
                to the nearest number of 8 bits; beyond the greatest, that.
            check: waits for the stream and checks that every page of the step is one of the pool's, that k has all
                rows that the step has slots for, and that no slot is written twice.
            stream: a cudaStream_t or CUstream; the stream that k's framework works on by default.

        Raises:
            SpecError, DriverError: as :meth:`__call__`.
        """

    @property
    def handle(self) -> int:
        """What stands for this object in the operators of :mod:`lazyrope.torch`: never another's in this process."""

    @property
    def spec(self) -> AttentionSpec: ...
    @property
    def arch(self) -> str: ...
    @property
    def config(self) -> KernelConfig: ...
    @property
    def tuning(self) -> Tuning | None:
        """The record of the measurements that chose the configuration; None where it is the default or was given."""

    @property
    def kernels(self) -> dict[str, CompiledKernel]:
        """By name: "plan", "attend_decode", "attend_prefill", "plan_append" and "append"."""

    @property
    def source(self) -> str:
        """Of the kernel "attend_decode", as are :meth:`ptx` and :attr:`cubin`."""

    def ptx(self) -> str: ...
    @property
    def cubin(self) -> bytes: ...
    @property
    def registers(self) -> int:
        """Of a thread; the most of all kernels, as are :attr:`shared_bytes` and :attr:`spill_bytes`."""

    @property
    def shared_bytes(self) -> int: ...
    @property
    def spill_bytes(self) -> int: ...
    @property
    def compile_ms(self) -> float:
        """Milliseconds of compiling, summed over the kernels that did not come from the disk cache."""

    @property
    def from_cache(self) -> bool:
        """Whether all kernels came from the disk cache."""

def compile(
    spec: AttentionSpec,
    arch: str | None = None,
    *,
    config: KernelConfig | None = None,
    tune: bool | None = None,
    allow_spills: bool = False,
    threads: int = 0,
) -> Attention:
    """The kernels of an attention: from memory, else from the disk cache, else compiled. Needs a GPU only where arch is
    not given, and NVRTC only for kernels that are not in the cache.

    Args:
        spec: what is asked for.
        arch: one of :func:`archs`; that of the present GPU by default.
        config: one of :func:`configs`, or another; by default what tune says.
        tune: True: the config that was measured to be the fastest on the present GPU. Where the cache has no record of
            that, configs are measured now, with random inputs: some ten seconds on a GPU that must have nothing else to
            do, with up to 3 GiB of its memory; what was chosen, by how much and in how long is logged, and kept as
            :attr:`Attention.tuning`. None: the config of such a record, if there is one and arch is not given; else the
            default. False: the default, the first of :func:`configs` that does not spill registers. Results by
            different configs differ by rounding, so give config or False where they must be the same on every machine.
        allow_spills: whether kernels that spill registers are taken.
        threads: that compile at once; 0: one a core.

    Raises:
        SpecError: the arch is unknown, or has too little shared memory; or, to be tuned for, is not the present GPU's.
        CompileError: a kernel does not compile or spills, or there is no NVRTC.
        CacheError: a kernel is not in the cache, and LAZYROPE_POLICY forbids compiling it, or tuning.
        DriverError: arch is not given, or tune is True, and there is no usable driver or GPU.
    """

def configs(spec: AttentionSpec, arch: str | None = None) -> list[KernelConfig]:
    """The configs that are legal for a spec on an arch (that of the present GPU by default), the default one first."""

def archs() -> list[str]:
    """The architectures that can be compiled for: "sm_80", ...; "emu:sm_80" and "emu:sm_90a", where this build has
    them, are the emulator on this machine's CPU, with a C++ compiler in NVRTC's place."""

def clear_cache() -> None:
    """Forgets the kernels in memory: the next compile() looks into the disk cache. Kernels in use live on."""

def doctor() -> str:
    """What was found on this machine (NVRTC, driver, GPUs, cache, environment) and why it was chosen."""

def environment_variables() -> list[dict[str, str | None]]:
    """All variables that lazyrope reads: "name", "meaning", "allowed", "default", and "value" (None if not set)."""

def set_nvrtc_directories(directories: Sequence[str]) -> None: ...
