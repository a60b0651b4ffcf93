"""Writes the pages of results and of the reference, and the README's tables, from the code and from tests/gpu/results.

python -m tools.docs_pages [--check]

A file tools/pages/FOLDER/NAME.md.j2 is the template of python/docs/FOLDER/NAME.md; a file tools/pages/readme/NAME.md.j2
is that of the README's text between <!-- NAME --> and <!-- /NAME -->. The pages are committed: the README links to
them, and the site is built without a compiled lazyrope.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import lazyrope
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from tabulate import tabulate

from tools import breadth_table, decode_table, prefill_table
from tools.comparison import PEERS, span, thousands
from tools.float8_table import float8_tables
from tools.memory.tables import summary
from tools.memory.texts import PEOPLE
from tools.rag import tables
from tools.rag.tables import Table
from tools.rows_table import rows_table
from tools.vllm_bench import report
from tools.vllm_bench.cells import Cell, cells

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "python" / "docs"
TEMPLATES = ROOT / "tools" / "pages"
RESULTS = ROOT / "tests" / "gpu" / "results"
NAMES = ("bench", "decode", "sweep", "prefill", "breadth", "rag", "vllm")


# A number, a range of two, or a number with another one in brackets.
NUMBER = re.compile(r"[+-]?\d[\d.e+-]*(?: to [\d.]+)?[x%]?(?: \([\d.]+x\))?")


def markdown(table: Table) -> str:
    """Returns a Markdown table; columns of numbers are flushed right."""
    sides = ["right" if all(map(is_number, column[1:])) else "left" for column in table.columns()]
    sides[0] = "left"
    return tabulate(table.rows, table.head, tablefmt="pipe", colalign=sides, disable_numparse=True)


def is_number(cell: str) -> bool:
    return not cell or NUMBER.fullmatch(cell) is not None


def columns(table: Table, *wanted: int, head: list[str] | None = None) -> Table:
    """Returns some of a table's columns, under other titles if any are given."""
    rows = [[row[i] for i in wanted] for row in table.rows]
    return Table(head or [table.head[i] for i in wanted], rows)


def environment() -> dict[str, Any]:
    rows = [[f"`{v['name']}`", v["meaning"], v["allowed"], v["default"]] for v in lazyrope.environment_variables()]
    return {"table": Table(["variable", "meaning", "allowed", "default"], rows)}


def found_test(name: str, files: str = "*") -> str:
    """Returns the file and the name of a pytest or GoogleTest function, which must exist once in these files."""
    definition = re.compile(rf"^def {name}\(|^TEST(?:_[FP])?\((\w+), {name}\)", flags=re.MULTILINE)
    found = []
    for file in sorted((ROOT / "tests").rglob(files)):
        if file.suffix in (".py", ".cpp") and (match := definition.search(file.read_text())):
            suite = f"{match[1]}." if match[1] else ""
            found.append(f"`{file.relative_to(ROOT).as_posix()}`: `{suite}{name}`")
    if len(found) != 1:
        sys.exit(f"the table of what is supported names the test {name}, which exists {len(found)} times in tests/")
    return found[0]


