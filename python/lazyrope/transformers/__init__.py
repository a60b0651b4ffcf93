"""Serves models of Hugging Face transformers from documents that are stored once and read at any position.

    engine = lazyrope.transformers.attach(model, tokenizer=tokenizer, budget="8GiB")
    for piece in engine.generate("What does the licence forbid?", documents=[licence, manual]).pieces():
        print(piece, end="")

A document's tokens see their own document alone, whichever documents come before it (the block mask of Block-Attention,
arXiv 2409.15355). The prompt comes last. It sees all documents and itself, at the positions that their order gives.
In mode "full", a document's tokens also see the documents before it, as in an ordinary prefill.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

from .. import compile as compile_kernels
from .. import eager
from .._core import AttentionSpec, LayerGroup, compile_reposition
from .._precomputed import memory_kind
from ..documents import DocumentStore
from ..errors import SpecError
from .arguments import check
from .assessment import Assessment, LevelResult, Sample
from .backend import Backend, LayerKernels
from .engine import Engine
from .generation import Generation, Scores
from .limits import allowed_positions
from .models import MODEL_TYPES, can_be_captured, layer_groups
from .ranks import Ranks

__all__ = ["MODEL_TYPES", "Assessment", "Engine", "Generation", "LevelResult", "Sample", "Scores", "attach"]


def attach(
    model: Any,
    *,
    budget: int | str,
    tokenizer: Any = None,
    mode: str = "lazy",
    recovery: str = "none",
    prefix: str | Sequence[int] = (),
    overlay_tokens: int = 16,
    share: float = 0.15,
    question_tokens: int = 128,
    attention_temperature: float = 0.9,
    lse_scale: float = 0.9,
    select_layers: int | None = None,
    arch: str | None = None,
    page_size: int = 16,
    max_requests: int = 32,
    max_pass_tokens: int = 8192,
    cuda_graphs: bool = True,
    max_graph_tokens: int = 256,
    max_model_len: int | None = None,
    progress: bool | None = None,
    kv_dtype: Any = None,
    kv_scales: Sequence[tuple[Any, Any]] | None = None,
    cascade: bool = False,
    memories: bool | str = False,
) -> Engine:
    """Makes an engine that serves a model from a store of documents.

    The model is not changed. It attends with lazyrope in the engine's passes, and as before between them. During a
    pass, other threads must not call the model: that is an error.

    Args:
        model: A causal language model of transformers, of a type in ``MODEL_TYPES``: those of
            :func:`lazyrope.model_types` whose code calls the attention interface of transformers. Its layers may
            differ in their sliding window and in their RoPE. It is on one device, in bfloat16 or float16. On the CPU
            in plain PyTorch it may also be in float32. A model of torch.compile serves by its own code. If transformers
            has divided it among processes (``tp_plan="auto"``), each process attaches an engine, and all of them must
            make the same calls in the same order. The budget is that of one process.
        budget: The bytes of KV of documents and requests together, or text such as "8GiB".
        tokenizer: The model's tokenizer. With it, prompts and documents may be text.
        mode: The way of reading documents. "lazy": the prompt reads the stored copy of each document in place.
            "block": the request gets a private copy with keys rotated to their positions (Block-Attention).
            "recompute": the request computes its documents again, each by itself. These three have the same mask and
            give the same result up to rounding. "full": an ordinary prefill, in which each document sees all documents
            before it and nothing is stored. A request may choose another mode.
        recovery: The default level of :mod:`lazyrope.recovery`, which brings answers nearer to those of mode "full".
            "none": a document sees nothing before it. "prefix": each document is computed after the prefix, and
            requests see the prefix once, before all documents. "first_page": as "prefix", if there is a prefix, and
            the first tokens of each document but the first are computed again over everything before them. "guided":
            the prompt first runs over the stored documents, and the pages of 16 tokens to which it attends most are
            then computed again as well. "ape": as "prefix", if there is a prefix, and the prompt attends to the
            documents with a temperature. A request may choose another level. The modes "lazy" and "full" have all
            levels, and "full" computes everything again anyway.
        prefix: The tokens, or the text, of the prefix, such as a system prompt. It needs another recovery than "none",
            and a request that chooses "none" does not see it.
        overlay_tokens: The tokens that "first_page" and "guided" compute again at the beginning of each document but
            the first. Those of "first_page" are stored for requests with the same documents before this one.
        share: The share of all tokens of the documents that "guided" computes again, 0 to 1, including overlay_tokens.
            Each request computes them into its own pages, which the budget bounds, too.
        question_tokens: The last tokens of the prompt whose attention chooses the pages of "guided". The measurement's
            memory is not part of the budget: 4 bytes for each of these tokens, page of 16 tokens and query head, and
            for each kind of layers, but at most 4 MiB for each query head and kind. Questions that would take more are
            measured in several passes.
        attention_temperature: The number by which "ape" divides the scores of prompts and of new tokens with documents,
            greater than 0. It sharpens attention, and has nothing to do with the temperature of sampled tokens.
        lse_scale: The factor of the log-sum-exp of these scores, greater than 0, before the attention to documents is
            merged with that to all other keys. Each layer has one attention call more in passes with such requests.
            What that call writes is not part of the budget: as much as the queries of a pass, and while both are merged
            several times as much.
        select_layers: The first layers whose attention chooses the pages of "guided". None: all layers. A
            pass of questions alone runs these layers and no others.
        arch: The arch of the kernels. The default is that of the model's GPU. On the CPU, attention runs in plain
            PyTorch, with a warning, unless arch is "emu:sm_80", the emulator.
        page_size: The tokens of a page, a multiple of 16.
        max_requests: The most requests that run at the same time.
        max_pass_tokens: The most tokens of one pass. Longer prompts and documents take several passes.
        cuda_graphs: If True, passes that only decode are captured and replayed on a GPU. A pass is captured when a
            number of requests first occurs. Meanwhile no other thread may synchronise that GPU as a whole or draw
            random numbers on it (PyTorch's rule). Models whose code reads numbers back to the host are never
            captured: those that transformers does not mark as compilable, those whose experts run in a loop (their
            ``experts_implementation`` is "eager"), and those with LongRoPE or dynamic scaling.
        max_graph_tokens: Other passes of up to this many tokens are captured too: short prompts, with or without
            decoding, and the measurement of questions. Their launches then take the host less time than the GPU. Each
            power of two of tokens is captured when it first occurs. 0: none.
        max_model_len: The most positions of a request: its documents, its prompt and its new tokens. A longer request
            is refused. The default is the model's own maximum: max_position_embeddings of its config, or, with YaRN,
            the positions that its factor extends it to. A greater number lifts the refusal; beyond its own maximum a
            model usually answers nonsense. With LongRoPE, dynamic scaling and the temperature of Ministral 3 the
            maximum is the original context, and a greater number is refused: stored documents would be wrong.
        progress: Whether long work shows a progress bar on stderr: the layers of a pass, and the tokens that
            :meth:`Generation.result` and :meth:`Generation.text` wait for. None: on a CPU, if stderr is a terminal.
        kv_dtype: The type of stored keys and values: "float8_e4m3fn", "float8_e5m2", or by default that of the model.
            With 8 bits, mode "block" rounds each key once more than the others do.
        kv_scales: With 8 bits, the key scale and the value scale of each layer: tensors on the model's device, float32,
            of one element or [num_kv_heads]. Keys and values are stored divided by them. The default is 1.
        cascade: If True, a document that several requests read in one pass is read once for all of them, as
            :class:`lazyrope.AttentionSpec` has it. It saves time where many requests share documents.
        memories: True or "compact": requests may name compact memories of :mod:`lazyrope.memory` among their documents.
            The kernels then add a bias to each key, which the budget has 4 bytes for in each layer, slot and KV head.
            "states": requests may name memories of attention states instead, up to four each, and the numbers are their
            log-sum-exps. Such an engine has no cascade and no level "guided". On Hopper all its prefill runs the slower
            kernels of family sm80, also for requests without a memory: use it for requests that name memories alone. A
            model that is divided among processes has no memories.

    Raises:
        SpecError: The model's config needs a feature that does not exist (the message names it), or a value is not
            allowed.
        CompileError: As in :func:`lazyrope.compile`.
        CacheError: As in :func:`lazyrope.compile`.
        DriverError: As in :func:`lazyrope.compile`.
    """
    model = getattr(model, "_orig_mod", model)  # compiled code would be compiled again for each size of a pass
    is_count = max_model_len is None or (isinstance(max_model_len, int) and max_model_len >= 1)
    check("max_model_len", max_model_len, is_count, "an integer, at least 1")
    kind = memory_kind(memories)
    groups = layer_groups(model, kv_dtype, max_model_len, cascade=cascade, memories=kind)
    backend = _backend(model, groups, budget, arch, page_size, kv_scales, kind)
    return Engine(
        model,
        backend.store,
        backend,
        tokenizer=tokenizer,
        mode=mode,
        recovery=recovery,
        prefix=prefix,
        overlay_tokens=overlay_tokens,
        share=share,
        question_tokens=question_tokens,
        attention_temperature=attention_temperature,
        lse_scale=lse_scale,
        select_layers=select_layers,
        max_requests=max_requests,
        max_pass_tokens=max_pass_tokens,
        cuda_graphs=cuda_graphs and model.device.type == "cuda" and can_be_captured(model),
        max_graph_tokens=max_graph_tokens,
        max_model_len=allowed_positions(model.config, max_model_len),
        progress=progress,
    )


def _backend(
    model: Any,
    groups: list[LayerGroup],
    budget: int | str,
    arch: str | None,
    page_size: int,
    kv_scales: Sequence[tuple[Any, Any]] | None,
    memories: str | None,
) -> Backend:
    """Returns the store and the attention of a model, as the arguments of :func:`attach` ask for them."""
    spec = groups[0].spec
    is_plain = model.device.type == "cpu" and arch is None
    if is_plain:
        warnings.warn(
            "the model is on the CPU: attention runs in plain PyTorch (lazyrope.eager), not in lazyrope's kernels",
            RuntimeWarning,
            stacklevel=3,  # the caller of attach()
        )
    elif str(model.dtype) != f"torch.{spec.dtype}":
        raise SpecError(f"the model is in {model.dtype}; kernels are for bfloat16 and float16")
    store = DocumentStore(
        groups,
        budget=budget,
        model=model.config._name_or_path,
        page_size=page_size,
        dtype=model.dtype if spec.kv_dtype == spec.dtype else None,
        device=model.device,
        memories=memories or False,
    )
    compiled = _plain_kernels if is_plain else functools.partial(_kernels, arch=arch)
    return Backend(groups, compiled, store, kv_scales, Ranks(model))


def _plain_kernels(spec: AttentionSpec) -> LayerKernels:
    return LayerKernels(eager.compile(spec), eager.compile_reposition(spec))


def _kernels(spec: AttentionSpec, arch: str | None) -> LayerKernels:
    return LayerKernels(compile_kernels(spec, arch), compile_reposition(spec, arch))
