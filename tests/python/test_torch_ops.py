"""The operators of lazyrope.torch work with torch.compile, torch.export and fake tensors."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import dataclass

import lazyrope
import lazyrope.torch
import pytest
import torch
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.cases import Case, Setting, random_case
from tests.support.metadata import one_span, step_arguments
from tests.support.states import with_memories

OPS = torch.ops.lazyrope

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch.compile emits it


@dataclass
class Pass:
    """The calls of one pass of a model. New keys are appended to copies of the pools."""

    kernel: lazyrope.Attention
    case: Case
    step: lazyrope.Step
    writes: lazyrope.AppendStep
    k: torch.Tensor
    v: torch.Tensor

    def pools(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.case.k_pool.clone(), self.case.v_pool.clone()

    def expected(self) -> tuple[torch.Tensor, ...]:
        """Returns out, lse and the pools as the kernel's own calls compute them."""
        k_pool, v_pool = self.pools()
        self.kernel.append(self.k, self.v, k_pool, v_pool, self.writes)
        return (
            *self.kernel(self.case.q, k_pool, v_pool, self.step, sinks=self.case.call_arguments.get("sinks")),
            k_pool,
            v_pool,
        )


def make_pass(build, device: str, seed: int = 3, **setting: object) -> Pass:
    """Returns a pass whose new tokens fill every slot of the pool."""
    case = random_case(Setting(phase="decode", **setting), seed, device)
    case = with_memories(case, seed) if case.spec.states else case
    kernel = build(case.spec)
    pages, size, heads, dim = case.k_pool.shape
    tokens = pages * size
    all_pages = torch.arange(pages, dtype=torch.int32, device=device)
    writes = kernel.plan_append(one_span(0, tokens, 0, device), all_pages, capacity=lazyrope.AppendCapacity(tokens))
    k, v = (torch.randn(tokens, heads, dim, dtype=case.q.dtype, device=device) for _ in "kv")
    return Pass(kernel, case, case.plan(kernel), writes, k, v)


@pytest.fixture
def one(build, device) -> Pass:
    return make_pass(build, device)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()


def layer(p: Pass, q, k, v, k_pool, v_pool, step, writes):
    lazyrope.torch.append(p.kernel, k, v, k_pool, v_pool, writes)
    return lazyrope.torch.attend(p.kernel, q, k_pool, v_pool, step, sinks=p.case.call_arguments.get("sinks"))


def run(function, p: Pass, step: lazyrope.Step | None = None) -> tuple[torch.Tensor, ...]:
    k_pool, v_pool = p.pools()
    out, lse = function(p, p.case.q, p.k, p.v, k_pool, v_pool, step or p.step, p.writes)
    return out, lse, k_pool, v_pool


def assert_same(given: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for a, b in zip(given, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("setting", [{}, {"scores": "sinks", "key_bias": True}, {"states": True}], ids=str)
def test_operators_pass_opcheck(build, device, setting):
    """Schemas name the written tensors, fake kernels give the shapes, and functionalisation changes no result."""
    p = make_pass(build, device, **setting)
    q, (k_pool, v_pool) = p.case.q, (pool.nan_to_num() for pool in p.pools())
    handles = p.kernel.handle, p.step.handle
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], device=device)
    named = {name: p.case.call_arguments.get(name) for name in ("sinks", "key_bias", "entry_lse")}
    torch.library.opcheck(OPS.attend.default, (q, k_pool, v_pool, *handles), named)
    torch.library.opcheck(OPS.attend_out.default, (q, k_pool, v_pool, *handles, out, lse), named)
    torch.library.opcheck(OPS.attend_out.default, (q, k_pool, v_pool, *handles, out, None), named)
    torch.library.opcheck(OPS.append.default, (p.k, p.v, k_pool, v_pool, p.kernel.handle, p.writes.handle))


def test_queries_between_other_columns_give_outputs_of_the_declared_strides(one):
    wide = torch.cat([one.case.q, one.case.q], dim=-1)
    q = wide[..., : one.case.q.shape[-1]]
    k_pool, v_pool = (pool.nan_to_num() for pool in one.pools())
    args = q, k_pool, v_pool, one.kernel.handle, one.step.handle
    torch.library.opcheck(OPS.attend.default, args, test_utils="test_faketensor")
    swapped = one.case.q.transpose(0, 1).contiguous().transpose(0, 1)
    torch.library.opcheck(OPS.attend.default, (swapped, *args[1:]), test_utils="test_faketensor")


