"""Tiny models of each type that the engine serves, with random weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.support import hf_changes

# hf_changes has no sizes of the rest of the model. Each token goes to all experts: otherwise rounding might change the
# expert of a token, and with it the result.
SIZES = {"vocab_size": 1024, "intermediate_size": 64, "n_inner": 64, "max_position_embeddings": 4096}
EXPERTS = {"num_experts": 2, "num_local_experts": 2, "n_routed_experts": 2, "moe_num_experts": 2}
EXPERTS |= {"num_experts_per_tok": 2, "moe_k": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
EXPERTS |= {"n_shared_experts": 1, "shared_intermediate_size": 16}
# The deviation of weights makes attention far from uniform, so that a wrong position changes the output.
WEIGHT = 0.06


def tiny_config(model_type: str, **changes: Any) -> Any:
    entries = hf_changes.changed(model_type) | SIZES | EXPERTS | changes
    return transformers.CONFIG_MAPPING[model_type].from_dict(entries)


def tiny_model(model_type: str, dtype: torch.dtype = torch.float32, device: str = "cpu", **changes: Any) -> Any:
    """Returns a causal language model of 4 layers with 8 query heads. Models of any dtype have the same weights."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(tiny_config(model_type, **changes), dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.normal_(0, 1, generator=generator)
            elif parameter.dim() > 1 or name.endswith("bias"):
                parameter.normal_(0, WEIGHT, generator=generator)
            parameter.copy_(parameter.to(torch.bfloat16))  # so that a cast to bfloat16 changes no weight
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)  # buffers, such as RoPE's frequencies, stay in float32
    return model.to(device).eval()