def supported() -> dict[str, Any]:
    """Returns what the registries hold, and the tests that cover all of it."""
    steps = found_test("test_random_step", "test_attention.py")
    appends, moves = map(found_test, ("test_random_appends_agree_with_fp64", "test_random_moves_agree_with_fp64"))
    stored, read = map(
        found_test, ("test_every_number_is_stored_with_pytorch_rounding", "test_every_number_is_read_exactly")
    )
    compiled = [found_test("WithoutSpillsAndWarnings"), found_test("HasEveryRowWithoutSpills")]
    configs = found_test("EveryHeadDimHasAConfigOnEveryArch")
    groups = found_test("test_a_group_with_more_heads_than_tile_rows_is_computed")
    models = found_test("test_specs_of_layers_agree_with_transformers")
    change = found_test("test_specs_agree_with_transformers_after_any_change_of_one_key")
    wrapped = found_test("test_the_specs_of_a_wrapper_are_those_of_its_text_model")
    published = found_test("test_a_published_config_gives_the_attention_of_transformers")
    moved = found_test("test_moved_keys_are_rotated_and_rounded_once_more")
    served = found_test("test_a_model_over_moved_documents_equals_transformers")
    return {
        "archs": [arch for arch in lazyrope.archs() if not arch.startswith("emu")],
        "head_dims": lazyrope.head_dims(),
        "ropes": lazyrope.rope_variants(),
        "masks": lazyrope.masks(),
        "models": model_types(),
        "tests": {
            "head_dim": [steps, appends, moves, *compiled, configs],
            "GPU architecture": [*compiled, configs],
            "RoPE variant": [steps, appends, moves, *compiled],
            "mask": [steps, *compiled],
            "scale, softcap, sinks, temperature": [steps, *compiled],
            "dtype": [steps, appends, moves, *compiled],
            "8-bit pools": [steps, stored, read, moved, *compiled],
            "query and append form": [steps, appends, *compiled],
            "query heads for each KV head": [steps, groups],
            "page size and layout": [steps, appends, moves],
            "`AttentionSpec.from_hf`": [models, change, wrapped, published],
            "`lazyrope.transformers`": [served],
        },
    }


def model_types() -> Table:
    """Returns a row for each model type of from_hf, from the registry.

    Each type is also a case of the first test of from_hf in the table of tests, under its name. The types that the test
    cannot run are named with a test of their own.
    """
    every = "default, linear, llama3, yarn, longrope, dynamic"
    own = {
        "gptj": "test_gptj_rotates_as_transformers_does",
        "falcon": "test_heads_of_falcon_equal_those_of_transformers",
    }
    rows = []
    for name, type_ in lazyrope.model_types().items():
        test = own.get(name, f"test_specs_of_layers_agree_with_transformers[{name}]")
        found_test(test.partition("[")[0])
        rows.append(
            [
                f"`{name}`",
                type_["heads"],
                type_["windows"],
                type_["rope"].replace(every, "all"),
                type_["notes"],
                f"`{test}`",
            ]
        )
    return Table(["model type", "KV heads", "windows", "rope_type", "notes", "test"], rows)


def bench(data: dict[str, Any]) -> dict[str, Any]:
    """Returns the tables of ``python -m tools.bench all``."""
    rows = []
    for row in data["rows"]:
        peers = (f"{PEERS.get(name, name)} {us:.1f} ({us / row['us']:.2f}x)" for name, us in row["peers"].items())
        rate = f"{row['tbps']:.2f} TB/s" if "tbps" in row else f"{row['tflops']:.0f} TFLOP/s"
        stream = f"{row['stream_us']:.1f}" if "stream_us" in row else ""
        rows.append([row["kernel"], shape_text(row), f"{row['us']:.1f}", rate, stream, ", ".join(peers)])
    head = ["kernel", "shape", "us", "rate", "plain sum, us", "peers, us (over lazyrope's)"]
    host = data["host"]
    costs = [
        ["`compile()`, empty cache, two cores", f"{host['cold_compile_ms']:.0f} ms"],
        ["`compile()` from the disk cache", f"{host['disk_hit_ms']:.1f} ms"],
        ["a call from Python with `out=` and `lse=`", f"{host['call_us']:.1f} us"],
        ["a call from Python that allocates its results", f"{host['call_allocating_us']:.1f} us"],
        ["PyTorch's `zero_()`, for comparison", f"{host['torch_op_us']:.1f} us"],
    ]
    return {"rows": Table(head, rows), "host": Table(["on the host", "time"], costs)}


def shape_text(row: dict[str, Any]) -> str:
    if row["kernel"] == "decode":
        return f"{row['batch']} x {thousands(row['context'])}"
    if row["kernel"] in ("append", "reposition"):
        return f"{row['batch']} x {row['query_tokens']} tokens"
    return f"{row['query_tokens']} x {thousands(row['context'])}"