def test_eager_calls_equal_the_kernels(one):
    assert_same(run(layer, one), one.expected())


def test_results_are_written_to_the_given_outputs(one):
    k_pool, v_pool = one.pools()
    expected, expected_lse = one.kernel(one.case.q, k_pool, v_pool, one.step)
    out, lse = torch.full_like(one.case.q, torch.nan), torch.full_like(expected_lse, torch.nan)
    given = lazyrope.torch.attend(one.kernel, one.case.q, k_pool, v_pool, one.step, out=out, lse=lse)
    assert given[0] is out and given[1] is lse
    assert_same(given, (expected, expected_lse))
    out.fill_(torch.nan)
    _, none = lazyrope.torch.attend(one.kernel, one.case.q, k_pool, v_pool, one.step, out=out)
    assert none is None and torch.equal(out, expected)
    with pytest.raises(lazyrope.SpecError, match="lse is given and out is not"):
        lazyrope.torch.attend(one.kernel, one.case.q, k_pool, v_pool, one.step, lse=lse)


@pytest.mark.parametrize("scores, backend", [("plain", "aot_eager"), ("sinks", "aot_eager"), ("plain", "inductor")])
def test_a_compiled_layer_has_no_breaks_and_the_same_results(build, device, scores, backend):
    p = make_pass(build, device, scores=scores)
    assert_same(run(torch.compile(layer, fullgraph=True, backend=backend), p), p.expected())
    assert counters["stats"]["unique_graphs"] == 1


def test_pools_that_share_memory_are_written_in_place(one):
    """The pools interleave keys and values page by page."""
    both = torch.stack(one.pools(), dim=1)
    args = one, one.case.q, one.k, one.v, both[:, 0], both[:, 1], one.step, one.writes
    out, lse = torch.compile(layer, fullgraph=True, backend="aot_eager")(*args)
    assert_same((out, lse, both[:, 0], both[:, 1]), one.expected())


def test_a_refilled_step_is_not_recompiled(one):
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    first = run(compiled, one)
    assert_same(first, one.expected())
    one.step.update(**step_arguments(one.case.metadata | {"base": one.case.metadata["base"] - 7}))
    moved = run(compiled, one)
    assert_same(moved, one.expected())
    assert not torch.equal(moved[1], first[1])
    assert counters["stats"]["unique_graphs"] == 1


def test_other_steps_use_the_compiled_code(one):
    """The first step is compiled as a constant; the second recompiles, and further steps use the same code."""
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected = one.expected()
    steps = [one.case.plan(one.kernel) for _ in range(12)]
    for step in steps:
        assert_same(run(compiled, one, step), expected)
    assert counters["stats"]["unique_graphs"] == 2


def test_an_exported_layer_takes_any_number_of_tokens(build, device):
    p, longer = (make_pass(build, device, seed) for seed in (3, 5))
    assert len(p.case.q) != len(longer.case.q)
    step = p.case.plan(p.kernel, capacity=lazyrope.StepCapacity(requests=16, segments=300, query_tokens=64))

    class Layer(torch.nn.Module):
        def forward(self, q, k_pool, v_pool):
            return lazyrope.torch.attend(p.kernel, q, k_pool, v_pool, step)

    q, (k_pool, v_pool) = p.case.q, p.pools()
    rows, pages = torch.export.Dim("rows", min=2), torch.export.Dim("pages", min=2)
    exported = torch.export.export(Layer(), (q, k_pool, v_pool), dynamic_shapes=({0: rows}, {0: pages}, {0: pages}))
    for one in (p, longer):
        step.update(**step_arguments(one.case.metadata))
        k_pool, v_pool = one.pools()
        given = exported.module()(one.case.q, k_pool, v_pool)
        assert_same(given, p.kernel(one.case.q, k_pool, v_pool, step))


