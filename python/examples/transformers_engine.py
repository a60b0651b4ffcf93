"""Serves a tiny random Llama from stored documents. Two requests read the same documents. Nothing is downloaded."""

import lazyrope.transformers
import torch
from transformers import LlamaConfig, LlamaForCausalLM

gpu = torch.cuda.is_available()
device, arch = ("cuda", None) if gpu else ("cpu", "emu:sm_80")
torch.manual_seed(0)

config = LlamaConfig(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
)
model = LlamaForCausalLM(config).to(device=device, dtype=torch.bfloat16).eval()
engine = lazyrope.transformers.attach(model, budget="16MiB", arch=arch)

licence, manual = list(range(1, 41)), list(range(60, 120))  # token ids; text needs attach(..., tokenizer=)
first = engine.generate([7, 8, 9], documents=[licence, manual], max_new_tokens=4, stop=[])
second = engine.generate([10, 11], documents=[manual, licence], max_new_tokens=4, stop=[])
print("first: ", first.result())  # runs both requests
print("second:", second.result())

stats = engine.store.stats
print(
    f"{stats.documents} documents stored, {second.hits} found by the second request, {stats.bytes_copied} bytes copied"
)
assert (stats.documents, second.hits, stats.bytes_copied) == (2, 2, 0)
