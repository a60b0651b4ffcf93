"""Runs small steps for compute-sanitizer. The steps cover each kernel, phase, head_dim and query form,
and steps with a cascade.

Results are compared on the CPU, because the sanitizer's race check fails inside some kernels of cuBLAS, which eager
attention on the GPU would launch.
"""

from __future__ import annotations

import lazyrope
import torch

from tests.support import eager
from tests.support.cases import DTYPES, Case, Setting, random_case
from tests.support.metadata import capacity_of, one_span
from tests.support.shared_steps import always_shares, shared_case
from tests.support.tolerance import assert_close

SETTINGS = [
    Setting(head_dim=head_dim, phase=phase, layout=layout, query_form=form, group=group, rope=rope)
    for head_dim, phase, layout, form, group, rope in (
        (128, "decode", "NHD", "raw", 4, "neox"),
        (128, "mixed", "HND", "rotated", 7, "llama3"),
        (128, "prefill", "HND", "raw", 4, "llama3"),
        (64, "prefill", "NHD", "raw", 3, "llama3"),
        (64, "chunk", "HND", "rotated", 16, "none"),
        (256, "prefill", "NHD", "raw", 1, "neox"),
        (192, "chunk", "HND", "raw", 4, "gptj"),
    )
]
SETTINGS.append(Setting(phase="mixed", key_form="raw"))
# In each of these steps, requests of one or of a few query tokens share segments.
SHARED = [
    (Setting(cascade=True), 2),
    (Setting(head_dim=64, cascade=True, query_form="rotated", group=7), 3),
    (Setting(head_dim=64, cascade=True, kv_dtype="float8_e4m3fn", layout="HND"), 4),
]


def attend(case: Case, on_host: Case, kernel: lazyrope.Attention) -> None:
    """Runs the step, and compares its result with the same case in the host's memory."""
    # Kernels for raw keys rotate them into scratch on Hopper. The others ignore its size.
    step = case.plan(kernel, capacity=capacity_of(case.metadata, rotated_tokens=16 * 1024))
    out, _ = kernel(case.q, case.k_pool, case.v_pool, step, **case.call_arguments)
    assert_close(out.cpu(), on_host.reference()[0], eager.attention(on_host))


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def append_and_reposition(setting: Setting, kernel: lazyrope.Attention) -> None:
    dtype = DTYPES[setting.dtype]
    k, v = (torch.randn((9, 2, setting.head_dim), device="cuda").to(dtype) for _ in range(2))
    options = {"capacity": lazyrope.AppendCapacity(9), "layout": setting.layout}
    writes = kernel.plan_append(one_span(5, 9, 3, "cuda"), ints(1, 0), **options)
    shape = (2, 16, 2, setting.head_dim) if setting.layout == "NHD" else (2, 2, 16, setting.head_dim)
    pools = [torch.zeros(shape, dtype=dtype, device="cuda") for _ in range(2)]
    kernel.append(k, v, *pools, writes)
    copies = kernel.plan_append(one_span(80, 9, 5, "cuda"), ints(0), **options)
    lazyrope.compile_reposition(kernel.spec)(*pools, writes, copies, check=True)


def main() -> None:
    for seed, setting in enumerate(SETTINGS):
        case = random_case(setting, seed, "cuda")
        kernel = lazyrope.compile(case.spec)
        attend(case, random_case(setting, seed, "cpu"), kernel)
        append_and_reposition(setting, kernel)
        torch.cuda.synchronize()
        print("ran", setting, flush=True)
    for setting, seed in SHARED:
        spec = setting.spec()
        kernel = lazyrope.compile(spec, config=always_shares(lazyrope.configs(spec)[0]))
        attend(shared_case(setting, seed, "cuda"), shared_case(setting, seed, "cpu"), kernel)
        torch.cuda.synchronize()
        print("ran", setting, flush=True)


if __name__ == "__main__":
    main()
