"""Runs ``make demo``: compiles the kernels of three published model configs.

On a GPU the demo also stores documents once and attends to them in two orders. Without a GPU it runs the README's
example in the emulator, and prints its error against fp64.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

MODELS = {"Llama-3.1-8B": "llama-3.1-8b.json", "Qwen3-8B": "qwen3-8b.json", "SmolLM2-135M": "smollm2-135m.json"}
ARCHS = ["sm_80", "sm_90a"]

# The demo has a cache of its own, so that it shows the times of compiling even if the kernels were compiled before.
CACHE = tempfile.TemporaryDirectory(prefix="lazyrope-demo-")
os.environ["LAZYROPE_CACHE_DIR"] = CACHE.name
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for the modules of tools

import lazyrope  # noqa: E402  (reads the environment)


def specs() -> dict[str, lazyrope.AttentionSpec]:
    folder = Path(__file__).parent / "models"
    return {name: lazyrope.AttentionSpec.from_hf(folder / file) for name, file in MODELS.items()}


def compile_all(specs: dict[str, lazyrope.AttentionSpec]) -> dict[tuple[str, str], lazyrope.Attention]:
    compiled = {}
    jobs = [(model, arch) for model in specs for arch in ARCHS]
    with tqdm(jobs, desc="compile", unit="attention", disable=None) as bar:  # None: silent unless stderr is a terminal
        for model, arch in bar:
            bar.set_postfix_str(f"{model} for {arch}")
            compiled[model, arch] = lazyrope.compile(specs[model], arch=arch)
    return compiled


def print_table(rows: list[tuple[str, ...]], left: int) -> None:
    """Prints rows whose first ``left`` columns are aligned left, and the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = zip(row, widths, strict=True)
        print("  ".join(cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(cells)))


def show_kernels() -> None:
    wanted = specs()
    begin = time.perf_counter()
    cold = compile_all(wanted)
    seconds = time.perf_counter() - begin
    lazyrope.clear_cache()  # the kernels are now on disk only
    cached = {key: lazyrope.compile(wanted[key[0]], arch=key[1]) for key in cold}
    head = ("model", "kernel", "arch", "registers", "spill B", "shared B", "cubin B", "ms cold", "ms cached")
    rows = [head]
    shown: set[tuple[str, str]] = set()
    for (model, arch), attention in cold.items():
        for name, kernel in attention.kernels.items():
            again = cached[model, arch].kernels[name]
            # Attentions share a kernel if they agree in everything that it depends on, the RoPE frequencies apart.
            # A kernel that was compiled for another attention is then ready at once.
            is_shared = kernel.ready_ms < kernel.compile_ms / 2 or (arch, kernel.source) in shown
            first = "shared" if is_shared else f"{kernel.ready_ms:.0f}"
            shown.add((arch, kernel.source))
            figures = (kernel.registers, kernel.spill_bytes, kernel.shared_bytes, len(kernel.cubin))
            rows.append((model, name, arch, *map(str, figures), first, f"{again.ready_ms:.2f}"))
    print_table(rows, left=3)
    print(f"\n{len(cold)} attentions compiled in {seconds:.1f} s on {os.cpu_count()} cores, without a CUDA toolkit.")


