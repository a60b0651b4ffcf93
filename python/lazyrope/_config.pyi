"""Describes configs of kernels, a part of _core.pyi. This module does not exist at run time: import from lazyrope."""

from typing import Any, Literal, final

@final
class TileConfig:
    """The tile of one attend kernel: the shape of its warps and of its pipeline.

    Either warps_m or warps_n is 1. A work tile has at most ``warps_m * warp_m`` packed rows. The field names follow
    CUTLASS: m counts query rows, n counts keys.
    """

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
        family: Literal["sm80", "sm90a"] = "sm80",
        heads: int = 1,
    ) -> None: ...
    @property
    def warps_m(self) -> int:
        """The number of warps that divide the query rows; in decode of family "sm90a", of warpgroups."""

    @property
    def warps_n(self) -> int:
        """The number of warps that divide the keys."""

    @property
    def warp_m(self) -> int:
        """The query rows of a warp, a multiple of 16."""

    @property
    def warp_n(self) -> int:
        """The keys of a warp's block, a multiple of 16."""

    @property
    def mma_n(self) -> int:
        """The keys of one matrix product, a multiple of 16 that divides warp_n."""

    @property
    def stages(self) -> int:
        """The stages of a ring in shared memory, at least 2: blocks in prefill, keys or values in decode."""

    @property
    def ctas_per_sm(self) -> int:
        """The number of CTAs that the registers and the shared memory of an SM must suffice for."""

    @property
    def family(self) -> Literal["sm80", "sm90a"]:
        """The kernel family: "sm80" (mma.sync and cp.async, on every GPU) or "sm90a" (wgmma and TMA, on Hopper)."""

    @property
    def heads(self) -> int:
        """The number of KV heads that share the rows of a tile: 1, or 2 in decode of "sm90a" at head_dim 64."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, arg0: dict[str, Any], /) -> None: ...

@final
class KernelConfig:
    """The choice among kernels that compute the same function: the tiles and the limits of KV splits.

    :func:`configs` lists the configs of a spec. Results of different configs differ by rounding alone.
    """

    def __init__(
        self,
        *,
        decode: TileConfig,
        prefill: TileConfig,
        min_split_blocks: int = 2,
        heads_per_work_tile: int = 1,
        fixed_split_blocks: int = 0,
        share_above_kib: int = 131072,
        equal_splits: bool = True,
    ) -> None: ...
    @property
    def decode(self) -> TileConfig:
        """The tile for short requests: at most one tile of query tokens times group_size."""

    @property
    def prefill(self) -> TileConfig:
        """The tile for all other requests."""

    @property
    def min_split_blocks(self) -> int:
        """The fewest KV blocks of a KV split at either end of a tile."""

    @property
    def heads_per_work_tile(self) -> int:
        """The most KV heads that a work tile of decode may have."""

    @property
    def fixed_split_blocks(self) -> int:
        """The KV blocks of a fixed split, or 0 for splits that depend on the whole step.

        If it is not 0, the KV splits of a request do not depend on the other requests of the step. A split has this
        many blocks, or more if a tile would have more than 16 splits.
        """

    @property
    def share_above_kib(self) -> int:
        """With a cascade, the KiB that a step must save reading to share segments."""

    @property
    def equal_splits(self) -> bool:
        """Whether the query tiles of small steps are cut into equal KV splits, and not into splits of equal cost."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, arg0: dict[str, Any], /) -> None: ...
