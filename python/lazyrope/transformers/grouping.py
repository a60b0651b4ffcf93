"""Attends, in the passes of a model, to groups of segments apart from all other keys: level "ape" of recovery."""

from __future__ import annotations

from typing import Any

import torch

from ..merging import merge
from .backend import Backend

Tensor = Any


class GroupedAttention:
    """The second attention call of each layer in passes with groups, and what it writes.

    All tokens of a pass are queries of that call. A token without a group sees no key there.

    Args:
        backend: The kernels of all layers.
        rows: The most tokens of a captured pass, whose tensors must stay where they are.
    """

    def __init__(self, backend: Backend, rows: int) -> None:
        self._backend = backend
        self._rows = rows
        self._out = self._lse = self._rest_lse = self._inverse_temperature = self._lse_scale = torch.empty(0)

    def update(self, views: dict[str, Tensor]) -> None:
        """Reads the temperatures and scales of the tokens of a pass from its packed arrays."""
        given = [views[name].view(torch.float32) for name in ("group.inverse_temperature", "group.lse_scale")]
        tokens = len(given[0])
        if tokens > len(self._lse_scale):
            self._allocate(max(tokens, self._rows))
        for held, values in zip((self._inverse_temperature, self._lse_scale), given, strict=True):
            held[:tokens].copy_(values)

    def _allocate(self, rows: int) -> None:
        """Makes tensors of finite numbers: the kernels write no row after those of the pass, but a graph merges all."""
        store, spec = self._backend.store, self._backend.spec
        options = {"dtype": torch.float32, "device": store.device}
        self._lse, self._rest_lse = (torch.zeros((rows, spec.num_q_heads), **options) for _ in range(2))
        self._inverse_temperature, self._lse_scale = (torch.ones(rows, **options) for _ in range(2))
        self._out = torch.empty(0)

    def lse_of_rest(self, q: Tensor) -> Tensor:
        """Returns the tensor for the log-sum-exp of the queries over the keys of no group."""
        return self._rest_lse[: len(q)]

    def merged(
        self,
        attention: Any,
        step: Any,
        q: Tensor,
        pools: tuple[Tensor, Tensor],
        out: Tensor,
        lse: Tensor,
        reading: dict[str, Tensor],
    ) -> Tensor:
        """Returns the attention of a layer to all keys.

        Args:
            attention: The layer's attention.
            step: The step of the pass with the segments of the groups.
            q: The queries of all tokens, [tokens, num_q_heads, head_dim].
            pools: The layer's keys and values.
            out: The attention to the keys of no group, of the shape of q.
            lse: Its log-sum-exp, float32 [tokens, num_q_heads].
            reading: The scales of the pools and the biases of keys, as arguments of the attention.
        """
        rows = slice(0, len(q))
        sharper = torch.mul(q, self._inverse_temperature[rows, None, None]).to(q.dtype)
        # The sinks of the model are in the other call. Here they add nothing to a sum.
        sinks = (
            torch.full(q.shape[1:2], -torch.inf, dtype=torch.float32, device=q.device) if attention.spec.sinks else None
        )
        group_out, group_lse = attention(
            sharper, *pools, step, out=self._group_out(out), lse=self._lse[rows], sinks=sinks, **reading
        )
        return merge(out, lse, group_out, group_lse, self._lse_scale[rows, None])

    def _group_out(self, out: Tensor) -> Tensor:
        if len(self._out) < len(out):
            self._out = torch.zeros_like(out)
        return self._out[: len(out)]
