"""Serves models of transformers from documents that are stored once and read at any position.

    engine = lazyrope.transformers.attach(model, tokenizer=tokenizer, budget="8GiB")
    for token in engine.generate("What does the licence forbid?", documents=[licence, manual]):
        ...

A document's tokens see only their own document, whatever comes before it (the block mask of Block-Attention, arXiv
2409.15355); the prompt, which comes last, sees all of them and itself, at the positions that their order gives.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from .. import compile as compile_kernels
from .. import eager
from .._core import AttentionSpec, compile_reposition
from ..documents import DocumentStore
from ..errors import SpecError
from .engine import Engine, Generation, Scores
from .passes import Backend

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")

__all__ = ["Engine", "Generation", "Scores", "attach"]


def attach(
    model: Any,
    *,
    budget: int | str,
    tokenizer: Any = None,
    mode: str = "lazy",
    arch: str | None = None,
    page_size: int = 16,
    max_requests: int = 32,
    max_pass_tokens: int = 8192,
    cuda_graphs: bool = True,
    max_graph_tokens: int = 256,
) -> Engine:
    """An engine that serves a model from a store of documents. The model is not changed: it attends by lazyrope in the
    engine's passes, and as before between them; meanwhile, calling it from another thread is an error.

    Args:
        model: a causal language model of transformers with Llama's attention (Llama, SmolLM2, Mistral, Qwen2, Qwen3),
            on one device, in bfloat16 or float16 (on the CPU in plain PyTorch, also float32).
        budget: bytes of KV, documents and requests together; or text, such as "8GiB".
        tokenizer: with it, prompts and documents may be text.
        mode: "lazy": the prompt reads each document's one stored copy where it is. "block": the request gets a private
            copy, keys turned to their positions (Block-Attention). "full": it computes its documents anew. All three
            have the same mask and give the same result but for rounding. Requests may choose for themselves.
        arch: of the kernels; that of the model's GPU by default. On the CPU, attention runs in plain PyTorch, and a
            warning says so, unless this is "emu:sm_80", the emulator.
        page_size: tokens of a page, a multiple of 16.
        max_requests: that run at the same time.
        max_pass_tokens: of one pass; longer prompts and documents take several.
        cuda_graphs: whether passes that only decode are captured and replayed, on a GPU. While one is captured, when a
            number of requests first comes, no other thread may synchronise that GPU as a whole or draw random numbers
            on it (PyTorch's rule).
        max_graph_tokens: so are other passes of up to this many tokens (short prompts, beside decoding or not): their
            launches then take the host less time than the GPU. Each power of two of tokens is captured when it first
            comes. 0: none.

    Raises:
        SpecError: the model's config needs what does not exist (the message names it), or a value is not allowed.
        CompileError, CacheError, DriverError: as :func:`lazyrope.compile`.
    """
    device, dtype = model.device, model.dtype
    if model.get_output_embeddings() is None:
        raise SpecError(f"{type(model).__name__} gives no logits; load the model by AutoModelForCausalLM")
    if others := {str(p.device) for p in model.parameters()} - {str(device)}:
        raise SpecError(f"the model is on {device} and on {', '.join(sorted(others))}; it must be on one device")
    kernel_dtype = "float16" if dtype == torch.float16 else "bfloat16"
    if model.config.model_type not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise SpecError(f'model_type = "{model.config.model_type}" is not served yet; known are: {known}')
    spec = AttentionSpec.from_hf(model.config, dtype=kernel_dtype, query_form="rotated")
    if spec.mask != "causal":
        raise SpecError(f"the model's mask is {spec.mask} (window {spec.window}); the engine serves causal ones only")
    plain = device.type == "cpu" and arch is None
    if not plain and str(dtype) != f"torch.{spec.dtype}":
        raise SpecError(f"the model is in {dtype}; kernels are for bfloat16 and float16")
    if plain:
        warnings.warn(
            "the model is on the CPU: attention runs in plain PyTorch (lazyrope.eager), not in lazyrope's kernels",
            RuntimeWarning,
            stacklevel=2,
        )
    store = DocumentStore(
        spec,
        num_layers=model.config.num_hidden_layers,
        budget=budget,
        model=model.config._name_or_path,
        page_size=page_size,
        dtype=dtype,
        device=device,
    )
    attention = eager.compile(spec) if plain else compile_kernels(spec, arch)
    reposition = eager.compile_reposition(spec) if plain else compile_reposition(spec, arch)
    return Engine(
        model,
        store,
        Backend(attention, reposition, store),
        tokenizer=tokenizer,
        mode=mode,
        max_requests=max_requests,
        max_pass_tokens=max_pass_tokens,
        cuda_graphs=cuda_graphs and device.type == "cuda",
        max_graph_tokens=max_graph_tokens,
    )