def rag(data: dict[str, Any]) -> dict[str, Any]:
    """Returns the tables of ``python -m tools.rag --json``, without those of a part that was not measured."""
    result: dict[str, Any] = {}
    if "fidelity" in data:
        whole = tables.fidelity(data["fidelity"]["systems"])
        compared = sum(name in data["fidelity"]["systems"] for name in tables.SYSTEMS if name != tables.REFERENCE)
        systems = [name for name in tables.SYSTEMS if name in data["fidelity"]["systems"]]
        first = 2
        for name, titles in (("divergence", systems[:compared]), ("agreement", systems[:compared])):
            result[name] = columns(whole, 0, 1, *range(first, first + compared), head=["tokens of", "tokens", *titles])
            first += compared
        result["perplexity"] = columns(
            whole, 0, 1, *range(first, len(whole.head)), head=["tokens of", "tokens", *systems]
        )
        cases = data["fidelity"]["cases"]
        result["documents"] = span((case["documents"] for case in cases), 0)
        result["contexts"] = span((case["context"] for case in cases), 0)
        result["margin"] = max((one["margin"] for one in data["fidelity"]["divergences"]), default=0.0)
    if "serving" in data:
        single = tables.single(data["serving"])
        result["single"] = Table(["store", *single.head[1:]], single.rows)
        served = tables.served(data["serving"])
        titles = {"exponent": "Zipf exponent", "at most": "admitted at most", "alive": "admitted on average"}
        result["served"] = Table([titles.get(title, title) for title in served.head], served.rows)
    return result


# The levels of the RAG page: the name in quality.json and the case in ttft.json.
LEVELS = {
    "none": "none",
    "prefix": "prefix",
    "prefix + ape": "ape",
    "prefix + first_page 16": "first_page_new",
    "prefix + guided 15%": "guided",
}
NOT_MEASURED = "not measured"


