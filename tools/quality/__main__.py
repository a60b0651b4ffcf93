"""python -m tools.quality [--cases N] [--levels NAME...] [--json FILE]: what each level wins back, by a slow reference.

SmolLM2-135M-Instruct answers questions over documents by an ordinary prefill and at each level, in fp32. The program
needs the packages of tools/requirements/rag*.txt, which `make rag` installs. It measures quality alone; `python -m
tools.quality.ttft` measures times.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from tabulate import tabulate
from tqdm import tqdm

from tools.quality import facts
from tools.quality.levels import Level, all_levels
from tools.quality.measure import Outcome, Results, compare
from tools.quality.reference import Reference
from tools.rag.environment import environment
from tools.rag.model import CACHE, load_smollm2

SYSTEM = "<|im_start|>system\nYou answer questions about the documents that follow.<|im_end|>\n"
HEADERS = {
    "level": "level",
    "share": "computed again",
    "kl_mean": "KL, mean",
    "kl_p99": "KL, 99th percentile",
    "gap_closed": "gap closed",
    "first_token_agreement": "same first token",
    "answer_perplexity": "perplexity of the answer",
}


def table(rows: list[dict[str, Any]]) -> str:
    formats = {"share": ".1%", "gap_closed": ".1%", "first_token_agreement": ".1%", "level": ""}
    cells = [[format(row[name], formats.get(name, ".3f")) for name in HEADERS] for row in rows]
    return tabulate(cells, headers=list(HEADERS.values()), tablefmt="pipe", disable_numparse=True)


def report(results: Results) -> str:
    parts = [table(results.summary())]
    parts += [f"{kind}:\n\n{table(results.summary(kind))}" for kind in facts.KINDS]
    perplexity = math.exp(mean(results.full_loss))
    return "\n\n".join([*parts, f"Perplexity of the answers after an ordinary prefill: {perplexity:.3f}"])


def chosen_levels(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Level]:
    """Returns the levels that are asked for, and "none", which the gap is measured from."""
    levels = {level.name: level for level in all_levels(options.share)}
    for name in options.levels or ():
        if name not in levels:
            parser.error(f"argument --levels: {name!r}; it must be one of {', '.join(levels)}")
    return [level for name, level in levels.items() if name in {"none", *(options.levels or levels)}]


def command(arguments: list[str]) -> str:
    """Returns the command that gives the same figures, without the path of their file and the commit."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--json")
    parser.add_argument("--commit")
    return shlex.join(["python", "-m", "tools.quality", *parser.parse_known_args(arguments)[1]])


def columns(outcomes: list[Outcome]) -> dict[str, list[Any]]:
    """Returns the values of each field for all cases, in which the field's name is written once."""
    rows = [asdict(each) for each in outcomes]
    return {name: [_rounded(row[name]) for row in rows] for name in rows[0]}


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.quality", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--cases", type=int, default=210, metavar="N", help="questions, of three kinds in turn (%(default)s)"
    )
    parser.add_argument(
        "--documents",
        type=int,
        nargs=2,
        default=(2, 16),
        metavar=("MIN", "MAX"),
        help="per case (2 16); 3 or more where two are needed",
    )
    parser.add_argument(
        "--tokens", type=int, nargs=2, default=(100, 1500), metavar=("MIN", "MAX"), help="per document (100 1500)"
    )
    parser.add_argument(
        "--limit", type=int, default=8000, metavar="N", help="tokens of a case's documents (%(default)s)"
    )
    parser.add_argument(
        "--share", type=float, default=0.15, help="share of tokens that is computed again (%(default)s)"
    )
    parser.add_argument(
        "--levels", nargs="+", metavar="NAME", help='levels by the names in the table, such as "prefix + ape" (all)'
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all outcomes to FILE")
    parser.add_argument("--commit", metavar="HASH", help="the commit that is measured (default: git's)")
    options = parser.parse_args()
    levels = chosen_levels(parser, options)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load_smollm2(torch.float32, device, cache=CACHE)
    cases = list(
        facts.cases(
            tokenizer,
            options.cases,
            seed=options.seed,
            documents=tuple(options.documents),
            tokens=tuple(options.tokens),
            limit=options.limit,
        )
    )
    prefix = tokenizer.encode(SYSTEM, add_special_tokens=False)
    with tqdm(cases, desc="cases", unit="case") as bar:
        results = compare(Reference(model), levels, prefix, bar, options.seed)
    print(report(results))
    if options.json:
        written = environment(options.commit) | {
            "command": command(sys.argv[1:]),
            "options": {name: value for name, value in vars(options).items() if name not in ("json", "commit")},
            "tokens": [case.tokens for case in cases],
            "summary": {"all": results.summary(), **{kind: results.summary(kind) for kind in facts.KINDS}},
            "full_loss": results.full_loss,
            "outcomes": {level: columns(rows) for level, rows in results.outcomes.items()},
        }
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in written.items()]
        options.json.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
