"""The part of _core.pyi that is about reposition. There is no such module at run time: import from lazyrope."""

from typing import final

from ._core import AppendStep, AttentionSpec, CompiledKernel, Tensor

@final
class Reposition:
    """The compiled kernel that copies tokens to other slots of their pool, at other indices: what an engine does that
    rotates a cached document's keys anew for each request, as Block-Attention (arXiv 2409.15355) does. Made by
    :func:`compile_reposition`. Immutable; may be used from several threads."""

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
        """Copies row i of source to row i of target: its value as it is, its key turned by the tokens that target's
        index is beyond source's, in fp32 and rounded once. So the copy of a whole document at base b is source planned
        with start = 0 and target with start = b. Keys are turned whatever the spec's append_form, and are not scaled by
        RoPE's attention factor, which they have already. Asynchronous; capturable in a CUDA graph.

        No slot may be both read and written, or written twice: what it then holds is not defined.

        Args:
            k_pool: keys, read and written, [pages, page_size, kv_heads, head_dim] (layout NHD) or [pages, kv_heads,
                page_size, head_dim] (HND), of the spec's dtype. The last dimension is contiguous; the address and the
                other strides are multiples of 16 bytes.
            v_pool: values, of the same shape and strides.
            source: where the rows lie: from :meth:`Attention.plan_append`, for the same device, page_size and layout.
            target: where they go: as source, with the same ``capacity.tokens``. Rows that either does not have are
                left alone.
            check: waits for the stream and checks that every page is one of the pool's, and that no slot is both read
                and written, or written twice; refused while the stream is captured.
            stream: a cudaStream_t or CUstream; the stream that k_pool's framework works on by default.

        Raises:
            SpecError: a tensor's dtype, shape, strides, alignment or device is wrong, source and target do not go
                together, or, with ``check``, a page is not in the pool or a slot is written that must not be.
            DriverError: a call of the driver failed.
        """

    @property
    def spec(self) -> AttentionSpec: ...
    @property
    def arch(self) -> str: ...
    @property
    def kernel(self) -> CompiledKernel: ...

def compile_reposition(spec: AttentionSpec, arch: str | None = None) -> Reposition:
    """The kernel that copies tokens to other positions: from memory, else from the disk cache, else compiled. It is
    none of those of :func:`compile`; ``lazyrope precompile --reposition`` puts it into the cache beforehand.

    Args:
        spec: of the attention whose pool it is; mask, forms, scale and query heads are of no consequence.
        arch: one of :func:`archs`; that of the present GPU by default.

    Raises:
        SpecError, CompileError, CacheError, DriverError: as :func:`compile`.
    """
