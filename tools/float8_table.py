"""The figures of ``python -m tools.float8_accuracy`` as tables. This module imports no torch."""

from __future__ import annotations

from typing import Any

from tools.rag.tables import Table


def float8_tables(data: dict[str, Any]) -> dict[str, Table]:
    """Returns a table for each part that was measured: "random", "needle" and "model"."""
    made = {"random": _random, "needle": _needle, "model": _model}
    return {name: make(data[name]) for name, make in made.items() if name in data}


def _random(rows: list[dict[str, Any]]) -> Table:
    head = ["keys", "products of", "output error", "greatest LSE error"]
    return Table(
        head,
        [[str(r["keys"]), r["products"], f"{r['output_error']:.2%}", f"{r['lse_error']:.4f}"] for r in rows],
    )


def _needle(rows: list[dict[str, Any]]) -> Table:
    head = ["keys", "products of", "exact weight", "weight", "deviation of a row"]
    return Table(
        head,
        [
            [str(r["keys"]), r["products"], f"{r['exact']:.4f}", f"{r['weight']:.4f}", f"{r['deviation']:.2%}"]
            for r in rows
        ],
    )


def _model(rows: list[dict[str, Any]]) -> Table:
    head = ["pool and products", "KL", "same top token", "perplexity", "tokens"]
    return Table(
        head,
        [
            [
                r["pool"],
                f"{r['mean_kl']:.2e}",
                f"{r['agreement']:.2%}",
                f"{r['perplexity']:.3f}",
                str(r["tokens"]),
            ]
            for r in rows
        ],
    )
