"""Reads one copy of two documents in two orders, and compares both results with recomputed attention."""

import lazyrope
import torch

gpu = torch.cuda.is_available()
device, arch = ("cuda", None) if gpu else ("cpu", "emu:sm_80")
torch.manual_seed(0)

spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=4, num_kv_heads=2, rope=lazyrope.rope.neox())
kernel = lazyrope.compile(spec, arch)
k_pool, v_pool = (torch.zeros(10, 16, 2, 64, dtype=torch.bfloat16, device=device) for _ in "kv")
pages = torch.tensor([5, 1, 8, 0, 2, 3, 4, 6, 7, 9], dtype=torch.int32, device=device)
documents = {
    "A": lazyrope.Document(first_page=0, num_tokens=40),
    "B": lazyrope.Document(first_page=3, num_tokens=100),
}
rows = {"A": range(0, 40), "B": range(40, 140)}  # each document's rows of k and v

k, v = (torch.randn(140, 2, 64, dtype=torch.bfloat16, device=device) for _ in "kv")
indptr, start, first_page = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, 40, 140], [0, 0], [0, 3]))
spans = lazyrope.TokenSpans(indptr=indptr, start=start, first_page=first_page)
writes = kernel.plan_append(spans, pages, capacity=lazyrope.AppendCapacity(tokens=140))
kernel.append(k, v, k_pool, v_pool, writes)


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotates the heads of x, [tokens, heads, head_dim], to their positions, in fp64."""
    angle = positions.double()[:, None] * torch.tensor(spec.frequencies, dtype=torch.float64)
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.double().chunk(2, dim=-1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


def recomputed(q: torch.Tensor, order: str) -> torch.Tensor:
    """Returns the attention of q, at positions from 140 on, over keys rotated to their positions in this order."""
    at = torch.tensor([row for name in order for row in rows[name]])
    keys = rotate(k.cpu()[at], torch.arange(140)).repeat_interleave(2, dim=1)
    scores = torch.einsum("thd,khd->thk", rotate(q.cpu(), torch.arange(140, 140 + len(q))), keys) * spec.scale
    return torch.einsum("thk,khd->thd", scores.softmax(-1), v.cpu()[at].double().repeat_interleave(2, dim=1))


q = torch.randn(2, 4, 64, dtype=torch.bfloat16, device=device)
batch = lazyrope.Batch(pages, capacity=lazyrope.StepCapacity(requests=1, segments=2, query_tokens=2))
step = None
for order in ("AB", "BA"):
    base, segments = 0, []
    for name in order:
        segments.append(lazyrope.Segment(documents[name], base))
        base += documents[name].num_tokens
    batch.fill([lazyrope.Request(range(140, 142), segments)])
    if step is None:
        step = kernel.plan(batch)
    else:
        step.update(batch)
    out, _ = kernel(q, k_pool, v_pool, step)
    exact = recomputed(q, order)
    error = float((out.cpu().double() - exact).norm() / exact.norm())
    print(f"order {order}: equals recomputed attention, relative error {error:.1e}")
    assert error < 1e-2
