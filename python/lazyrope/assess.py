"""``lazyrope assess`` compares the levels of recovery with an ordinary prefill, on questions from a file.

The file has one JSON object in each line, with the names of :class:`lazyrope.transformers.Sample`:

    {"prompt": "When does it close?", "documents": ["The library ...", "Hours: ..."], "answer": "At six."}

Texts are given to the model as they are. Lists of token ids may be given instead. The answer may be left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._program import check_output, require_packages
from .errors import SpecError, StoreError

PACKAGES = ("numpy", "torch", "transformers")
NAMES = {"prompt", "documents", "answer"}


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lazyrope assess",
        description="Compares the levels of recovery with an ordinary prefill, on questions over documents.",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE.jsonl", help="lines of JSON: prompt, documents and, optionally, answer"
    )
    parser.add_argument(
        "--model", required=True, metavar="DIR", help="a model of transformers with its tokenizer: a folder or a name"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as one JSON object")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the KL over the costs, such as FILE.svg (needs matplotlib)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="assess the first N lines (all)")
    parser.add_argument("--budget", default="4GiB", help="bytes of KV (%(default)s)")
    parser.add_argument("--device", help="PyTorch's device (cuda if there is a GPU, else cpu)")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="(%(default)s)")
    parser.add_argument(
        "--prefix", default="", metavar="TEXT", help="the text before each document, as attach() has it"
    )
    parser.add_argument("--overlay-tokens", type=int, default=16, metavar="N", help="as attach() has it (%(default)s)")
    parser.add_argument("--share", type=float, default=0.15, help="as attach() has it (%(default)s)")
    parser.add_argument(
        "--attention-temperature", type=float, default=0.9, metavar="T", help="as attach() has it (%(default)s)"
    )
    parser.add_argument("--lse-scale", type=float, default=0.9, metavar="S", help="as attach() has it (%(default)s)")
    parser.add_argument(
        "--max-kl", type=float, default=0.1, metavar="NATS", help="the mean KL that is allowed (%(default)s)"
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=16, metavar="N", help="tokens of each answer (%(default)s)"
    )
    return parser


def read_samples(file: Path, limit: int | None) -> list[dict[str, Any]]:
    """Returns the questions of a file.

    Raises:
        SpecError: A line is not a question. The message names the file and the line.
        OSError: The file cannot be read.
    """
    samples: list[dict[str, Any]] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if len(samples) == limit:
            break
        if not line.strip():
            continue
        try:
            sample = json.loads(line)
        except ValueError as error:
            raise SpecError(f"{file}, line {number}: {error}") from None
        if not isinstance(sample, dict) or not {"prompt", "documents"} <= set(sample) <= NAMES:
            allowed = "an object with prompt, documents and, optionally, answer"
            raise SpecError(f"{file}, line {number}: {line:.80}; it must be {allowed}")
        samples.append(sample)
    if not samples:
        raise SpecError(f"{file} has no questions")
    return samples


def make_engine(options: argparse.Namespace) -> Any:
    """Loads the model and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from .transformers import attach

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype)).to(device)
    return attach(
        model.eval(),
        tokenizer=AutoTokenizer.from_pretrained(options.model),
        budget=options.budget,
        recovery="prefix" if options.prefix else "none",
        prefix=options.prefix,
        overlay_tokens=options.overlay_tokens,
        share=options.share,
        attention_temperature=options.attention_temperature,
        lse_scale=options.lse_scale,
    )


def check_plot(file: Path) -> None:
    """Raises SpecError, before anything is measured, if a plot cannot have the format of a path's suffix."""
    from .transformers.frontier import format_of

    format_of(file)


def result_of(options: argparse.Namespace, num_samples: int, engine: Any, assessment: Any) -> dict[str, Any]:
    """Returns the results as an object for programs."""
    return {
        "model": options.model,
        "samples": num_samples,
        "backend": engine.backend,
        "overlay_tokens": engine.recovery.overlay_tokens,
        "share": engine.recovery.share,
        "attention_temperature": engine.recovery.attention_temperature,
        "lse_scale": engine.recovery.lse_scale,
        "max_kl": assessment.max_kl,
        "recommended": assessment.recommended,
        "levels": [dataclasses.asdict(level) for level in assessment.levels],
    }


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits before the model is loaded if an option is wrong, or if a package is missing."""
    if options.limit is not None and options.limit < 1:
        parser.error(f"argument --limit: {options.limit}; it must be at least 1")
    require_packages(parser.prog, PACKAGES if options.plot is None else (*PACKAGES, "matplotlib"))
    check_output(parser.prog, options.json)
    check_output(parser.prog, options.plot)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser()
    options = parser.parse_args(arguments)
    check_options(parser, options)
    try:
        samples = read_samples(options.file, options.limit)
        if options.plot is not None:
            check_plot(options.plot)
        engine = make_engine(options)
        assessment = engine.assess(samples, max_kl=options.max_kl, max_new_tokens=options.max_new_tokens)
    except (SpecError, StoreError, OSError) as error:
        sys.exit(f"lazyrope assess: {error}")
    print(assessment.table())
    if options.json is not None:
        options.json.write_text(json.dumps(result_of(options, len(samples), engine, assessment), indent=1) + "\n")
    if options.plot is not None:
        assessment.plot(options.plot)


if __name__ == "__main__":
    main()
