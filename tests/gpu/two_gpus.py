"""Runs on two GPUs of one host what one GPU cannot show, and writes the figures.

python3 -m tests.gpu.two_gpus --json FILE [--parts PART ...] [--tiny] [--commit HASH]

ranks    models that transformers divides over two processes: equal to one GPU's, documents stored and evicted alike
engines  two engines of one process: each kernel is compiled once, and captures of one leave the other's as they are
tuning   the record of tuning on one GPU is used by the other
vllm     vLLM with the plug-in and tensor_parallel_size=2: the tokens of one GPU, and warm documents in a new order

Each part, and each engine of vLLM, is a process of its own, with an empty cache of kernels. FILE is written after each
part, and keeps the rows of the parts that do not run. The status is 1 if a part fails. With --tiny, the program runs on
a CPU, where its times say nothing: ranks exchange by gloo, engines use the emulator, and nothing is tuned.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ROOT = Path(__file__).parents[2]
WITHOUT_GPU = ("ranks", "engines", "vllm")
# The most that warm documents in a new order may take, over an exact prefix hit of stock vLLM on as many GPUs.
FIRST_TOKEN = 1.25
# The most that log-probabilities may differ on one and on two GPUs. In bfloat16, weights and activations are rounded,
# and sums over ranks have another order.
LOGPROB = 0.2
OF_ROW = ("gpu", "date", "commit")  # each row says these, because a file may be completed later
ENGINES = (("documents", 1), ("documents", 2), ("stock", 2))


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu.two_gpus", description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="read, completed and written")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], metavar="PART", help="the parts that run (all)")
    parser.add_argument("--tiny", action="store_true", help="tiny models on the CPU, which check the program")
    parser.add_argument("--commit", help="the commit, where there is no repository")
    parser.add_argument("--child", metavar="PART", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    possible = [name for name in PARTS if not options.tiny or name in WITHOUT_GPU]
    options.parts = options.parts or possible
    if absent := [name for name in options.parts if name not in possible]:
        parser.error(f"--tiny with --parts {' '.join(absent)}: without a GPU there are {', '.join(possible)}")
    return options


# --- ranks


def ranks(tiny: bool, folder: Path) -> list[Row]:
    from tests.support.ranks import HEADS, run_ranks

    names = ["10-1"] if tiny else [*HEADS]
    return rows_of_ranks(run_ranks(folder, names, "cpu" if tiny else "cuda"))


def rows_of_ranks(found: list[dict[str, Any]]) -> list[Row]:
    """Checks what the ranks have found, and returns a row for each model."""
    from tests.support import ranks

    rows = []
    for name in found[0]:
        of_model = [of_rank[name] for of_rank in found]
        for check in (ranks.check_alike, ranks.check_outputs, ranks.check_stored, ranks.check_evicted):
            check(of_model)
        ranks.check_heads(of_model, name)
        hits, misses = of_model[0]["divided"]["found"]
        same = of_model[0]["divided"]["tokens"] == of_model[0]["whole"]["tokens"]
        figures = {"error": max(rank["error"] for rank in of_model), "has_same_tokens": same}
        rows.append({"heads": of_model[0]["heads"], **figures, "hits": hits, "misses": misses})
    return rows


# --- engines


def engines(tiny: bool, folder: Path) -> list[Row]:
    import torch
    from lazyrope.transformers import passes

    from tests.support.serving import as_dtype, make_engine, run, serve_at_once
    from tools.rag.model import tiny_llama

    devices = ["cpu", "cpu"] if tiny else ["cuda:0", "cuda:1"]
    sizes = {"count": 2, "longest": 24} if tiny else {"count": 20, "longest": 200}
    options: dict[str, Any] = {"arch": "emu:sm_80"} if tiny else {}
    captures: list[Any] = []
    capture = passes._Graph._capture

    def counted(graph: Any, runner: Any) -> None:
        captures.append(graph.key)
        capture(graph, runner)

    passes._Graph._capture = counted  # type: ignore[method-assign]
    model = tiny_llama(dtype=torch.bfloat16, device=devices[0])
    served, compiled = [], []
    for device in devices:
        before = compilations()
        served.append(make_engine(copy.deepcopy(model).to(device), **options))
        run(served[-1], 0, **sizes)
        compiled.append(compilations() - before)
    assert compiled[0] > 0 and compiled[1] == 0, f"the engines compiled {compiled} kernels; the second must find them"
    alone = make_engine(model, cuda_graphs=False, **options)
    exact = as_dtype(copy.deepcopy(model), torch.float32)
    rounds = 1 if tiny else 5
    serve_at_once(served, alone, exact, rounds, **sizes)
    assert tiny or len(captures) > 10, f"the engines captured {len(captures)} graphs"
    return [{"compiled": compiled, "captures": len(captures), "rounds": rounds, **sizes}]


def compilations() -> int:
    import lazyrope

    return int(lazyrope.counters()['lazyrope_kernel_requests_total{from="compiler"}'])


# --- tuning


def tuning(tiny: bool, folder: Path) -> list[Row]:
    import lazyrope
    import torch

    from tests.support.cases import Setting, random_case
    from tests.support.checks import check_case

    names = [torch.cuda.get_device_name(i) for i in range(2)]
    assert names[0] == names[1], f"the GPUs are {' and '.join(names)}; the record is for GPUs of one name"
    setting = Setting(head_dim=64, phase="mixed")
    kernels, seconds = [], []
    for device, tune in ((0, True), (1, None), (1, None)):
        with torch.cuda.device(device):
            torch.zeros(1, device="cuda")  # makes the GPU the present one
            begin = time.perf_counter()
            kernels.append(lazyrope.compile(setting.spec(), tune=tune))
            seconds.append(time.perf_counter() - begin)
            check_case(random_case(setting, 3, f"cuda:{device}"), kernels[-1])
        if len(kernels) == 2:
            lazyrope.clear_cache()  # the third kernel comes from the disk
    record = kernels[0].tuning
    assert record is not None and all(kernel.tuning == record for kernel in kernels)
    assert all(kernel.config == kernels[0].config for kernel in kernels)
    return [{"tuned": names[0], "tune_s": seconds[0], "from_memory_s": seconds[1], "from_disk_s": seconds[2]}]


# --- vllm


def vllm(tiny: bool, folder: Path) -> list[Row]:
    from tests.support.vllm_processes import variables_of_ranks

    save_model(folder / "model", tiny)
    found = {}
    for name, count in ENGINES:
        own = folder / f"{name}-{count}"
        own.mkdir()
        variables = variables_of_ranks(own, count) | {"VLLM_CPU_KVCACHE_SPACE": "1"}
        file = own / "found.json"
        given = ["--json", str(file), *(["--tiny"] if tiny else [])]
        run_child([*given, "--child", f"{name},{count},{folder / 'model'}"], variables)
        found[name, count] = json.loads(file.read_text())
    rows = [{"arm": name, "ranks": count, **found[name, count]["figures"]} for name, count in ENGINES]
    one, two = (found["documents", count]["answers"] for count in (1, 2))
    rows[1] |= compared(one, two, LOGPROB)
    ratio = rows[1]["new_order_ms"] / rows[2]["same_order_ms"]
    assert tiny or ratio <= FIRST_TOKEN, f"warm documents in a new order take {ratio:.3f} times an exact prefix hit"
    rows[1]["new_order_over_prefix_hit"] = ratio
    return rows


def save_model(folder: Path, tiny: bool) -> None:
    """Saves a model of random weights: a tiny one, or eight layers of Llama 3.1 8B's shape."""
    import torch

    from tools.rag.model import tiny_llama

    if tiny:
        tiny_llama(dtype=torch.bfloat16).save_pretrained(folder)
        return
    shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8}
    shape |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    tiny_llama(dtype=torch.bfloat16, device="cuda", std=0.02, **shape).save_pretrained(folder)