def test_a_layer_exported_by_another_process_is_refused(one, monkeypatch, tmp_path):
    """Handles of another process mean other objects here."""

    class Layer(torch.nn.Module):
        def forward(self, q, k_pool, v_pool):
            return lazyrope.torch.attend(one.kernel, q, k_pool, v_pool, one.step)

    given = (one.case.q, *one.pools())
    torch.export.save(torch.export.export(Layer(), given), tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    assert_same(loaded(*given), one.kernel(*given, one.step))
    monkeypatch.setattr("lazyrope._handles._process", 12345 << 32)
    with pytest.raises(lazyrope.SpecError, match="exported by another process"):
        loaded(*given)


def test_fake_tensors_have_the_shapes_of_the_results(one):
    pools = one.pools()
    with FakeTensorMode() as mode:
        q, k, v, k_pool, v_pool = (mode.from_tensor(x) for x in (one.case.q, one.k, one.v, *pools))
        out, lse = layer(one, q, k, v, k_pool, v_pool, one.step, one.writes)
    assert (out.shape, out.dtype, out.device) == (q.shape, q.dtype, q.device)
    assert (lse.shape, lse.dtype, lse.device) == (q.shape[:2], torch.float32, q.device)


def test_handles_are_stable_and_unique(one):
    handles = {one.kernel.handle, one.step.handle, one.writes.handle}
    assert handles == {one.kernel.handle, one.step.handle, one.writes.handle} and len(handles) == 3
    seen = set()
    for _ in range(20):
        handle = one.case.plan(one.kernel).handle
        assert handle not in seen | handles
        seen.add(handle)


def test_a_dead_handle_is_named(one):
    k_pool, v_pool = one.pools()
    dead = one.step.handle
    one.step = None
    gc.collect()
    with pytest.raises(lazyrope.SpecError, match=rf"handle {dead} belongs to no live object; .* a live Step"):
        OPS.attend(one.case.q, k_pool, v_pool, one.kernel.handle, dead)


def test_a_handle_of_another_kind_is_refused(one):
    k_pool, v_pool = one.pools()
    with pytest.raises(lazyrope.SpecError, match="belongs to AppendStep; it must belong to a live Step"):
        OPS.attend(one.case.q, k_pool, v_pool, one.kernel.handle, one.writes.handle)


def test_errors_equal_those_of_the_kernels(one):
    k_pool, v_pool = one.pools()
    with pytest.raises(lazyrope.SpecError, match=r"q is .*float32"):
        lazyrope.torch.attend(one.kernel, one.case.q.float(), k_pool, v_pool, one.step)


@pytest.mark.parametrize("which", ["attend", "append"])
def test_gradients_are_refused(one, which):
    k_pool, v_pool = one.pools()
    q, k = one.case.q.clone().requires_grad_(), one.k.clone().requires_grad_()

    def call() -> object:
        if which == "attend":
            return lazyrope.torch.attend(one.kernel, q, k_pool, v_pool, one.step)
        return lazyrope.torch.append(one.kernel, k, one.v, k_pool, v_pool, one.writes)

    with pytest.raises(lazyrope.SpecError, match=r"no backward: call it under torch\.no_grad\(\)"):
        call()
    for allowed in (torch.no_grad, torch.inference_mode):
        with allowed():
            call()


def test_the_package_does_not_import_torch():
    code = "import sys, lazyrope; assert not {'torch', 'lazyrope.torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fp8_pools_with_scales_can_be_compiled(build, device):
    case = random_case(Setting(phase="decode", kv_dtype="float8_e4m3fn", layout="HND"), 4, device)
    scales = {name: torch.tensor([0.5, 2.0], device=device) for name in ("k_scale", "v_scale")}
    kernel = build(case.spec)
    step = case.plan(kernel)
    expected, expected_lse = kernel(case.q, case.k_pool, case.v_pool, step, **scales)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(q, k_pool, v_pool, scales):
        return lazyrope.torch.attend(kernel, q, k_pool, v_pool, step, **scales)

    out, lse = call(case.q, case.k_pool, case.v_pool, scales)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    k, v = (torch.randn(1, 2, 128, device=device, dtype=torch.bfloat16) for _ in "kv")
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    writes = kernel.plan_append(one_span(0, 1, 0, device), zero, capacity=lazyrope.AppendCapacity(1), layout="HND")
    results = []
    for append in (kernel.append, lambda *a, **b: lazyrope.torch.append(kernel, *a, **b)):
        pools = [p.clone() for p in (case.k_pool, case.v_pool)]
        append(k, v, *pools, writes, **scales)
        results.append([p.view(torch.uint8) for p in pools])
    for ours, same, before in zip(*results, (case.k_pool, case.v_pool), strict=True):
        assert torch.equal(ours, same) and not torch.equal(ours, before.view(torch.uint8))
