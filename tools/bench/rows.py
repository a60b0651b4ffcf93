"""Measures the rows of ``python -m tools.bench``."""

from __future__ import annotations

from collections.abc import Callable

import lazyrope
from lazyrope.bench import rows as user
from lazyrope.bench.rows import Requests, Row

from tools.bench.shapes import Shape

OLDEST_ARCH = "sm_80"  # every GPU runs the kernels of this arch's family


class Bench(user.Bench):
    def compile(self, shape: Shape) -> lazyrope.Attention:
        """Compiles the default config for this GPU. A shape with ``family`` gets the config of the oldest GPUs."""
        if not shape.family and not shape.config:
            return super().compile(shape)
        default = lazyrope.configs(shape.spec(), OLDEST_ARCH if shape.family else self.arch)[0]
        config = lazyrope.KernelConfig(**default.__getstate__() | shape.config)
        return lazyrope.compile(shape.spec(), arch=self.arch, config=config, tune=False)


def attention_row(shape: Shape, bench: Bench) -> Row:
    """Measures decode or prefill, interleaved with the shape's variants and peers."""
    own = {name: shape.variant(values) for name, values in shape.variants.items()}
    return user.attention_row(shape, bench, own, shape.of_peers)


def plan_row(shape: Shape, bench: Bench) -> Row:
    """Measures the planner and an empty launch."""
    import torch

    requests = Requests(shape, bench)
    times = bench.timer.medians({"us": requests.update, "floor_us": lambda: torch.cuda._sleep(1)})
    return {**times, "segments": sum(map(len, shape.documents)), "own": {}, "peers": {}}


KINDS: dict[str, Callable[[Shape, Bench], Row]] = {
    **user.KINDS,
    "decode": attention_row,
    "prefill": attention_row,
    "plan": plan_row,
}
