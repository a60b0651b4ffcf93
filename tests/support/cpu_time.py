"""Compares the CPU time of an engine in plain PyTorch with that of the model's own attention, on one thread.

python -m tests.support.cpu_time [float32|bfloat16] [sdpa|eager] [rounds]
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from tests.support.serving import make_engine, random_token_lists

NEW_TOKENS = 32
CONFIG = {
    "vocab_size": 1024,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}


def ratios(dtype: torch.dtype, attention: str, rounds: int) -> dict[str, float]:
    """Returns the engine's CPU time over that of the model's own attention, for the first token and for the others.

    The engine computes three documents, a prompt and 32 tokens. The model computes the same tokens as one text with a
    cache, so its documents attend to each other.
    """
    torch.manual_seed(0)
    config = LlamaConfig(**CONFIG, attn_implementation=attention)
    model: Any = LlamaForCausalLM(config).to(dtype).eval()
    prompt, *documents = random_token_lists(1, 20, 200, 150, 250)
    text = [token for document in documents for token in document] + prompt
    engine = make_engine(model)

    def of_engine() -> list[float]:
        engine.store.clear()
        return times(iter(engine.generate(prompt, documents, max_new_tokens=NEW_TOKENS, stop=[])))

    def of_model() -> list[float]:
        return times(generated(model, text))

    of_engine(), of_model()
    pairs = [(of_engine(), of_model()) for _ in range(rounds)]  # in alternation, for the machine's speed varies
    ours, theirs = (
        [statistics.median(column) for column in zip(*side, strict=True)] for side in zip(*pairs, strict=True)
    )
    return {
        "first token": ours[0] / theirs[0],
        "other tokens": ours[1] / theirs[1],
        "all tokens": sum(ours) / sum(theirs),
    }


def times(tokens: Any) -> list[float]:
    """Returns the CPU seconds that an iterator takes for its first token and for all others."""
    begin = time.process_time()
    next(tokens)
    first = time.process_time()
    count = sum(1 for _ in tokens)
    assert count == NEW_TOKENS - 1
    return [first - begin, time.process_time() - first]


def generated(model: Any, tokens: list[int]) -> Any:
    """Yields the most probable tokens after a text, by the model's own attention and cache."""
    cache, ids = DynamicCache(config=model.config), torch.tensor([tokens])
    for _ in range(NEW_TOKENS):
        with torch.no_grad():
            logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        ids = logits[:, -1].argmax(-1, keepdim=True)
        yield int(ids)


def main(dtype: str = "float32", attention: str = "sdpa", rounds: str = "9") -> None:
    torch.set_num_threads(1)
    for name, ratio in ratios(getattr(torch, dtype), attention, int(rounds)).items():
        print(f"{name}: {ratio:.2f} times the CPU time of transformers ({attention}, {dtype})")


if __name__ == "__main__":
    main(*sys.argv[1:])
