"""Writes the README's tables: environment variables from the code, figures from tests/gpu/results.

python tools/readme_tables.py [--check]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import lazyrope

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "tests" / "gpu" / "results" / "bench.json"
BREADTH_RESULTS = RESULTS.with_name("breadth.json")
DECODE_RESULTS = RESULTS.with_name("decode.json")
SWEEP_RESULTS = RESULTS.with_name("sweep.json")
PREFILL_RESULTS = RESULTS.with_name("prefill.json")
RAG_RESULTS = RESULTS.with_name("rag.json")

sys.path.insert(0, str(ROOT))
from tools import breadth_table, decode_table, prefill_table  # noqa: E402
from tools.rag import tables  # noqa: E402  (found from any directory)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def environment() -> str:
    rows = [[f"`{v['name']}`", v["meaning"], v["allowed"], v["default"]] for v in lazyrope.environment_variables()]
    return table(["environment variable", "", "allowed", "default"], rows)


def test(path: str, name: str) -> str:
    """A link to a test, which must be there: a function of Python's, or Suite.Name of GoogleTest's."""
    text = (ROOT / "tests" / path).read_text()
    definition = r"TEST(_[FP])?\({}, {}\)".format(*name.split(".")) if "." in name else rf"^def {name}\("
    if not re.search(definition, text, flags=re.MULTILINE):
        sys.exit(f"README.md's table of what there is names tests/{path}: {name}, which is not there")
    return f"[`{name}`](tests/{path})"


def supported() -> str:
    """What the registries hold, and the tests that go through all of it."""
    steps = test("python/test_attention.py", "test_random_step")
    appends = test("python/test_append.py", "test_random_appends")
    moves = test("python/test_reposition.py", "test_random_moves")
    groups = test("python/test_attention.py", "test_a_group_of_more_heads_than_a_tile_has_rows")
    models = test("python/test_from_hf.py", "test_layers_are_as_transformers_runs_them")
    stored = test("python/test_fp8.py", "test_every_number_is_stored_as_pytorch_rounds_it")
    read = test("python/test_fp8.py", "test_every_number_is_read")
    configs = test("unit/codegen_tile_plan_test.cpp", "KernelConfig.EveryHeadDimHasOneOnEveryArch")

    def lines(*parts: str) -> str:
        return "<br>".join(parts)

    def meanings(rows: dict[str, str]) -> str:
        return lines(*(f"`{name}`: {meaning}" for name, meaning in rows.items()))

    compiled = lines(
        test("compile/compile_test.cpp", "Compiles.WithoutSpillsAndWarnings"),
        test("compile/table_test.cpp", "CompileTable.HasEveryRowWithoutSpills"),
    )

    archs = ", ".join(arch for arch in lazyrope.archs() if not arch.startswith("emu"))
    rows = [
        ["head_dim", ", ".join(map(str, lazyrope.head_dims())), lines(steps, appends, moves), lines(compiled, configs)],
        ["arch", archs, "", lines(compiled, configs)],
        ["RoPE", meanings(lazyrope.rope_variants()), lines(steps, appends, moves), compiled],
        ["mask", meanings(lazyrope.masks()), steps, compiled],
        ["scores", "scale, softcap, sinks", steps, compiled],
        ["dtype", "bfloat16, float16", lines(steps, appends, moves), compiled],
        ["dtype of the pool", "the same, float8_e4m3fn, float8_e5m2", lines(steps, stored, read), compiled],
        ["queries, new keys", "raw, rotated", lines(steps, appends), compiled],
        ["heads", "1 to 128 query heads for each KV head", lines(steps, groups), ""],
        ["pages", "any multiple of 16 tokens, NHD and HND, by strides", lines(steps, appends, moves), ""],
        ["`AttentionSpec.from_hf`", ", ".join(lazyrope.model_types()), models, ""],
    ]
    return table(["", "", "shown right by", "shown to compile by"], rows)


def shape_text(row: dict[str, Any]) -> str:
    if row["kernel"] == "decode":
        return f"{row['batch']} x {row['context'] // 1024}k"
    if row["kernel"] in ("append", "reposition"):
        return f"{row['batch']} x {row['query_tokens']} tokens"
    return f"{row['query_tokens']} x {row['context'] // 1024}k"


def rate_text(row: dict[str, Any]) -> str:
    return f"{row['tbps']:.2f} TB/s" if "tbps" in row else f"{row['tflops']:.0f} TFLOP/s"


def results(data: dict[str, Any]) -> str:
    """Of ``lazyrope bench all``."""
    about = (
        f"{measured_on(data)}; torch {data['versions']['torch']}, "
        f"8192^3 bf16 GEMM {data['gemm_tflops']:.0f} TFLOP/s, an empty launch {data['floor_us']:.1f} us."
    )
    host = data["host"]
    costs = (
        f"On that machine's host: `compile()` {host['cold_compile_ms']:.0f} ms with an empty cache and two cores, "
        f"{host['disk_hit_ms']:.1f} ms from the disk; a call from Python {host['call_us']:.1f} us, "
        f"{host['call_allocating_us']:.1f} us if it allocates its results (PyTorch's own `zero_()` "
        f"{host['torch_op_us']:.1f} us)."
    )
    rows = []
    for row in data["rows"]:
        peers = row["peers"]
        rows.append(
            [
                row["kernel"],
                shape_text(row),
                f"{row['us']:.1f}",
                rate_text(row),
                f"{row['stream_us']:.1f}" if "stream_us" in row else "",
                ", ".join(f"{name} {us:.1f} ({us / row['us']:.2f}x)" for name, us in peers.items()),
            ]
        )
    head = ["kernel", "batch or queries x context", "us", "rate", "stream us", "peers, us (over ours)"]
    moves = any(row["kernel"] == "reposition" for row in data["rows"])
    eager = "; reposition's `torch_eager` gathers, rotates and scatters the pool's own" if moves else ""
    text = (
        "Always lazy: Llama 3 RoPE on raw queries, 1024-token documents in shuffled 16-token pages, 32 query and 8 KV "
        "heads, head_dim 128, bfloat16, queries after all documents; medians of CUDA events, L2 flushed, all in one "
        f"process. The peers are PyTorch's and read contiguous keys that were rotated beforehand{eager}. `stream` is a "
        "plain sum over the bytes that a row reads."
    )
    return f"{text}\n\n{table(head, rows)}\n\n{costs}\n\n{about}"


def breadth(data: dict[str, Any]) -> str:
    """Of ``lazyrope bench breadth``."""
    return "\n\n".join(
        [
            "All shapes, as above but with NeoX RoPE and 1, 4 and 8 query heads for each of 8 KV heads (8-bit KV: 4). "
            "A plain sum over the same bytes would be 1.00.",
            table(breadth_table.HEAD, breadth_table.lines(data["rows"])),
            breadth_table.text(data["rows"]),
            f"{measured_on(data)}.",
        ]
    )


def versions(data: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in data["versions"].items() if name != "lazyrope")


def decode(data: dict[str, Any]) -> str:
    """Of ``lazyrope bench decode``."""
    about = (
        "Decode beside the others, as above: always lazy, one query token and 1024-token documents in 16-token pages "
        "unless said. Peers that are not said to be contiguous read pages of the same size; only what is built from "
        "FlashInfer's parts knows documents at positions of their own. Required is a time of at most what is named."
    )
    return "\n\n".join(
        [
            about,
            table(decode_table.HEAD, [decode_table.line(row) for row in data["rows"]]),
            f"{measured_on(data)}; {versions(data)}, an empty launch {data['floor_us']:.1f} us.",
        ]
    )


def prefill(data: dict[str, Any]) -> str:
    """Of ``lazyrope bench prefill``; the plots are tools/prefill_plots.py's."""
    plots = PREFILL_RESULTS.parent.relative_to(ROOT)
    about = (
        "Prefill beside the others, as above: always lazy, 1024-token documents in 16-token pages, 32 query and 8 KV "
        "heads, head_dim 128, queries after all documents unless said. Contiguous keys were rotated beforehand. "
        "Required is a time of at most what is named; the squares are the rows with as many queries as keys."
    )
    return "\n\n".join(
        [
            f"![Rate over length]({plots}/prefill-over-length.svg)",
            "Whole requests, 16384 tokens in all, 32 query and KV heads (16 at head_dim 256); peers on contiguous keys "
            "where they are so in the table.",
            f"![Cost of documents]({plots}/prefill-over-documents.svg)",
            "A row's time over that of the same queries over one document that nothing rotates.",
            about,
            table(prefill_table.HEAD, [prefill_table.line(row) for row in data["rows"]]),
            prefill_table.peers_text(data["rows"]),
            prefill_table.documents_text(data["rows"]),
            *map(prefill_table.mean_text, data["means"]),
            f"{measured_on(data)}; {versions(data)}, 8192^3 bf16 GEMM {data['gemm_tflops']:.0f} TFLOP/s.",
        ]
    )


