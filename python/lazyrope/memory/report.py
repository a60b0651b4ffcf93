"""The measured accuracy and cost of a memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class LayerReport:
    """The errors of one layer over held-out traces, compared with attention over the whole document.

    Attributes:
        output_error: For each KV head the norm of the outputs' error over the norm of the exact outputs.
        lse_error: For each KV head the root mean square error of the log-sum-exp, in nats.
        chosen: For each KV head how its entries were made, such as "mass, values".
    """

    output_error: tuple[float, ...]
    lse_error: tuple[float, ...]
    chosen: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The accuracy and the cost of a memory.

    The errors are of attention over the document alone. A request merges it with attention over its own tokens, which
    makes them smaller.

    Attributes:
        kind: "compact" or "states".
        layers: The errors of each layer.
        num_bytes: The bytes of the memory: all layers.
        read_bytes: The bytes that one step of decoding reads of it.
        exact_bytes: The bytes of the document's own keys and values.
        fitted: The trace tokens that the memory was fitted to.
        held_out: The trace tokens that the errors were measured on.
        seconds: The time of the construction, without the computation of the traces.
        peak_bytes: The most memory that the construction allocated on a GPU, or None on a CPU.
    """

    kind: str
    layers: tuple[LayerReport, ...]
    num_bytes: int
    read_bytes: int
    exact_bytes: int
    fitted: int
    held_out: int
    seconds: float
    peak_bytes: int | None

    @property
    def output_error(self) -> float:
        """The mean of the output errors over layers and heads."""
        return _mean([error for layer in self.layers for error in layer.output_error])

    @property
    def lse_error(self) -> float:
        """The mean of the log-sum-exp's errors over layers and heads, in nats."""
        return _mean([error for layer in self.layers for error in layer.lse_error])

    def __str__(self) -> str:
        """Returns a table with a line for each layer, and the costs."""
        peak = "" if self.peak_bytes is None else f", {self.peak_bytes / 2**20:.0f} MiB at most"
        lines = [
            f"memory of kind {self.kind}: {self.num_bytes} bytes, {self.num_bytes / self.exact_bytes:.1%} of the "
            f"document's {self.exact_bytes}; a step reads {self.read_bytes}",
            f"fitted to {self.fitted} trace tokens, {self.held_out} held out; {self.seconds:.1f} s{peak}",
            "layer  output error: mean  greatest  LSE error: mean  greatest",
        ]
        for i, layer in enumerate(self.layers):
            lines.append(
                f"{i:5}  {_mean(layer.output_error):18.4f}  {max(layer.output_error):8.4f}  "
                f"{_mean(layer.lse_error):15.4f}  {max(layer.lse_error):8.4f}"
            )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as numbers, texts and lists."""
        return asdict(self)

    @classmethod
    def of_dict(cls, values: dict[str, Any]) -> Report:
        """Returns the report that :meth:`as_dict` described."""
        layers = tuple(LayerReport(**{name: tuple(each) for name, each in row.items()}) for row in values["layers"])
        return cls(**(values | {"layers": layers}))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
