"""The tables of ``python -m tools.bench``: their rows, and the limits of rows together."""

from __future__ import annotations

from lazyrope.bench import tables as user

from tools.bench.bias import bias
from tools.bench.breadth import breadth
from tools.bench.decode import DECODE, sweep
from tools.bench.limits import MeanLimit
from tools.bench.mass import mass
from tools.bench.memories import memories
from tools.bench.prefill import MEANS, PREFILL
from tools.bench.ropes import ropes
from tools.bench.shapes import of_user
from tools.bench.shared import shared
from tools.bench.states import states

TABLES = {
    "decode": DECODE,
    "sweep": sweep(),
    "prefill": PREFILL,
    "breadth": breadth(),
    "ropes": ropes(),
    "shared": shared(),
    "mass": mass(),
    "bias": bias(),
    "memories": [*memories(), *states()],
    "all": [of_user(shape) for shape in user.TABLES["all"]],
}

TABLE_LIMITS: dict[str, tuple[MeanLimit, ...]] = {"prefill": MEANS}
