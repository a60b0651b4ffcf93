"""One rank of a model that transformers has divided, served by an engine: a program of test_transformers_ranks.py.

python -m tests.support.ranks RANK RANKS FOLDER DEVICE

FOLDER/models has models. The rank serves each of them, once divided and once whole, and writes what it found to
FOLDER/RANK.json. DEVICE is cpu (the ranks exchange by gloo) or cuda (by NCCL, rank i on GPU i).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from lazyrope.transformers import Engine
from transformers import AutoModelForCausalLM

from tests.support.serving import DTYPE, budget_of, make_engine, random_token_lists

ORDERS = ([0, 1, 2], [2, 0, 1], [1, 1, 0, 2])
LEVELS = ("first_page", "guided", "ape")
LENGTHS = (19, 160, 133, 157)  # tokens of the prompt and of each document


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
