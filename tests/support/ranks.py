"""Runs two ranks of models that transformers has divided, each served by an engine, and checks what they found.

python -m tests.support.ranks RANK RANKS FOLDER DEVICE

FOLDER/models has models. The rank serves each of them, once divided and once whole, and writes what it found to
FOLDER/RANK.json. DEVICE is cpu (the ranks exchange by gloo) or cuda (by NCCL, rank i on GPU i). run_ranks() starts the
processes of all ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lazyrope
import torch
from lazyrope.transformers import Engine
from transformers import AutoModelForCausalLM

from tests.support.serving import DTYPE, budget_of, make_engine, random_token_lists
from tools.rag.model import tiny_llama

ROOT = Path(__file__).parents[2]
RANKS = 2
# The heads of the whole model, of which a rank has half. One KV head of the last model is repeated for both ranks.
HEADS = {"16-4": (16, 4), "18-6": (18, 6), "10-1": (10, 1)}
# The most that hidden states may differ, relative to their norm: sums over ranks have another order.
ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
ORDERS = ([0, 1, 2], [2, 0, 1], [1, 1, 0, 2])
LEVELS = ("first_page", "guided", "ape")
LENGTHS = (19, 160, 133, 157)  # tokens of the prompt and of each document


Found = dict[str, Any]  # the report of a rank about a model


def run_ranks(folder: Path, names: list[str], kind: str) -> list[dict[str, Found]]:
    """Saves models, runs the ranks, and returns what each rank has found about each model.

    Args:
        folder: An empty folder.
        names: Keys of HEADS.
        kind: "cpu" or "cuda".
    """
    for name in names:
        save_model(folder / "models" / name, HEADS[name])
    # No GPU needs multicast of NVLink, which not every host allows.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NCCL_NVLS_ENABLE": "0"}
    logs = [folder / f"{rank}.log" for rank in range(RANKS)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("w") as output:
            given = [sys.executable, "-m", "tests.support.ranks", str(rank), str(RANKS), str(folder), kind]
            ranks.append(subprocess.Popen(given, cwd=ROOT, env=environment, stdout=output, stderr=output))
    try:
        for rank, log in zip(ranks, logs, strict=True):
            assert rank.wait(300) == 0, log.read_text()
    finally:
        for rank in ranks:
            rank.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def save_model(folder: Path, heads: tuple[int, int]) -> None:
    """Saves a tiny model, in which KV heads are repeated until each rank has one."""
    counts = {"num_attention_heads": heads[0], "num_key_value_heads": max(RANKS, heads[1])}
    model = tiny_llama(dtype=DTYPE, hidden_size=16 * heads[0], **counts)
    repeats = max(1, RANKS // heads[1])
    for layer in model.model.layers:
        for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj):
            first = projection.weight.data[: len(projection.weight) // repeats]
            projection.weight.data.copy_(first.repeat(repeats, 1))
    model.save_pretrained(folder)


def check_alike(of_model: list[Found]) -> None:
    """Checks that all ranks did the same."""
    first, second = of_model
    assert first == second


def check_outputs(of_model: list[Found]) -> None:
    """Checks that the divided model gives what the whole one gives."""
    for rank in of_model:
        assert rank["error"] < ERROR[DTYPE]
        if DTYPE == torch.float32:  # near ties differ in bfloat16
            assert rank["divided"]["tokens"] == rank["whole"]["tokens"]
            assert rank["divided"]["chosen"] == rank["whole"]["chosen"]


def check_stored(of_model: list[Found]) -> None:
    """Checks that documents are stored once, and found in any order."""
    for rank in of_model:
        hits, misses = rank["divided"]["found"]
        assert [hits, misses] == rank["whole"]["found"] and hits > misses
        assert len(set(rank["divided"]["keys"])) == len(rank["whole"]["keys"]) == misses


def check_evicted(of_model: list[Found]) -> None:
    """Checks that the same documents are evicted, and that some are."""
    for rank in of_model:
        kept = rank["evicted"]
        assert all(1 <= len(keys) <= 3 for keys in kept) and len({key for keys in kept for key in keys}) == 4
        assert kept[-1] != kept[-2]


def check_heads(of_model: list[Found], name: str) -> None:
    """Checks that each rank has the heads of from_hf(tensor_parallel=2)."""
    heads = HEADS[name]
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 64,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 4096,
    }
    spec = lazyrope.AttentionSpec.from_hf(config, tensor_parallel=RANKS)
    assert [rank["heads"] for rank in of_model] == [[spec.num_q_heads, spec.num_kv_heads]] * RANKS


def serve(engine: Engine, prompt: list[int], documents: list[list[int]]) -> dict[str, Any]:
    """Returns the tokens, and which documents were stored and found, of requests that every engine answers alike."""
    tokens = {}
    for order in ORDERS:
        moved = [documents[i] for i in order]
        tokens[str(order)] = engine.generate(prompt, moved, max_new_tokens=5, stop=[]).result()
    for level in LEVELS:
        options: dict[str, Any] = {"recovery": level, "max_new_tokens": 4, "stop": []}
        tokens[level] = engine.generate(prompt, documents, **options).result()
    chosen = engine.score(prompt, documents, recovery="guided", share=0.5).recomputed
    stats = engine.store.stats
    return {"tokens": tokens, "chosen": chosen, "keys": stored_keys(engine), "found": [stats.hits, stats.misses]}


def sampled(engine: Engine, prompt: list[int], documents: list[list[int]]) -> list[int]:
    """Returns tokens that depend on random numbers."""
    return engine.generate(prompt, documents, temperature=1.5, max_new_tokens=12, stop=[]).result()


def stored_keys(engine: Engine) -> list[str]:
    """Returns the keys of the stored documents, the least recently used one first."""
    return list(engine.store._documents)


def evicted(model: Any, whole: Any, ranks: int) -> list[list[str]]:
    """Returns the keys of the documents that are stored after each of some requests, of which two fit."""
    engine = make_engine(model, budget=budget_of(whole, 256) // ranks)
    prompt, *documents = random_token_lists(5, 9, 96, 80, 70, 90)
    kept = []
    for i in (0, 1, 2, 0, 3, 2):
        engine.generate(prompt, [documents[i]], max_new_tokens=2, stop=[]).result()
        kept.append(stored_keys(engine))
    return kept


def report(folder: Path, ranks: int, device: torch.device) -> dict[str, Any]:
    """Serves one model."""
    prompt, *documents = random_token_lists(3, *LENGTHS)
    whole_model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPE).to(device).eval()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPE, tp_plan="auto").eval()
    whole, divided = make_engine(whole_model), make_engine(model)
    result = {"divided": serve(divided, prompt, documents), "whole": serve(whole, prompt, documents)}
    a, b = (engine.score(prompt, documents[::-1]).prompt.float() for engine in (divided, whole))
    spec = divided._runner.backend.spec
    return result | {
        "error": ((a - b).norm() / b.norm()).item(),
        "heads": [spec.num_q_heads, spec.num_kv_heads],
        "sampled": sampled(divided, prompt, documents),
        "evicted": evicted(model, whole_model, ranks),
    }


def main(rank: int, ranks: int, folder: Path, kind: str) -> None:
    # transformers divides a model if it finds what torchrun sets.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.manual_seed(rank)  # random numbers differ between ranks, and samples must not
    if kind == "cuda":
        torch.cuda.set_device(rank)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    torch.distributed.init_process_group(
        "nccl" if kind == "cuda" else "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=ranks
    )
    models = sorted((folder / "models").iterdir())
    found = {model.name: report(model, ranks, device) for model in models}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
