"""Serves models of Hugging Face transformers from documents that are stored once and read at any position.

    engine = lazyrope.transformers.attach(model, tokenizer=tokenizer, budget="8GiB")
    for piece in engine.generate("What does the licence forbid?", documents=[licence, manual]).pieces():
        print(piece, end="")

A document's tokens see their own document alone, whichever documents come before it (the block mask of Block-Attention,
arXiv 2409.15355). The prompt comes last. It sees all documents and itself, at the positions that their order gives.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch

from .. import compile as compile_kernels
from .. import eager
from .._core import AttentionSpec, compile_reposition
from ..documents import DocumentStore
from ..errors import SpecError
from .engine import Engine, Generation, Scores
from .limits import max_positions
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
    max_model_len: int | None = None,
    progress: bool | None = None,
) -> Engine:
    """Makes an engine that serves a model from a store of documents.

    The model is not changed. It attends with lazyrope in the engine's passes, and as before between them. During a
    pass, other threads must not call the model: that is an error.

    Args:
        model: A causal language model of transformers with Llama's attention (Llama, SmolLM2, Mistral, Qwen2, Qwen3).
            It is on one device, in bfloat16 or float16. On the CPU in plain PyTorch it may also be in float32.
        budget: The bytes of KV of documents and requests together, or text such as "8GiB".
        tokenizer: The model's tokenizer. With it, prompts and documents may be text.
        mode: The way of reading documents. "lazy": the prompt reads the stored copy of each document in place.
            "block": the request gets a private copy with keys rotated to their positions (Block-Attention). "full":
            the request computes its documents again. All three have the same mask and give the same result up to
            rounding. A request may choose another mode.
        arch: The arch of the kernels. The default is that of the model's GPU. On the CPU, attention runs in plain
            PyTorch, with a warning, unless arch is "emu:sm_80", the emulator.
        page_size: The tokens of a page, a multiple of 16.
        max_requests: The most requests that run at the same time.
        max_pass_tokens: The most tokens of one pass. Longer prompts and documents take several passes.
        cuda_graphs: If True, passes that only decode are captured and replayed on a GPU. A pass is captured when a
            number of requests first occurs. Meanwhile no other thread may synchronise that GPU as a whole or draw
            random numbers on it (PyTorch's rule).
        max_graph_tokens: Other passes of up to this many tokens are captured too: short prompts, with or without
            decoding. Their launches then take the host less time than the GPU. Each power of two of tokens is captured
            when it first occurs. 0: none.
        max_model_len: The most positions of a request: its documents, its prompt and its new tokens. A longer request
            is refused. The default is the model's own maximum: max_position_embeddings of its config, or, with YaRN,
            the positions that its factor extends it to. A greater number lifts the refusal; beyond its own maximum a
            model usually answers nonsense.
        progress: Whether long work shows a progress bar on stderr: the layers of a pass, and the tokens that
            :meth:`Generation.result` and :meth:`Generation.text` wait for. None: on a CPU, if stderr is a terminal.

    Raises:
        SpecError: The model's config needs a feature that does not exist (the message names it), or a value is not
            allowed.
        CompileError: As in :func:`lazyrope.compile`.
        CacheError: As in :func:`lazyrope.compile`.
        DriverError: As in :func:`lazyrope.compile`.
    """
    backend = _backend(model, budget, arch, page_size)
    return Engine(
        model,
        backend.store,
        backend,
        tokenizer=tokenizer,
        mode=mode,
        max_requests=max_requests,
        max_pass_tokens=max_pass_tokens,
        cuda_graphs=cuda_graphs and model.device.type == "cuda",
        max_graph_tokens=max_graph_tokens,
        max_model_len=max_positions(model.config) if max_model_len is None else max_model_len,
        progress=progress,
    )


def _backend(model: Any, budget: int | str, arch: str | None, page_size: int) -> Backend:
    """Returns the store and the attention of a model, as the arguments of :func:`attach` ask for them."""
    _check_is_loaded(model)
    spec = _supported_spec(model)
    plain = model.device.type == "cpu" and arch is None
    if plain:
        warnings.warn(
            "the model is on the CPU: attention runs in plain PyTorch (lazyrope.eager), not in lazyrope's kernels",
            RuntimeWarning,
            stacklevel=3,  # the caller of attach()
        )
    elif str(model.dtype) != f"torch.{spec.dtype}":
        raise SpecError(f"the model is in {model.dtype}; kernels are for bfloat16 and float16")
    store = DocumentStore(
        spec,
        num_layers=model.config.num_hidden_layers,
        budget=budget,
        model=model.config._name_or_path,
        page_size=page_size,
        dtype=model.dtype,
        device=model.device,
    )
    attention = eager.compile(spec) if plain else compile_kernels(spec, arch)
    reposition = eager.compile_reposition(spec) if plain else compile_reposition(spec, arch)
    return Backend(attention, reposition, store)


def _check_is_loaded(model: Any) -> None:
    """Raises SpecError for the name of a model, or anything else that is not a model of transformers."""
    if hasattr(model, "config") and hasattr(model, "get_output_embeddings"):
        return
    name = str(model) if isinstance(model, str | os.PathLike) else "HuggingFaceTB/SmolLM2-135M-Instruct"
    raise SpecError(
        f"model = {model!r:.80}; it must be a loaded model of transformers:\n"
        f"    model = AutoModelForCausalLM.from_pretrained({name!r}, dtype=torch.bfloat16)\n"
        f"    engine = lazyrope.transformers.attach(model, budget=...)"
    )


def _supported_spec(model: Any) -> AttentionSpec:
    """Returns the model's attention, for queries that the model has rotated.

    Raises:
        SpecError: The engine does not support the model. The message says why.
    """
    if model.get_output_embeddings() is None:
        raise SpecError(f"{type(model).__name__} gives no logits; load the model by AutoModelForCausalLM")
    if others := {str(p.device) for p in model.parameters()} - {str(model.device)}:
        raise SpecError(f"the model is on {model.device} and on {', '.join(sorted(others))}; it must be on one device")
    if model.config.model_type not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise SpecError(f'model_type = "{model.config.model_type}" is not supported; allowed are: {known}')
    dtype = torch.float16 if model.dtype == torch.float16 else torch.bfloat16
    spec = AttentionSpec.from_hf(model.config, dtype=dtype, query_form="rotated")
    if spec.mask != "causal":
        raise SpecError(f"the model's mask is {spec.mask} (window {spec.window}); the engine supports causal only")
    return spec
