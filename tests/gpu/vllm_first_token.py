"""Measures the time to the first token of vLLM over documents in a new order, stock or with lazyrope.

python -m tests.gpu.vllm_first_token stock|lazyrope [--model DIR] [--documents 5] [--tokens 2048] [--eager]

Prints one JSON object with the medians in milliseconds. The weights are random and have the shape of Llama-3.1-8B,
unless --model gives a folder. vLLM must be on the path, and one process measures one of the two. In stock vLLM, a
document sees the documents before it, so the answers differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

SHAPE = Path(__file__).parents[2] / "tools" / "models" / "llama-3.1-8b.json"
QUESTION = 32
LAZYROPE = {
    "attention_backend": "CUSTOM",
    "scheduler_cls": "lazyrope.vllm.Scheduler",
    "worker_cls": "lazyrope.vllm.Worker",
}


def engine_of(arguments: argparse.Namespace) -> Any:
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_V2_MODEL_RUNNER="0")
    from lazyrope.vllm import plugin
    from vllm import LLM

    options: dict[str, Any] = {}
    if arguments.arm == "lazyrope":
        plugin.register()
        options = dict(LAZYROPE)
    folder = arguments.model
    if folder is None:
        folder = tempfile.mkdtemp()
        Path(folder, "config.json").write_text(SHAPE.read_text())
        options["load_format"] = "dummy"
    room = arguments.documents * (arguments.tokens + 64) + QUESTION + 32
    return LLM(
        folder,
        skip_tokenizer_init=True,
        max_model_len=room,
        block_size=32,
        enforce_eager=arguments.eager,
        gpu_memory_utilization=arguments.memory,
        **options,
    )


class Prompts:
    """Makes prompts over the same documents, each with another question."""

    def __init__(self, arguments: argparse.Namespace, vocabulary: int) -> None:
        self._rng = random.Random(0)
        self._vocabulary = vocabulary
        self._has_documents = arguments.arm == "lazyrope"
        self.documents = [self._tokens(arguments.tokens) for _ in range(arguments.documents)]

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(self._vocabulary // 2) for _ in range(count)]

    def over(self, order: list[int]) -> tuple[list[int], dict[str, Any]]:
        from lazyrope.vllm import prompt

        tokens, extra = prompt(None, [self.documents[i] for i in order], self._tokens(QUESTION))
        return tokens, extra if self._has_documents else {}


def milliseconds(llm: Any, prompts: Prompts, order: list[int]) -> float:
    from vllm import SamplingParams

    tokens, extra = prompts.over(order)
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False, extra_args=extra or None)
    begin = time.perf_counter()
    llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)
    return (time.perf_counter() - begin) * 1e3


def measure(llm: Any, prompts: Prompts, repeats: int) -> dict[str, float]:
    """Returns medians: nothing stored; the same order again; an order that begins with another document."""
    rng, order = random.Random(1), list(range(len(prompts.documents)))
    cold, same, new = [], [], []
    milliseconds(llm, prompts, order)  # compiles what vLLM compiles at the first request
    for _ in range(repeats):
        llm.reset_prefix_cache()
        cold.append(milliseconds(llm, prompts, order))
        same.append(milliseconds(llm, prompts, order))
        moved = rng.sample(order, len(order))
        if moved[0] == order[0]:  # stock vLLM would find this document
            moved.append(moved.pop(0))
        new.append(milliseconds(llm, prompts, moved))
    medians = {"cold_ms": cold, "same_order_ms": same, "new_order_ms": new}
    return {name: round(statistics.median(values), 2) for name, values in medians.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("arm", choices=["stock", "lazyrope"])
    parser.add_argument("--model", help="a folder with a model; the default has random weights")
    parser.add_argument("--documents", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2048, help="the tokens of a document")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs and no torch.compile")
    parser.add_argument("--memory", type=float, default=0.5, help="the part of the GPU's memory that vLLM takes")
    arguments = parser.parse_args()
    llm = engine_of(arguments)
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    result = measure(llm, Prompts(arguments, vocabulary), arguments.repeats)
    print(json.dumps({"arm": arguments.arm, "documents": arguments.documents, "tokens": arguments.tokens} | result))


if __name__ == "__main__":
    main()
