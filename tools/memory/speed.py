"""python -m tools.memory.speed [--kind KIND] [--json FILE]: the time and the memory of a construction on this device.

The shape is that of Llama-3.1-8B by default, with random keys, values and queries. A first model of one layer warms up.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import lazyrope
import torch
from lazyrope.memory import build

from tools.rag.environment import environment


def tensors(options: argparse.Namespace, layers: int) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """Returns keys, values and queries that attend to some directions more than to others."""
    generator = torch.Generator(options.device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=options.device)

    def layer() -> tuple[tuple[Any, Any], Any]:
        topics = normal(64, options.head_dim)
        chosen = torch.randint(64, (options.tokens, options.kv_heads), generator=generator, device=options.device)
        keys = topics[chosen] + normal(options.tokens, options.kv_heads, options.head_dim)
        values = normal(options.tokens, options.kv_heads, options.head_dim)
        queries = normal(options.traces, options.heads, options.head_dim)
        return (keys.bfloat16(), values.bfloat16()), queries.bfloat16()

    pairs, queries = zip(*(layer() for _ in range(layers)), strict=True)
    return list(pairs), list(queries)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.memory.speed", description=__doc__.split("\n\n")[0])
    for name, default, text in (
        ("layers", 32, "layers"),
        ("heads", 32, "query heads"),
        ("kv-heads", 8, "KV heads"),
        ("head-dim", 128, "columns of a head"),
        ("tokens", 8192, "tokens of the document"),
        ("traces", 4096, "trace tokens; times the query heads of a KV head they are its queries"),
        ("budget", 1024, "slots of a compact memory, or entries of states"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (%(default)s)")
    parser.add_argument("--kind", choices=("compact", "states"), default="compact")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--commit", metavar="HASH", help="the commit that is measured (default: git's)")
    options = parser.parse_args()
    spec = lazyrope.AttentionSpec(
        head_dim=options.head_dim,
        num_q_heads=options.heads,
        num_kv_heads=options.kv_heads,
        rope=lazyrope.rope.llama3(),
        query_form="rotated",
    )
    build(spec, *tensors(options, 1), options.kind, budget=options.budget)
    report = build(spec, *tensors(options, options.layers), options.kind, budget=options.budget).report
    peak = "" if report.peak_bytes is None else f", {report.peak_bytes / 2**30:.2f} GiB at most beside its input"
    queries = options.traces * options.heads // options.kv_heads
    print(f"{options.kind}: {queries} queries a KV head, {options.tokens} tokens, {options.layers} layers:")
    print(f"{report.seconds:.2f} s{peak}; {report.num_bytes / 2**20:.0f} MiB of {report.exact_bytes / 2**20:.0f} MiB")
    if options.json:
        figures = {"seconds": report.seconds, "peak_bytes": report.peak_bytes, "num_bytes": report.num_bytes}
        given = {name: value for name, value in vars(options).items() if name not in ("json", "commit")}
        options.json.write_text(json.dumps(environment(options.commit) | {"options": given} | figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
