"""Pools of raw keys serve requests whose RoPE depends on their length: dynamic NTK scaling and LongRoPE."""

from __future__ import annotations

import lazyrope
import pytest
import torch
from lazyrope import eager

from tests.support import reference

transformers = pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")


@pytest.mark.parametrize("tokens", [513, 900, 4096])
def test_dynamic_scaling_of_raw_keys_is_that_of_transformers_for_a_request_of_this_length(tokens):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    config = transformers.LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=512)
    config.rope_parameters = rope
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    rotary(torch.zeros(1), torch.arange(tokens)[None])
    spec = lazyrope.AttentionSpec.from_hf(config, key_form="raw", max_model_len=tokens)
    assert spec.key_form == "raw" and spec.append_form == "raw"
    assert spec.frequencies == pytest.approx(rotary.inv_freq.tolist(), rel=1e-5)
    plain = lazyrope.AttentionSpec.from_hf(config, key_form="raw", max_model_len=512)
    assert plain.frequencies != pytest.approx(spec.frequencies, rel=1e-3)


def test_both_lists_of_longrope_read_one_pool_of_raw_keys():
    """Each kernel rotates the same stored keys by its own frequencies. fp64 is the reference."""
    lists = {"short_factor": [1.5] * 32, "long_factor": [9.0] * 32, "original_max_position_embeddings": 256}
    config = {"model_type": "phi3", "hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 1024}
    config |= {"rope_scaling": {"rope_type": "longrope", **lists}, "original_max_position_embeddings": 256}
    generator = torch.Generator().manual_seed(0)
    k, v, q = (torch.randn(n, 2, 64, generator=generator).to(torch.bfloat16) for n in (40, 40, 3))
    k_pool, v_pool = (torch.zeros(3, 16, 2, 64, dtype=torch.bfloat16) for _ in "kv")
    pages, positions = torch.arange(3, dtype=torch.int32), [140, 141, 142]
    outputs = []
    for tokens in (256, 1024):
        spec = lazyrope.AttentionSpec.from_hf(config, key_form="raw", max_model_len=tokens)
        kernel = eager.compile(spec)
        if tokens == 256:  # stored once
            spans = lazyrope.TokenSpans(*(torch.tensor(x, dtype=torch.int32) for x in ([0, 40], [0], [0])))
            writes = kernel.plan_append(spans, pages, capacity=lazyrope.AppendCapacity(40))
            kernel.append(k, v, k_pool, v_pool, writes)
        request = lazyrope.Request(positions, [lazyrope.Segment(lazyrope.Document(0, 40), base=100)])
        out, _ = kernel(q, k_pool, v_pool, kernel.plan(lazyrope.batch([request], pages)))
        exact, _ = reference.attention(
            q,
            torch.tensor(positions),
            [reference.Segment(k, v, 100, 0)],
            frequencies=torch.tensor(spec.frequencies, dtype=torch.float64),
            rotary_dim=64,
            query_rotated=False,
            keys_raw=True,
            mask="causal",
            scale=spec.scale,
            attention_factor=spec.attention_factor,
        )
        assert (out.double() - exact).norm() / exact.norm() < 0.01
        outputs.append(exact)
    assert (outputs[0] - outputs[1]).norm() / outputs[0].norm() > 0.1