def recovery(quality: dict[str, Any] | None, ttft: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the table of quality and speed of each level, and the runs that it is from.

    Args:
        quality: The figures of ``python -m tools.quality --json``, or None if no run is kept.
        ttft: The figures of ``python -m tools.quality.ttft --json``, or None.
    """
    levels = {row["level"]: row for row in (quality or {"summary": {"all": []}})["summary"]["all"]}
    times = {row["case"]: f"{row['us'] / 1e3:.1f}" for row in (ttft or {"rows": []})["rows"]}
    head = ["level", "mean KL", "gap closed", "same first token", "computed again", "TTFT, ms"]
    rows = [[name, *_quality_cells(levels.get(name)), times.get(case, NOT_MEASURED)] for name, case in LEVELS.items()]
    rows.append(["full", "0", "100.0%", "100.0%", "100.0%", times.get("full", NOT_MEASURED)])
    return {"table": Table(head, rows), "quality": quality, "ttft": ttft, "stored_overlays": times.get("first_page")}


def _quality_cells(row: dict[str, Any] | None) -> list[str]:
    if row is None:
        return [NOT_MEASURED] * 4
    shares = (row["gap_closed"], row["first_token_agreement"], row["share"])
    return [f"{row['kl_mean']:.3f}", *(f"{share:.1%}" for share in shares)]


def vllm(data: dict[str, Any]) -> dict[str, Any]:
    """Returns the text of the measured cells of ``python -m tools.vllm_bench``, and how many cells there are."""
    about = {name: data[name] for name in ("gpu", "driver", "date", "commit", "command")}
    loads = [row for row in data["rows"] if "warm_s" in row]
    return {
        "text": report.text(data["rows"], is_complete=False),
        "measured": len({row["cell"] for row in data["rows"]}),
        "cells": len(cells()),
        "least": {
            which: {
                name: f"{min((row[name] for row in loads if ('trials' in row) == tried), default=0):.0f}"
                for name in ("warm_s", "seconds")
            }
            for which, tried in (("tried", True), ("others", False))
        },
        "about": about | {"versions": {"vllm": data["vllm"]}},
    }


def memory(data: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the tables of ``python -m tools.memory --json``, by the kind of text, and the run that they are from."""
    cells = [] if data is None else data["cells"]
    kinds = list(dict.fromkeys(cell["kind"] for cell in cells))
    seeds = {kind: len({cell["seed"] for cell in cells if cell["kind"] == kind}) for kind in kinds}
    tables_of = {kind: summary(data or {}, kind) for kind in kinds}
    return {"tables": tables_of, "seeds": seeds, "about": data, "people": PEOPLE}


# The kept runs that have one table, with the titles of the times that are measured beside each row.
KEPT_TABLES: dict[str, tuple[str, dict[str, str]]] = {
    "decode_documents": ("decode_documents", {"plain": "one document, us", "equal_cost": "cut by cost, us"}),
    "prefill_shapes": (
        "prefill_shapes",
        {
            "sm80": "family sm80, us",
            "pool_16": "16-bit pool, us",
            "from_pool": "not packed, us",
            "dtype": "16-bit products, us",
        },
    ),
    "memory_times": (
        "memories",
        {
            "exact": "exact, us",
            "exact_cascade": "exact, read once, us",
            "compact_256": "compact 256, us",
            "flat": "flat, us",
        },
    ),
    "bias": ("bias", {"without": "without a bias, us"}),
}


def kept_tables() -> dict[str, Any]:
    """Returns the kept runs of KEPT_TABLES with their tables, and the figures of memories that the text names."""
    found: dict[str, Any] = {}
    for name, (file, own) in KEPT_TABLES.items():
        data = kept(file)
        found |= {name: data, f"{name}_table": rows_table(data["rows"], own) if data else None}
    times = found["memory_times"]
    gains = [row["us"] / row["own"]["exact"] for row in times["rows"][:2]] if times else [0.0, 0.0]
    float8 = kept("float8_accuracy")
    return found | {
        "float8": float8 and {"about": float8, "tables": float8_tables(float8)},
        "memory_speed": kept("memory_speed"),
        "memory_gains": {"alone": f"{gains[0]:.2f}", "each": f"{gains[1]:.2f}"},
    }


def kept(name: str) -> dict[str, Any] | None:
    """Returns a result that may not have been measured yet, or None."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def point(data: dict[str, Any]) -> dict[str, Any]:
    """Returns the README's rows: what documents that are stored once save, and what attention over them costs."""
    serving = data["rag"]["serving"]
    alone = {(row["mode"], row["state"]): row for row in serving["single"]}
    lazy, block, again = alone["lazy", "warm"], alone["block", "warm"], alone["recompute", "cold"]
    shape = serving["shape"]
    gib = 1 << 30
    rows = [
        [
            f"Time to first token over {shape['documents']} stored documents of {shape['document_tokens']} tokens",
            f"{lazy['first_token_ms']:.1f} ms",
            f"{again['first_token_ms']:.0f} ms recomputed, {block['first_token_ms']:.1f} ms copied",
        ],
        [
            "KV memory that this request adds to the store",
            f"{lazy['private_bytes'] / gib:.2f} GiB",
            f"{again['private_bytes'] / gib:.2f} GiB recomputed, {block['private_bytes'] / gib:.2f} GiB copied",
        ],
        kernel_point(data["decode"]["rows"], "decode", 1, 4096, "64 requests over {} tokens each"),
        kernel_point(data["prefill"]["rows"], "prefill", 512, 32768, "512 queries over {} tokens"),
        *vllm_points(data["vllm"]),
    ]
    gpus = {data["decode"]["gpu"], data["prefill"]["gpu"], data["rag"]["device"]}
    return {"table": Table(["measured", "lazyrope", "without lazy RoPE"], rows), "gpu": " and ".join(sorted(gpus))}


def vllm_points(data: dict[str, Any]) -> list[list[str]]:
    """Returns the lines of vLLM with lazyrope beside stock vLLM."""
    found = report.medians(data["rows"])
    alone, first = (found[Cell(arm, "first_token").name] for arm in ("stock", "documents"))
    loaded, shared = (
        found[Cell(arm, "closed", zipf=1.1, budget_gib=16).name]["requests_per_s"] for arm in ("stock", "documents")
    )
    return [
        [
            "vLLM: time to first token, 5 stored documents of 2048 in a new order",
            f"{first['new_order_ms']:.1f} ms",
            f"{alone['new_order_ms']:.0f} ms by stock vLLM",
        ],
        [
            "vLLM: requests per second, 32 clients, Zipf 1.1, 16 GiB of KV",
            tables.digits(shared),
            f"{tables.digits(loaded)} by stock vLLM",
        ],
    ]


def kernel_point(rows: list[dict[str, Any]], kernel: str, queries: int, context: int, text: str) -> list[str]:
    """Returns the line of the first row of this shape, with its time and that of its fastest peer."""
    row = next(r for r in rows if (r["kernel"], r["query_tokens"], r["context"]) == (kernel, queries, context))
    name, us = min(row["peers"].items(), key=lambda peer: peer[1])
    return [
        f"{kernel.capitalize()} attention, {text.format(context)}",
        f"{row['us']:.0f} us",
        f"{us:.0f} us: fastest other kernel ({PEERS[name]} keys)",
    ]


def values() -> dict[str, Any]:
    """Returns the values that templates may use, by name."""
    data = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in NAMES}
    return {
        "environment": environment(),
        "supported": supported(),
        "point": point(data),
        "data": data,
        "gpus": sorted({data[name]["gpu"].removeprefix("NVIDIA ").split()[0] for name in NAMES if name != "rag"}),
        "bench": bench(data["bench"]),
        "decode": decode_table.tables(data["decode"]["rows"]),
        "sweep": decode_table.sweep_facts(data["sweep"]["rows"]),
        "prefill": prefill_table.tables(data["prefill"]["rows"]),
        "short_documents": (short_documents := kept("prefill_documents")),
        "short": prefill_table.tables(short_documents["rows"] if short_documents else []),
        "short_plans": prefill_table.plans_text(short_documents["rows"] if short_documents else []),
        "squares_text": prefill_table.peers_text(data["prefill"]["rows"]),
        "mean_texts": [prefill_table.mean_text(mean) for mean in data["prefill"]["means"]],
        "breadth": breadth_table.tables(data["breadth"]["rows"]),
        "breadth_facts": breadth_table.facts(data["breadth"]["rows"]),
        "rag": rag(data["rag"]),
        "recovery": recovery(kept("quality"), kept("ttft")),
        "memory": memory(kept("memory")),
        **kept_tables(),
        "vllm": vllm(data["vllm"]),
    }


