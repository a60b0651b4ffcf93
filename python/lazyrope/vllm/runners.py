"""vLLM's two model runners: how a worker learns which request each row of a pass belongs to.

A runner orders the requests of a pass as it likes. The V1 runner keeps its order between passes, and the V2 runner
sorts the requests of each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class _ObservedPreparation:
    """Takes the place of the V2 runner's function that prepares attention, and remembers the order of the requests."""

    def __init__(self, prepare: Callable[..., Any]) -> None:
        self._prepare = prepare
        self.names: Sequence[str] = ()

    def __call__(self, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        self.names = input_batch.req_ids
        return self._prepare(input_batch, *args, **kwargs)


def request_names(runner: Any, is_v2: bool) -> Callable[[], Sequence[str]]:
    """Returns a function that gives the names of the requests of the pass, in the order of its rows.

    Args:
        runner: The model runner of a worker, whose model is loaded. It may be given again.
        is_v2: Whether it is the V2 runner.
    """
    if not is_v2:
        return lambda: runner.input_batch.req_ids
    state = runner.model_state
    if not isinstance(state.prepare_attn, _ObservedPreparation):
        state.prepare_attn = _ObservedPreparation(state.prepare_attn)
    observed = state.prepare_attn
    return lambda: observed.names