def sweep(data: dict[str, Any]) -> str:
    """Of ``lazyrope bench sweep``; the plots are tools/decode_plots.py's."""
    plots = SWEEP_RESULTS.parent.relative_to(ROOT)
    return "\n\n".join(
        [
            f"![Bandwidth over context]({plots}/decode-over-context.svg)",
            f"![Bandwidth over batch]({plots}/decode-over-batch.svg)",
            decode_table.sweep_text(data["rows"]),
            f"{measured_on(data)}.",
        ]
    )


def measured_on(data: dict[str, Any]) -> str:
    return f"{data['gpu']}, driver {data['driver']}, {data['date']}, commit {data['commit']}, `{data['command']}`"


def rag(data: dict[str, Any]) -> str:
    """Of ``python -m tools.rag --json``; without the part that is missing."""
    parts = []
    if "right" in data:
        right = data["right"]
        parts += [f"{tables.about_right(right)}.", markdown(tables.fidelity(right["systems"]))]
    if "worth" in data:
        worth = data["worth"]
        parts += [f"{tables.about_single(worth)}.", markdown(tables.single(worth))]
        parts += [f"{tables.about_served(worth)}.", markdown(tables.served(worth))]
    complaints = [f"Not as it should be: {complaint}." for complaint in data["complaints"]]
    return "\n\n".join([*parts, *complaints, tables.about_line(data)])


def markdown(given: tables.Table) -> str:
    return table(given.head, given.rows)


def replaced(text: str, name: str, content: str) -> str:
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", flags=re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"README.md has no place for the table: <!-- {name} --> and <!-- /{name} -->")
    return pattern.sub(lambda m: f"{m[1]}{content}\n{m[2]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the README is not current; change nothing")
    check = parser.parse_args().check
    before = README.read_text()
    after = replaced(before, "environment", environment())
    after = replaced(after, "supported", supported())
    tables_of_results = {
        "results": (RESULTS, results),
        "decode": (DECODE_RESULTS, decode),
        "sweep": (SWEEP_RESULTS, sweep),
        "prefill": (PREFILL_RESULTS, prefill),
        "breadth": (BREADTH_RESULTS, breadth),
        "rag": (RAG_RESULTS, rag),
    }
    for name, (file, content) in tables_of_results.items():
        if file.exists():
            after = replaced(after, name, content(json.loads(file.read_text())))
    if check and after != before:
        sys.exit("README.md is not current: run python tools/readme_tables.py")
    README.write_text(after)


if __name__ == "__main__":
    main()
