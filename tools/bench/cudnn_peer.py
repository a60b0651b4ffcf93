"""cuDNN's paged attention, through the package nvidia-cudnn-frontend."""

from __future__ import annotations

from typing import Any

from lazyrope.bench.peers import queries, require_16_bits
from lazyrope.bench.timer import Call, Memory

from tools.bench.kv import Pages, ints
from tools.bench.shapes import Shape


def cudnn_paged(shape: Shape, memory: Memory) -> Call:
    import cudnn
    import torch

    require_16_bits(shape)
    kind = {"bfloat16": cudnn.data_type.BFLOAT16, "float16": cudnn.data_type.HALF}[shape.dtype]
    single = cudnn.data_type.FLOAT
    pages = Pages(shape.contexts, shape, memory)
    table = pages.table[:, None, :, None]
    given = {
        "q": queries(shape, memory, shape.batch, shape.heads[0], shape.query_tokens, shape.head_dim),
        "k": pages.k.transpose(1, 2),
        "v": pages.v.transpose(1, 2),
        "seq_len_q": ints([shape.query_tokens] * shape.batch, memory).view(-1, 1, 1, 1),
        "seq_len_kv": pages.lengths.view(-1, 1, 1, 1),
        "paged_attention_k_table": table,
        "paged_attention_v_table": table,
    }
    graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=single, compute_data_type=single)
    inputs = {name: graph.tensor_like(tensor) for name, tensor in given.items()}
    result, _ = graph.sdpa(
        **inputs,
        attn_scale=shape.head_dim**-0.5,
        generate_stats=False,
        use_padding_mask=True,
        use_causal_mask_bottom_right=shape.mask == "causal",
        paged_attention_max_seq_len_kv=max(shape.contexts),
    )
    out = torch.empty_like(given["q"])
    result.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride()))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=memory.device)
    tensors: dict[Any, Any] = {inputs[name]: tensor for name, tensor in given.items()} | {result: out}

    def call() -> object:
        graph.execute(tensors, workspace)
        return out

    return call
