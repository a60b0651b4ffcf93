"""Calls with a slip, such as a wrong type or a misspelt keyword, raise short errors that name the argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import lazyrope
import lazyrope.torch
import pytest
import torch
from lazyrope import documents, eager, emulator, rope

TINY = {"head_dim": 64, "num_q_heads": 4, "num_kv_heads": 2}
SPEC = lazyrope.AttentionSpec(**TINY, rope=rope.neox())
CONFIG = lazyrope.configs(SPEC, "sm_90a")[0]
ARCH = "emu:sm_80"
MAX_LENGTH = 600


def spec(**changes: Any) -> lazyrope.AttentionSpec:
    return lazyrope.AttentionSpec(**TINY | {"rope": rope.neox()} | changes)


def error_of(call: Callable[[], object], kind: type[Exception] = TypeError) -> str:
    with pytest.raises(kind) as raised:
        call()
    assert type(raised.value) is kind
    text = str(raised.value)
    assert len(text) <= MAX_LENGTH and "\n" not in text
    return text


A_ROPE = "it must be a lazyrope.Rope"

SLIPS: dict[str, tuple[Callable[[], object], str]] = {
    "float": (lambda: spec(head_dim=64.0), "head_dim is 64.0 (float); it must be an int"),
    "variant": (lambda: spec(rope="neox"), f"rope is 'neox' (str); {A_ROPE}: write lazyrope.rope.neox()"),
    "near variant": (lambda: spec(rope="lama3"), f"rope is 'lama3' (str); {A_ROPE}: write lazyrope.rope.llama3()"),
    "function": (
        lambda: spec(rope=rope.neox),
        f"rope is the function lazyrope.rope.neox; {A_ROPE}: write lazyrope.rope.neox()",
    ),
    "no variant": (lambda: spec(rope=10000.0), f"rope is 10000.0 (float); {A_ROPE}: call a function of lazyrope.rope"),
    "keyword": (
        lambda: spec(heads_dim=64),
        "AttentionSpec() has no argument 'heads_dim'; did you mean 'head_dim'?",
    ),
    "positional": (
        lambda: lazyrope.AttentionSpec(64, 4, 2, rope.neox()),
        "AttentionSpec() takes no argument by position, and 4 are given; give the others by name: head_dim=, "
        "num_q_heads=, num_kv_heads=, rope=, dtype=, mask=, query_form=, key_form=, append_form=, scale=, window=, "
        "chunk=, softcap=, sinks=, kv_dtype=, batch_invariant=, temperature=, cascade=, page_mass=, key_bias=, "
        "packed_prefill=, states= and compute=",
    ),
    "missing": (lambda: lazyrope.AttentionSpec(**TINY), "AttentionSpec() lacks rope"),
    "mask": (lambda: spec(mask=3), 'mask is 3 (int); it must be "causal", "full", "sliding_window" or "chunked"'),
    "bool": (lambda: spec(sinks="yes"), "sinks is 'yes' (str); it must be True or False"),
    "scale": (lambda: spec(scale="0.1"), "scale is '0.1' (str); it must be a number or None"),
    "none": (lambda: spec(num_kv_heads=None), "num_kv_heads is None; it must be an int"),
    "tensor": (
        lambda: spec(head_dim=torch.zeros(3, 4)),
        "head_dim is a torch.Tensor of shape [3, 4], torch.float32; it must be an int",
    ),
    "long": (lambda: spec(mask=[*range(10**6)]), "mask is [0, 1, 2, 3, 4, 5, ...] (list); it must be "),
    "parameters": (
        lambda: lazyrope.Rope("neox", None, {"theta": "1e4"}),
        "Rope() does not take ('neox' (str), None, {'theta': '1e4'} (dict)); it takes (variant: str, rotary_dim: ",
    ),
    "from_hf": (
        lambda: lazyrope.AttentionSpec.from_hf("config.json", torch.float16),
        "AttentionSpec.from_hf() takes 1 argument by position, and 2 are given; give the others by name: dtype=, "
        "query_form=, layer=, kv_dtype=, batch_invariant=, tensor_parallel=, "
        "max_model_len=, key_form=, cascade=, page_mass=, key_bias=, packed_prefill=, states= and compute=",
    ),
    "compile": (lambda: lazyrope.compile("llama"), "spec is 'llama' (str); it must be a lazyrope.AttentionSpec"),
    "arch": (lambda: lazyrope.compile(SPEC, 90), "arch is 90 (int); it must be a str or None"),
    "config": (
        lambda: lazyrope.compile(SPEC, "sm_90a", config=CONFIG.decode),
        "config is a lazyrope.TileConfig; it must be a lazyrope.KernelConfig or None",
    ),
    "tile": (lambda: lazyrope.KernelConfig(decode=3, prefill=CONFIG.prefill), "decode is 3 (int); it must be "),
    "twice": (
        lambda: lazyrope.compile(SPEC, "sm_90a", arch="sm_90a"),
        "compile() gets arch twice: by position and by name",
    ),
    "compile keyword": (
        lambda: lazyrope.compile(SPEC, "sm_90a", timout=3),
        "compile() has no argument 'timout'; did you mean 'timeout'?",
    ),
    "theta": (lambda: rope.neox("1e4"), "theta is '1e4' (str); it must be a number"),
    "rope keyword": (lambda: rope.llama3(tetha=5e5), "llama3() has no argument 'tetha'; did you mean 'theta'?"),
    "rope missing": (lambda: rope.yarn(factor=4.0), "yarn() lacks original_max_position_embeddings"),
    "layers": (
        lambda: documents.DocumentStore(SPEC, num_layers="2", budget="1M"),
        "num_layers is '2' (str); it must be an int",
    ),
    "budget": (
        lambda: documents.DocumentStore(SPEC, num_layers=2, budget=1e9),
        "budget is 1000000000.0 (float); it must be an int or a str",
    ),
    "seed": (lambda: emulator.options(seed="x"), "seed is 'x' (str); it must be an int or None"),
    "eager": (lambda: eager.compile("llama"), "spec is 'llama' (str); it must be a lazyrope.AttentionSpec"),
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_gets_a_short_error(name):
    call, text = SLIPS[name]
    assert error_of(call).startswith(text)


@pytest.fixture(scope="module")
def things() -> dict[str, Any]:
    """Returns kernels of the emulator and of plain PyTorch, with a step of each, a batch, and tensors for them."""
    if ARCH not in lazyrope.archs():
        pytest.skip("this build has no emulator")
    ints = {name: torch.tensor(values, dtype=torch.int32) for name, values in {"indptr": [0, 1], "zero": [0]}.items()}
    pages, one = ints["zero"], ints["zero"] + 1
    segments = lazyrope.Segments(ints["indptr"], pages, pages, one, pages)
    found: dict[str, Any] = {"pages": pages, "indptr": ints["indptr"], "segments": segments}
    found["spans"] = lazyrope.TokenSpans(ints["indptr"], pages, pages)
    found["batch"] = lazyrope.batch([lazyrope.Request(0, [])], pages)
    for name, kernel in (("kernel", lazyrope.compile(SPEC, ARCH)), ("plain", eager.compile(SPEC))):
        found[name] = kernel
        found[f"{name} step"] = kernel.plan(ints["indptr"], pages, segments, pages)
        writes = kernel.plan_append(found["spans"], pages, capacity=lazyrope.AppendCapacity(1))
        found[f"{name} writes"] = writes
    found["q"] = torch.zeros(1, 4, 64, dtype=torch.bfloat16)
    found["k"] = torch.zeros(1, 2, 64, dtype=torch.bfloat16)
    found["pool"] = torch.zeros(1, 16, 2, 64, dtype=torch.bfloat16)
    return found


# The slips that the kernels of lazyrope.compile and of lazyrope.eager.compile share, with a part of the message.
CALLS: dict[str, tuple[Callable[..., object], str]] = {
    "plan, page_size": (lambda t, kernel, _: kernel.plan(t["batch"], page_size="16"), "page_size is '16' (str)"),
    "plan, layout": (lambda t, kernel, _: kernel.plan(t["batch"], layout=3), 'layout is 3 (int); it must be "NHD"'),
    "plan, list": (lambda t, kernel, _: kernel.plan([lazyrope.Request(0, [])]), "lazyrope.Batch"),
    "plan, keyword": (
        lambda t, kernel, _: kernel.plan(t["indptr"], t["pages"], t["segments"], page=t["pages"]),
        "did you mean 'pages'?",
    ),
    "plan, segments": (
        lambda t, kernel, _: kernel.plan(t["indptr"], t["pages"], [t["pages"]], t["pages"]),
        "; it must be a lazyrope.Segments",
    ),
    "plan, nothing": (lambda t, kernel, _: kernel.plan(), "q_indptr, q_position, segments and pages"),
    "step, check": (lambda t, kernel, step: step.update(t["batch"], check="yes"), "check is 'yes' (str)"),
    "call, step": (
        lambda t, kernel, _: kernel(t["q"], t["pool"], t["pool"], t["pool"]),
        "step is a torch.Tensor of shape [1, 16, 2, 64], torch.bfloat16; it must be a",
    ),
    "call, no step": (lambda t, kernel, _: kernel(t["q"], t["pool"], t["pool"]), "__call__() lacks step"),
    "call, list": (lambda t, kernel, step: kernel([1], t["pool"], t["pool"], step), "q is "),
    "call, keyword": (
        lambda t, kernel, step: kernel(t["q"], t["pool"], t["pool"], step, outt=t["q"]),
        "has no argument 'outt'; did you mean 'out'?",
    ),
    "append, step": (lambda t, kernel, step: kernel.append(t["k"], t["k"], t["pool"], t["pool"], step), "step is a "),
    "plan_append, capacity": (lambda t, kernel, _: kernel.plan_append(t["spans"], t["pages"], capacity=8), "capacity "),
    "plan_append, no capacity": (lambda t, kernel, _: kernel.plan_append(t["spans"], t["pages"]), "lacks capacity"),
    "plan_append, segments": (
        lambda t, kernel, _: kernel.plan_append([3], t["pages"], capacity=lazyrope.AppendCapacity(1)),
        "; it must be a lazyrope.TokenSpans",
    ),
}


@pytest.mark.parametrize("which", ["kernel", "plain"])
@pytest.mark.parametrize("name", CALLS)
def test_a_slip_in_a_call_of_a_kernel_gets_a_short_error(name, which, things):
    call, text = CALLS[name]
    with pytest.raises((TypeError, lazyrope.SpecError)) as raised:
        call(things, things[which], things[f"{which} step"])
    message = str(raised.value)
    assert text in message and "tensor(" not in message
    assert len(message) <= MAX_LENGTH and "\n" not in message


def test_slips_in_operators_of_torch_get_short_errors(things):
    q, pool, step = things["q"], things["pool"], things["kernel step"]
    attend = lazyrope.torch.attend
    text = error_of(lambda: attend(things["plain"], q, pool, pool, step))
    assert text == "kernel is a lazyrope.eager.EagerAttention; it must be a lazyrope.Attention"
    text = error_of(lambda: attend(things["kernel"], q, pool, pool, things["kernel writes"]))
    assert text == "step is a lazyrope.AppendStep; it must be a lazyrope.Step"
    text = error_of(lambda: attend(things["kernel"], [1], pool, pool, step))
    assert text == "q is [1] (list); it must be a torch.Tensor"


class Loud:
    """An object that must not be shown."""

    def __repr__(self) -> str:
        raise AssertionError("the repr of an argument was taken")


class LoudArray(Loud):
    shape, dtype = (2, 3), "float32"


def test_no_repr_of_an_object_is_taken(things):
    name = f"{__name__}.Loud"
    assert error_of(lambda: lazyrope.compile(Loud())) == f"spec is a {name}; it must be a lazyrope.AttentionSpec"
    text = error_of(lambda: lazyrope.compile([Loud()]))
    assert text == f"spec is [<{name}>] (list); it must be a lazyrope.AttentionSpec"
    text = error_of(lambda: things["kernel"](LoudArray(), LoudArray(), LoudArray(), LoudArray()))
    assert text == f"step is a {name}Array of shape [2, 3], float32; it must be a lazyrope.Step"


def functions_of(space: ModuleType | type, prefix: str) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yields the public functions of a module and of its classes, with a call for the class's constructor."""
    names = getattr(space, "__all__", None) or [name for name in vars(space) if not name.startswith("_")]
    for name in names:
        item = getattr(space, name)
        if isinstance(item, type):
            if not issubclass(item, Exception) and item.__init__ is not object.__init__:
                yield prefix + name, item
            yield from functions_of(item, f"{prefix}{name}.")
        elif callable(item):
            yield prefix + name, item