def measure_engine(name: str, count: int, weights: str, tiny: bool) -> Row:
    """Returns the times to the first token, and answers, of one engine in this process."""
    from tools.vllm_bench.__main__ import TINY
    from tools.vllm_bench.arms import Arm, Setup
    from tools.vllm_bench.cells import Cell
    from tools.vllm_bench.load import Prompt
    from tools.vllm_bench.measure import Times, measure

    setup = TINY if tiny else Setup(documents=10, context=2048, answer=16, pool_gib=8, max_requests=16)
    arm = Arm(name, dataclasses.replace(setup, ranks=count, weights=weights))
    cell = Cell(name, "first_token", budget_gib=setup.pool_gib)
    figures = measure(arm, cell, Times(repeats=1 if tiny else 9), 1, None)
    prompts = arm.corpus.prompts(7, 1.1)
    asked: list[Prompt] = [next(prompts) for _ in range(4 if tiny else 32)]
    # The second time, documents are stored. In longer answers, most would come to a near tie.
    answers = [best for _ in range(2) for best in arm.answers(asked, 4)]
    return {"figures": figures, "answers": [[[*row.items()] for row in best] for best in answers]}


Best = list[list[tuple[int, float]]]  # the two best tokens of each position with their log-probabilities


def compared(one: list[Best], two: list[Best], limit: float) -> Row:
    """Checks the answers of one and of two GPUs, and returns how many are the same.

    Answers may differ from the first position on at which the two best tokens are nearer than the limit.
    """
    same, most = 0, 0.0
    for mine, other in zip(one, two, strict=True):
        for at, (a, b) in enumerate(zip(mine, other, strict=True)):
            if a[0][0] != b[0][0]:
                gap = a[0][1] - dict(map(tuple, a)).get(b[0][0], float("-inf"))
                assert gap < limit, f"position {at}: one GPU finds {a}, two find {b}"
                break
            most = max(most, abs(a[0][1] - b[0][1]))
        else:
            same += 1
    assert most < limit, f"log-probabilities differ by {most:.3g}; the limit is {limit:g}"
    assert 2 * same >= len(one), f"{same} of {len(one)} answers are the same"
    return {"answers": len(one), "same_answers": same, "logprob_error": most}


