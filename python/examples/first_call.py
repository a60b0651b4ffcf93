"""Stores two documents, then attends to both from one request, by the calls on device tensors."""

import lazyrope
import torch

# The kernels are compiled for the GPU if there is one. Otherwise an emulator runs the same source on the CPU.
gpu = torch.cuda.is_available()
device, arch = ("cuda", None) if gpu else ("cpu", "emu:sm_80")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=4, num_kv_heads=2, rope=lazyrope.rope.neox())
kernel = lazyrope.compile(spec, arch)

# A pool of ten 16-token pages. The first document's page list is the first three entries of `pages`; the second
# document's is the rest.
k_pool, v_pool = (torch.zeros(10, 16, 2, 64, dtype=torch.bfloat16, device=device) for _ in "kv")
pages = ints(5, 1, 8, 0, 2, 3, 4, 6, 7, 9)

# The documents have 40 and 100 tokens. The call append rotates each key by its index in its own document.
k, v = (torch.randn(140, 2, 64, dtype=torch.bfloat16, device=device) for _ in "kv")
spans = lazyrope.TokenSpans(indptr=ints(0, 40, 140), start=ints(0, 0), first_page=ints(0, 3))
writes = kernel.plan_append(spans, pages, capacity=lazyrope.AppendCapacity(tokens=140))
kernel.append(k, v, k_pool, v_pool, writes)

# One request has the second document at positions 0 to 99, the first at 100 to 139, and queries at 140 and 141.
segments = lazyrope.Segments(
    indptr=ints(0, 2), base=ints(0, 100), start=ints(0, 0), length=ints(100, 40), first_page=ints(3, 0)
)
step = kernel.plan(ints(0, 2), ints(140, 141), segments, pages, check=True)
q = torch.randn(2, 4, 64, dtype=torch.bfloat16, device=device)
out, lse = kernel(q, k_pool, v_pool, step, check=True)
print(f"{kernel.arch}: out {tuple(out.shape)}, log-sum-exp of token 140: {[round(x, 3) for x in lse[0].tolist()]}")