PUBLIC = {
    name: function
    for module in (lazyrope, rope, eager, documents, emulator, lazyrope.torch)
    for name, function in functions_of(module, f"{module.__name__}.")
}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_callable_names_an_unknown_keyword(name):
    """The error is of one line, whatever else the call lacks."""
    with pytest.raises(TypeError) as raised:
        PUBLIC[name](no_such_argument=0)
    text = str(raised.value)
    assert "\n" not in text and len(text) <= MAX_LENGTH
    parts = ("no_such_argument", "takes no keyword arguments", "missing", "lacks", "No constructor defined")
    assert any(part in text for part in parts)


def test_integers_and_truths_of_numpy_are_taken(things):
    numpy = pytest.importorskip("numpy")
    for integer in (numpy.int32, numpy.int64, numpy.uint8, torch.tensor):
        given = spec(head_dim=integer(64), num_kv_heads=integer(2), sinks=numpy.bool_(True), scale=numpy.float32(0.5))
        assert given == spec(sinks=True, scale=0.5)
        assert things["kernel"].plan(things["batch"], page_size=integer(16)).page_size == 16
    assert rope.neox(numpy.float64(1e6), rotary_dim=numpy.int64(32)) == rope.neox(1e6, rotary_dim=32)
    error_of(lambda: spec(head_dim=numpy.float32(64)))
    store = documents.DocumentStore(SPEC, num_layers=numpy.int64(1), budget=numpy.int64(1 << 20), device="cpu")
    assert store.budget == 1 << 20


def test_integers_have_32_bits_and_streams_64(things):
    text = error_of(lambda: spec(head_dim=1 << 40), lazyrope.SpecError)
    assert text == "head_dim = 1099511627776; it must be an int of 32 bits"
    step = things["kernel step"]
    step.update(things["batch"], stream=0)
    for stream in (-1, 1 << 64):
        text = error_of(lambda stream=stream: step.update(things["batch"], stream=stream), lazyrope.SpecError)
        assert text.startswith(f"stream = {stream}; it must be an int of 64 bits")