# --- processes

PARTS: dict[str, Callable[[bool, Path], list[Row]]] = {
    "ranks": ranks,
    "engines": engines,
    "tuning": tuning,
    "vllm": vllm,
}


def run_child(arguments: list[str], variables: dict[str, str]) -> None:
    """Runs this program in another process, with an empty cache of kernels."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"LAZYROPE_CACHE_DIR": cache, "NCCL_NVLS_ENABLE": "0"} | variables
        command = [sys.executable, "-m", "tests.gpu.two_gpus", *arguments]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)


def run_part(options: argparse.Namespace) -> list[Row]:
    """Runs the part, or the engine of vLLM, for which this process is there."""
    name, *engine = options.child.split(",")
    if engine:
        count, weights = engine
        return [measure_engine(name, int(count), weights, options.tiny)]
    warnings.simplefilter("ignore", RuntimeWarning)  # plain PyTorch attends on the CPU
    with tempfile.TemporaryDirectory() as folder:
        return PARTS[name](options.tiny, Path(folder))


def require_gpus(tiny: bool) -> None:
    import torch

    if not tiny and torch.cuda.device_count() < 2:
        sys.exit(f"two GPUs are needed; this machine has {torch.cuda.device_count()}: give --tiny to check the program")
    if tiny and torch.cuda.is_available():
        sys.exit("--tiny is for a machine without a GPU; here, leave it out")


def about(commit: str | None) -> Row:
    """Returns what the file says about the machine."""
    from lazyrope.vllm import releases

    from tools.rag.environment import environment

    machine = environment(commit)
    machine["versions"]["vllm"] = releases.installed_version()
    device, is_gpu = machine.pop("device"), machine.pop("is_gpu")
    gpu = device if is_gpu else None
    return {"gpu": gpu, "gpus": 2 if gpu else 0, **machine, "command": "python3 -m tests.gpu.two_gpus"}


def write(file: Path, machine: Row, rows: list[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(machine | {"rows": rows}, indent=1) + "\n")
    part.replace(file)


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parsed(given)
    if options.child:
        rows = run_part(options)
        options.json.write_text(json.dumps(rows[0] if "," in options.child else rows))
        return 0
    require_gpus(options.tiny)
    machine, rows = about(options.commit), []
    if options.json.exists():
        rows = [row for row in json.loads(options.json.read_text())["rows"] if row["part"] not in options.parts]
    failed = False
    for name in options.parts:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "rows.json")
            try:
                run_child(["--json", str(file), *(["--tiny"] if options.tiny else []), "--child", name], {})
                found = [{"part": name, "passed": True, **row} for row in json.loads(file.read_text())]
            except subprocess.CalledProcessError as error:
                found, failed = [{"part": name, "passed": False, "status": error.returncode}], True
        for row in found:
            row |= {"seconds": round(time.perf_counter() - begin, 1), **{name: machine[name] for name in OF_ROW}}
            print(json.dumps(row), flush=True)
        rows += found
        write(options.json, machine, rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
