"""The program measures what memories of a document cost in a real model's output: python -m tools.memory.

SmolLM2-135M-Instruct reads a document, and its attention over the document is replaced in all layers by each kind of
memory. Texts are templated examples ("ICL") and code. The program needs the packages of tools/requirements/rag*.txt,
which `make rag` installs. A run completes FILE: it skips the texts that FILE, or a file of --join, has. Runs at the
same time take different seeds by --only, each with a file of its own, and a last run joins the files.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from tools.memory.measure import measure
from tools.memory.tables import print_tables
from tools.memory.texts import KINDS, text_of
from tools.rag.environment import environment
from tools.rag.model import CACHE, load_smollm2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.memory", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="texts of each kind (%(default)s)")
    parser.add_argument("--only", type=int, nargs="+", metavar="SEED", help="measure these of the seeds 0 to N - 1")
    parser.add_argument("--prefix", type=int, default=2048, metavar="N", help="tokens of a document (%(default)s)")
    parser.add_argument("--traces", type=int, default=6144, metavar="N", help="trace tokens (%(default)s)")
    parser.add_argument("--test", type=int, default=256, metavar="N", help="test tokens (%(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="(%(default)s)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of PyTorch (its default)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="complete FILE, and print its tables")
    parser.add_argument("--join", type=Path, nargs="*", default=[], metavar="FILE", help="files of other runs")
    parser.add_argument("--commit", metavar="HASH", help="the commit that is measured (default: git's)")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    sizes = options.prefix, options.traces, options.test
    data = _begun(options, sizes)
    if todo := _missing(options, data):
        model, tokenizer = load_smollm2(torch.float32, options.device, cache=CACHE)
    for seed, kind in todo:
        text = text_of(kind, tokenizer, seed, *sizes)
        foreign = text_of("code", tokenizer, seed, *sizes).traces if kind == "ICL" else None
        data["cells"].append({"kind": kind, "seed": seed, **measure(model, text, foreign)})
        print(f"{kind}, seed {seed}: {data['cells'][-1]['seconds']:.0f} s", file=sys.stderr, flush=True)
        _write(options.json, data)
    _write(options.json, data)
    print_tables(data)


def _missing(options: argparse.Namespace, data: dict[str, Any]) -> list[tuple[int, str]]:
    """Returns the seeds and kinds of the texts that are to be measured."""
    known = {(cell["seed"], cell["kind"]) for cell in data["cells"]}
    seeds = range(options.seeds) if options.only is None else options.only
    return [(seed, kind) for seed in seeds for kind in KINDS if (seed, kind) not in known]


def _begun(options: argparse.Namespace, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Returns the content of the files, or that of a new one.

    The program ends if a file has other sizes.
    """
    names = ("prefix", "traces", "test")
    found: list[dict[str, Any]] = []
    for file in ([options.json] if options.json and options.json.exists() else []) + options.join:
        data: dict[str, Any] = json.loads(file.read_text())
        if data["tokens"] != dict(zip(names, sizes, strict=True)):
            sys.exit(f"{file} has tokens {data['tokens']}; give the same, or another file")
        if data["is_gpu"] != options.device.startswith("cuda"):
            sys.exit(f"{file} is of {data['device']}; give --device of the same kind, or another file")
        found.append(data)
    if found:
        cells = {(cell["seed"], cell["kind"]): cell for data in reversed(found) for cell in data["cells"]}
        return found[0] | {"cells": [cells[key] for key in sorted(cells)]}
    command = shlex.join(["python", "-m", "tools.memory", *(f"--{n}={s}" for n, s in zip(names, sizes, strict=True))])
    return environment(options.commit) | {
        "command": command,
        "tokens": dict(zip(names, sizes, strict=True)),
        "cells": [],
    }


def _write(file: Path | None, data: dict[str, Any]) -> None:
    if file is None:
        return
    rest = {name: value for name, value in data.items() if name != "cells"}
    cells = ",\n".join(json.dumps(cell) for cell in data["cells"])
    head = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in rest.items())
    file.write_text(f'{{\n{head},\n"cells": [\n{cells}\n]\n}}\n')


if __name__ == "__main__":
    main()
