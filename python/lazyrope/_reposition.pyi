"""Describes reposition, a part of _core.pyi. This module does not exist at run time: import from lazyrope."""

from typing import Any, final

from ._core import AppendStep, AttentionSpec, CompiledKernel, Tensor

@final
class Reposition:
    """The compiled kernel that copies tokens to other slots of their pool and rotates their keys to other indices.

    An engine needs it if it rotates a cached document's keys again for each request, as Block-Attention (arXiv
    2409.15355) does. :func:`compile_reposition` makes it. It is immutable and may be used from several threads. A copy
    of it is the object itself. A pickle of it holds the spec and the arch, and to load it compiles the kernel or takes
    it from the cache.
    """

    def __call__(
        self,
        k_pool: Tensor,
        v_pool: Tensor,
        source: AppendStep,
        target: AppendStep,
        *,
        check: bool = False,
        stream: int | None = None,
    ) -> None:
        """Copies row i of source to row i of target.

        The value is copied. The key is rotated by target's index minus source's index, in fp32, and rounded once. So a
        document is copied to base b if source is planned with ``start = 0`` and target with ``start = b``. Keys are
        rotated whatever the spec's append_form is. RoPE's attention factor is not applied, for stored keys have it
        already. The call is asynchronous, and a CUDA graph can capture it.

        In a pool of 8 bits, a rotated key is rounded to 8 bits once more: by at most 1/16 of an element with
        float8_e4m3fn, and 1/8 with float8_e5m2 (more near 0, where the numbers are equally spaced). An element beyond
        the greatest number becomes that number. So move a document from its stored copy each time, not from a moved
        one. Scales do not matter, if source and target have the same.

        No slot may be both read and written, or written twice: its contents are then undefined.

        Args:
            k_pool: Keys, read and written: [pages, page_size, kv_heads, head_dim] (layout NHD) or [pages, kv_heads,
                page_size, head_dim] (HND), of the spec's kv_dtype. An 8-bit pool may also be uint8. The last dimension
                is contiguous. The address and the other strides are multiples of 16 bytes.
            v_pool: Values, of the same shape and strides.
            source: The slots to read: an append step for the same device, page_size and layout.
            target: The slots to write: an append step with the same ``capacity.tokens`` as source. A row that either
                step does not have is not copied.
            check: If True, the call waits for the stream and checks both steps. Every page must be in the pool, and no
                slot may be both read and written, or written twice. It is refused during stream capture.
            stream: A cudaStream_t or CUstream. The default is the current stream of k_pool's framework.

        Raises:
            SpecError: A tensor has a wrong dtype, shape, stride, alignment or device, or source and target do not fit
                together. With ``check``, also a page that is not in the pool, or a slot that must not be written.
            DriverError: A call of the driver failed.
        """

    @property
    def spec(self) -> AttentionSpec:
        """The attention of the pool."""

    @property
    def arch(self) -> str:
        """The architecture of the kernel, one of :func:`archs`."""

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel that :meth:`__call__` launches."""

    def __copy__(self) -> Reposition: ...
    def __deepcopy__(self, memo: Any, /) -> Reposition: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def compile_reposition(spec: AttentionSpec, arch: str | None = None) -> Reposition:
    """Returns the kernel that copies tokens to other positions, from memory, the disk cache, or compiled.

    :func:`compile` does not make this kernel. ``lazyrope precompile --reposition`` puts it into the cache beforehand.

    Args:
        spec: The attention of the pool. Its mask, forms, scale and query heads make no difference.
        arch: One of :func:`archs`. The default is that of the current GPU.

    Raises:
        SpecError: As in :func:`compile`.
        CompileError: As in :func:`compile`.
        CacheError: As in :func:`compile`.
        DriverError: As in :func:`compile`.
    """
