"""python -m tools.float8_accuracy [--json FILE]: the errors of prefill over 8-bit pools, by products of 16 and 8 bits.

The first table has the errors over random keys and values, the second what arrives of a needle: one key among many that
gets about half of a row's weight. The third compares SmolLM2-135M-Instruct over pools of 16 and 8 bits with itself in
float32. It needs a Hopper GPU, and for the third the packages of tools/requirements/rag*.txt.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lazyrope
import torch
from lazyrope import eager
from tqdm import tqdm

from tools.float8_table import float8_tables
from tools.rag import fidelity, texts
from tools.rag.environment import environment
from tools.rag.model import CACHE, load_smollm2

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 128, 16
NEEDLE_WEIGHT = 0.5
CONTEXTS = (8192, 32768, 131072)
PRODUCTS = {"16 bits": None, "8 bits": "float8"}
POOL = {"kv_dtype": "float8_e4m3fn"}


def spec_of(products: str, rope: Any) -> lazyrope.AttentionSpec:
    compute = PRODUCTS[products]
    options = POOL | ({"compute": compute} if compute else {})
    return lazyrope.AttentionSpec(
        head_dim=DIM, num_q_heads=HEADS, num_kv_heads=KV_HEADS, rope=rope, mask="full", **options
    )


class Context:
    """One document of random keys and values in an 8-bit pool, and a request whose queries follow it.

    Attributes:
        keys, values: The pool, [pages, page_size, kv_heads, head_dim].
        batch: The request.
    """

    def __init__(self, tokens: int, rows: int, base: int, arch: str | None) -> None:
        self.device = "cuda" if arch is None else "cpu"
        self.arch, self.tokens, self.rows = arch, tokens, rows
        shape = (math.ceil(tokens / PAGE), PAGE, KV_HEADS, DIM)
        self.keys, self.values = (torch.randn(shape, device=self.device).to(torch.float8_e4m3fn) for _ in "kv")
        pages = torch.arange(shape[0], dtype=torch.int32, device=self.device)
        document = lazyrope.Document(first_page=0, num_tokens=tokens)
        positions = [base + tokens + i for i in range(rows)]
        self.batch = lazyrope.batch([lazyrope.Request(positions, [lazyrope.Segment(document, base=base)])], pages)

    def attend(self, kernel: Any, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns output and LSE in float32."""
        out, lse = kernel(q, self.keys, self.values, kernel.plan(self.batch))
        return out.float(), lse

    def compiled(self, products: str, rope: Any) -> Any:
        return lazyrope.compile(spec_of(products, rope), arch=self.arch)


def random_errors(tokens: int, rows: int, arch: str | None = None) -> list[dict[str, Any]]:
    """Returns the errors over random keys, values and queries, relative to float32 over the same pool.

    The output's error is the root mean square over all rows, relative to that of the output. The LSE's is the greatest.
    """
    torch.manual_seed(0)
    context = Context(tokens, rows, base=1000, arch=arch)
    rope = lazyrope.rope.llama3()
    q = torch.randn(rows, HEADS, DIM, device=context.device).bfloat16()
    exact, exact_lse = context.attend(eager.compile(spec_of("16 bits", rope)), q)
    found = []
    for products in PRODUCTS:
        out, lse = context.attend(context.compiled(products, rope), q)
        error = float((out - exact).norm() / exact.norm())
        of_lse = float((lse - exact_lse).abs().max())
        found.append({"keys": tokens, "products": products, "output_error": error, "lse_error": of_lse})
    return found


