"""Captures a decode step in a CUDA graph, and replays it while the request grows by a token each time.

Without a GPU there is nothing to capture: the program says so, and runs the same calls in the emulator.
"""

import lazyrope
import torch

gpu = torch.cuda.is_available()
device, arch = ("cuda", None) if gpu else ("cpu", "emu:sm_80")
if not gpu:
    print("no GPU: nothing is captured, and the calls run in the emulator")

spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=4, num_kv_heads=2, rope=lazyrope.rope.neox())
kernel = lazyrope.compile(spec, arch)
k_pool, v_pool = (torch.zeros(4, 16, 2, 64, dtype=torch.bfloat16, device=device) for _ in "kv")
pages = torch.tensor([2, 0, 3, 1], dtype=torch.int32, device=device)
q, out = (torch.zeros(1, 4, 64, dtype=torch.bfloat16, device=device) for _ in range(2))
k, v = (torch.zeros(1, 2, 64, dtype=torch.bfloat16, device=device) for _ in "kv")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def metadata(length: int) -> tuple[torch.Tensor, torch.Tensor, lazyrope.Segments, torch.Tensor]:
    """Returns the arguments of plan for one request of `length` tokens. The newest token is the query."""
    zero = ints(0)
    return ints(0, 1), ints(length - 1), lazyrope.Segments(ints(0, 1), zero, zero, ints(length), zero), pages


def span(length: int) -> lazyrope.TokenSpans:
    """Returns the span of the newest token of the request."""
    return lazyrope.TokenSpans(indptr=ints(0, 1), start=ints(length - 1), first_page=ints(0), lead=ints(length - 1))


def layer() -> None:
    kernel.append(k, v, k_pool, v_pool, writes)
    kernel(q, k_pool, v_pool, step, out=out, return_lse=False)


capacity = lazyrope.StepCapacity(requests=1, segments=1, query_tokens=1)
step = kernel.plan(*metadata(1), capacity=capacity)
writes = kernel.plan_append(span(1), pages, capacity=lazyrope.AppendCapacity(tokens=1))
layer()  # loads the kernels: loading is not allowed during a capture
replay = layer
if gpu:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer()
    replay = graph.replay

for length in range(1, 21):
    for tensor in (q, k, v):
        tensor.normal_()
    step.update(*metadata(length))
    writes.update(span(length), pages)
    replay()
expected, _ = kernel(q, k_pool, v_pool, step)
assert torch.equal(out, expected)
print(f"20 tokens by {'one captured graph' if gpu else 'plain calls'}; the last output is that of a plain call")