def rendered(given: dict[str, Any]) -> dict[str, str]:
    """Returns the text of each template by its path in tools/pages without its suffix, such as "results/decode"."""
    loader = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is Markdown
    )
    loader.filters["markdown"] = markdown
    names = (name for name in loader.list_templates() if name.endswith(".md.j2"))
    return {name.removesuffix(".md.j2"): loader.get_template(name).render(given) for name in names}


def replaced(text: str, name: str, content: str) -> str:
    """Returns the README with the text between <!-- name --> and <!-- /name --> replaced."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", flags=re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"README.md has no place for {name}: <!-- {name} --> and <!-- /{name} -->")
    return pattern.sub(lambda m: f"{m[1]}{content.rstrip()}\n{m[2]}", text)


def files() -> dict[Path, str]:
    """Returns the text of each file that this program writes."""
    texts = rendered(values())
    result, readme = {}, README.read_text()
    for name, text in texts.items():
        folder, _, page = name.partition("/")
        if folder == "readme":
            readme = replaced(readme, page, text)
        else:
            result[DOCS / f"{name}.md"] = text
    return {README: readme, **result}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.docs_pages", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a file is not current; change nothing")
    check = parser.parse_args(arguments).check
    stale = {file: text for file, text in files().items() if not file.exists() or file.read_text() != text}
    if check and stale:
        names = ", ".join(file.relative_to(ROOT).as_posix() for file in stale)
        sys.exit(f"not current: {names}; run python -m tools.docs_pages")
    for file, text in stale.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