class DocumentPool:
    """Stores four documents of a Llama-3.1-8B layer once in a paged pool, keys rotated by their index."""

    LENGTHS = (1024, 700, 2048, 333)
    PAGE = 16

    def __init__(self, torch, spec: lazyrope.AttentionSpec) -> None:
        self.torch, self.spec = torch, spec
        self.kernel = lazyrope.compile(spec)
        heads, dim = spec.num_kv_heads, spec.head_dim
        counts = [-(-n // self.PAGE) for n in self.LENGTHS]
        self.first_page = [sum(counts[:i]) for i in range(len(counts))]
        self.pages = torch.randperm(sum(counts), device="cuda").int()
        shape = (sum(counts), self.PAGE, heads, dim)
        self.k_pool, self.v_pool = (torch.full(shape, torch.nan, dtype=torch.bfloat16, device="cuda") for _ in "kv")
        total = sum(self.LENGTHS)
        self.k, self.v = (torch.randn((total, heads, dim), dtype=torch.bfloat16, device="cuda") for _ in "kv")
        spans = lazyrope.TokenSpans(
            indptr=self.ints([sum(self.LENGTHS[:i]) for i in range(5)]),
            start=self.ints([0] * len(counts)),
            first_page=self.ints(self.first_page),
        )
        writes = self.kernel.plan_append(spans, self.pages, capacity=lazyrope.AppendCapacity(total))
        self.kernel.append(self.k, self.v, self.k_pool, self.v_pool, writes)

    def ints(self, values: list[int]):
        return self.torch.tensor(values, dtype=self.torch.int32, device="cuda")

    def plan(self, order: tuple[int, ...], tokens: int) -> lazyrope.Step:
        lengths = [self.LENGTHS[i] for i in order]
        bases = [sum(lengths[:i]) for i in range(len(order))]
        end = sum(lengths)
        segments = lazyrope.Segments(
            indptr=self.ints([0, len(order)]),
            base=self.ints(bases),
            start=self.ints([0] * len(order)),
            length=self.ints(lengths),
            first_page=self.ints([self.first_page[i] for i in order]),
        )
        positions = self.ints(list(range(end, end + tokens)))
        return self.kernel.plan(self.ints([0, tokens]), positions, segments, self.pages)

    def contiguous(self, order: tuple[int, ...]):
        """Returns the raw keys and values of the documents in this order."""
        at = [sum(self.LENGTHS[:i]) for i in range(5)]
        tokens = [slice(at[i], at[i + 1]) for i in order]
        return self.torch.cat([self.k[t] for t in tokens]), self.torch.cat([self.v[t] for t in tokens])

    def rotate(self, x, positions):
        """Returns ``x`` rotated to ``positions``, in fp64 with NeoX pairing."""
        torch = self.torch
        angle = positions.double()[:, None] * torch.tensor(self.spec.frequencies, device="cuda", dtype=torch.float64)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x.double().chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def exact(self, q, order: tuple[int, ...]):
        """Returns fp64 attention over keys rotated for this order, and the inputs of SDPA in bf16."""
        torch = self.torch
        k, v = self.contiguous(order)
        n, tokens = len(k), len(q)
        rotated_k = self.rotate(k, torch.arange(n, device="cuda"))
        rotated_q = self.rotate(q, torch.arange(n, n + tokens, device="cuda"))
        group = self.spec.group_size
        score = torch.einsum("thd,khd->thk", rotated_q, rotated_k.repeat_interleave(group, 1)) * self.spec.scale
        out = torch.einsum("thk,khd->thd", score.softmax(-1), v.double().repeat_interleave(group, 1))
        return out, [x.bfloat16().transpose(0, 1)[None].contiguous() for x in (rotated_q, rotated_k, v)]


def microseconds(call) -> float:
    """Returns the median time of the call in microseconds, by CUDA events with a cold L2."""
    from lazyrope.bench import Timer

    return Timer(rounds=20).medians({"call": call})["call"]


def show_answers(torch) -> None:
    torch.manual_seed(0)
    pool = DocumentPool(torch, specs()["Llama-3.1-8B"])
    print(f"\nThe pool on {torch.cuda.get_device_name()} stores four documents of {pool.LENGTHS} tokens once.")
    print("The kernel reads the same pages in two orders. SDPA reads a rotated copy of the keys for each order.\n")
    rows = [("order", "queries", "error vs fp64", "lazyrope us", "SDPA us")]
    for order in ((0, 1, 2, 3), (2, 0, 3, 1)):
        for tokens in (1, 64):
            q = torch.randn((tokens, pool.spec.num_q_heads, pool.spec.head_dim), dtype=torch.bfloat16, device="cuda")
            step = pool.plan(order, tokens)
            out, _ = pool.kernel(q, pool.k_pool, pool.v_pool, step)
            exact, (sq, sk, sv) = pool.exact(q, order)
            error = ((out.double() - exact).norm() / exact.norm()).item()
            ours = microseconds(lambda: pool.kernel(q, pool.k_pool, pool.v_pool, step, out=out))  # noqa: B023
            sdpa = torch.nn.functional.scaled_dot_product_attention
            theirs = microseconds(lambda: sdpa(sq, sk, sv, enable_gqa=True))  # noqa: B023
            rows.append((str(order), str(tokens), f"{error:.1e}", f"{ours:.1f}", f"{theirs:.1f}"))
    print_table(rows, left=1)


def show_example() -> None:
    """Runs the README's example in the emulator, and compares its results with fp64 attention."""
    from tools.first_call import SECOND_THEN_FIRST, errors
    from tools.markdown import code_blocks

    (example,) = code_blocks((ROOT / "README.md").read_text(), "python")
    names: dict[str, object] = {}
    begin = time.perf_counter()
    exec(compile(example, "README.md", "exec"), names)
    seconds = time.perf_counter() - begin
    out, lse = errors(names, SECOND_THEN_FIRST)
    print(f"\nThere is no GPU here. The README's example ran in the emulator in {seconds:.1f} s.")
    print(f"It reads the second document first. Relative error of out against fp64: {out:.1e}; of lse: {lse:.1e}.")
    if not (out < 1e-2 and lse < 1e-2):
        sys.exit("These errors are too large: bfloat16 allows 1e-2.")


def has_gpu() -> bool:
    return "GPU 0" in lazyrope.doctor()


def main() -> None:
    show_kernels()
    try:
        import torch
    except ImportError:
        print(f"The demo runs no kernels, for there is no PyTorch: {sys.executable} -m pip install torch")
        return
    if has_gpu():
        show_answers(torch)
    else:
        show_example()


if __name__ == "__main__":
    main()
