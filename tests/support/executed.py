"""Records which settings of conftest.shared_list a module's tests have compared, and which kernels ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import lazyrope

from tests.support.cases import Case, Setting


@dataclass
class Executed:
    """The settings and kernels that a module's tests ran.

    Attributes:
        settings: the settings of steps and appends. Tests call attend() and append() after the comparison.
        kernels: the sources of the planners, and of the other kernels that had work.
    """

    settings: list[Setting] = field(default_factory=list)
    kernels: set[str] = field(default_factory=set)

    def attend(self, case: Case, kernel: lazyrope.Attention) -> None:
        self.settings.append(case.setting)
        decode = kernel.config.decode
        rows = [len(request.positions) * case.setting.group for request in case.requests]
        served = {
            "plan": True,
            "attend_decode": any(0 < n <= decode.warps_m * decode.warp_m for n in rows),
            "attend_prefill": any(n > decode.warps_m * decode.warp_m for n in rows),
        }
        self._add(kernel, (name for name, is_served in served.items() if is_served))

    def append(self, setting: Setting, kernel: lazyrope.Attention, tokens: int) -> None:
        self.settings.append(setting)
        self._add(kernel, ("plan_append", "append") if tokens > 0 else ("plan_append",))

    def _add(self, kernel: lazyrope.Attention, names: Iterable[str]) -> None:
        self.kernels |= {kernel.kernels[name].source for name in names}