def needle(tokens: int, rows: int, arch: str | None = None) -> list[dict[str, Any]]:
    """Returns the weight of a needle in the outputs, as a mean over rows and heads, and how far single rows are off.

    Keys are random and have no RoPE. Each row has a needle of its own, at a random place, and a query along it that
    gives it about NEEDLE_WEIGHT. The projection of a row's output on the needle's value is the weight that arrives.
    """
    torch.manual_seed(1)
    context = Context(tokens, rows, base=0, arch=arch)
    at = torch.randint(tokens, (rows, KV_HEADS), device=context.device)
    flat = (pool.view(-1, KV_HEADS, DIM) for pool in (context.keys.float(), context.values.float()))
    keys, values = (pool[at, torch.arange(KV_HEADS, device=context.device)] for pool in flat)
    group = HEADS // KV_HEADS
    length = keys.norm(dim=-1, keepdim=True)
    q = (keys / length * _sharpness(tokens) * math.sqrt(DIM)).repeat_interleave(group, 1).bfloat16()
    values = values.repeat_interleave(group, 1)
    rope = lazyrope.rope.none()

    def weights(kernel: Any) -> torch.Tensor:
        return (context.attend(kernel, q)[0] * values).sum(-1) / values.square().sum(-1)

    exact = weights(eager.compile(spec_of("16 bits", rope)))
    found = []
    for products in PRODUCTS:
        given = weights(context.compiled(products, rope))
        off = float(((given - exact).square().mean().sqrt()) / exact.mean())
        found.append(
            {
                "keys": tokens,
                "products": products,
                "weight": float(given.mean()),
                "exact": float(exact.mean()),
                "deviation": off,
            }
        )
    return found


def _sharpness(tokens: int) -> float:
    """Returns the factor of a query along its needle that gives the needle about NEEDLE_WEIGHT.

    With a factor c, the needle's logit is c |key|, and those of the other keys are normal with the deviation c.
    """
    wanted = math.log(tokens) + math.log(NEEDLE_WEIGHT / (1 - NEEDLE_WEIGHT))
    length = math.sqrt(DIM)
    return length - math.sqrt(max(length * length - 2 * wanted, 0.0))


def model_rows(counts: tuple[int, ...], repeat: int) -> list[dict[str, Any]]:
    """Returns what SmolLM2 answers over each pool, beside float32."""
    device = "cuda"
    exact, tokenizer = load_smollm2(torch.float32, device, cache=CACHE)
    model, _ = load_smollm2(torch.bfloat16, device, cache=CACHE)
    documents = texts.documents(tokenizer, 200, max_tokens=800, seed=0)
    each = [case for seed in range(repeat) for case in fidelity.cases(documents, counts, seed, prompt_tokens=512)]
    found = []
    for name, options, compute in (
        ("16 bits", {}, None),
        ("8 bits, products of 16", POOL, None),
        ("8 bits, products of 8", POOL, "float8"),
    ):
        comparison = fidelity.Comparison(_engine(model, tokenizer, options, compute), exact, model, modes=("lazy",))
        for case in tqdm(each, desc=name, unit="case"):
            comparison.add(case)
        summary = comparison.result.summary()
        if not found:
            found.append({"pool": "none: bf16 eager"} | summary[fidelity.BASELINE][fidelity.ALL])
        found.append({"pool": name} | summary["lazy"][fidelity.ALL])
    return found


def _engine(model: Any, tokenizer: Any, options: dict[str, Any], compute: str | None) -> Any:
    """Attaches an engine whose kernels have the given products: attach() itself has no such option."""
    from lazyrope.transformers import attach, models

    class WithCompute:
        """Stands for AttentionSpec where the engine makes the specs of its layers."""

        @staticmethod
        def groups_from_hf(config: Any, **given: Any) -> Any:
            return lazyrope.AttentionSpec.groups_from_hf(config, **given, **({"compute": compute} if compute else {}))

    with patch.object(models, "AttentionSpec", WithCompute):
        return attach(model, tokenizer=tokenizer, budget="8GiB", max_pass_tokens=8192, **options)


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tools.float8_accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=512, metavar="N", help="query tokens of a context (%(default)s)")
    parser.add_argument("--no-model", action="store_true", help="leave the table of SmolLM2 out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--commit", metavar="HASH", help="the commit that is measured (default: git's)")
    options = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        sys.exit("products of 8 bits need a Hopper GPU (H100, H200), and there is none")
    command = "python -m tools.float8_accuracy"
    data = environment(options.commit) | {"command": command, "rows": options.rows}
    data["random"] = [row for tokens in CONTEXTS for row in random_errors(tokens, options.rows)]
    data["needle"] = [row for tokens in CONTEXTS for row in needle(tokens, options.rows)]
    if not options.no_model:
        data["model"] = model_rows((1, 2, 4, 8), repeat=3)
    for table in float8_tables(data).values():
        print(table.text(), end="\n\n")
    if options.json:
        options.json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
