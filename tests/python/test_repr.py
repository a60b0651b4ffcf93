"""Each public class has a repr of its own, and the repr of a value evaluates to an equal value."""

from __future__ import annotations

import dataclasses
import inspect

import lazyrope
import pytest
import torch
from lazyrope import (
    AppendCapacity,
    Document,
    Request,
    Segment,
    Segments,
    StepCapacity,
    TokenSlots,
    TokenSpans,
    Tuning,
    TuningTask,
    TuningTrial,
    TuningWorkload,
    eager,
    emulator,
)
from lazyrope import rope as ropes

SPEC = lazyrope.AttentionSpec(head_dim=64, num_q_heads=4, num_kv_heads=2, rope=ropes.llama3())
CONFIG = lazyrope.configs(SPEC, "sm_90a")[0]
TRIAL = TuningTrial("default", CONFIG, (1.5, 2.25), 0.0, 0.01, "")
TASK = TuningTask("decode", (TuningWorkload(64, 1, 4096, 1024),), (TRIAL,), 0)

VALUES = [
    SPEC,
    lazyrope.AttentionSpec(
        head_dim=72,
        num_q_heads=4,
        num_kv_heads=4,
        rope=ropes.yarn(factor=32.0, original_max_position_embeddings=4096),
        dtype="float16",
        mask="sliding_window",
        window=100,
        softcap=30.5,
        scale=0.1,
        sinks=True,
    ),
    lazyrope.AttentionSpec(
        head_dim=64,
        num_q_heads=4,
        num_kv_heads=4,
        rope=ropes.none(),
        mask="chunked",
        chunk=8192,
        temperature=lazyrope.QueryTemperature(beta=0.1, interval=8192, offset=1),
    ),
    lazyrope.QueryTemperature(beta=0.1, interval=8192),
    lazyrope.LayerGroup(SPEC, [0, 2]),
    ropes.none(),
    ropes.longrope(1e6 / 3, factors=[1.0 + i / 7 for i in range(16)], rotary_dim=32),
    ropes.neox(1e6 / 3, rotary_dim=32, attention_factor=1.25),
    CONFIG,
    CONFIG.decode,
    StepCapacity(1, 2, 3),
    AppendCapacity(140),
    Document(3, 40, lead=5),
    Segment(Document(3, 40), base=-7, length=3),
    Request(range(3, 5), (Segment(Document(3, 40), base=0),)),
    TuningWorkload(64, 1, 4096, 1024),
    TRIAL,
    TASK,
    Tuning("head_dim 64", "sm_90a", "H200", 132, "580", "nvrtc 13", "0.1", "2026", CONFIG, (TASK,), 1.5, 2.5, 4.0),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_the_repr_of_a_value_evaluates_to_an_equal(value):
    assert eval(repr(value), vars(lazyrope).copy()) == value


@pytest.fixture(scope="module")
def objects() -> dict[str, object]:
    """Returns one object of each class whose objects are not values."""
    if "emu:sm_80" not in lazyrope.archs():
        pytest.skip("this build has no emulator")
    kernel = lazyrope.compile(SPEC, arch="emu:sm_80")
    ints = [torch.tensor(values, dtype=torch.int32) for values in ([0, 1], [0], [0], [1], [0])]
    spans = TokenSpans(ints[0], ints[1], ints[4])
    writes = kernel.plan_append(spans, ints[1], capacity=AppendCapacity(7))
    batch = lazyrope.batch([Request(3, [Segment(Document(0, 2), 0)])], ints[1])
    with emulator.profile() as profile:
        step = kernel.plan(batch)
    plain = eager.compile(SPEC)
    return {
        "Attention": kernel,
        "CompiledKernel": kernel.kernels["append"],
        "Reposition": lazyrope.compile_reposition(SPEC, arch="emu:sm_80"),
        "Segments": Segments(*ints),
        "TokenSpans": spans,
        "TokenSlots": TokenSlots(ints[0].long(), ints[0].long()),
        "Batch": batch,
        "Step": step,
        "AppendStep": writes,
        "Profile": profile,
        "EagerAttention": plain,
        "EagerReposition": eager.compile_reposition(SPEC),
        "EagerStep": plain.plan(ints[0], ints[1], Segments(*ints), ints[1]),
        "EagerAppendStep": plain.plan_append(spans, ints[1], capacity=AppendCapacity(7)),
    }


TEXTS = {
    "Attention": f"Attention({SPEC}, arch='emu:sm_80', config=",
    "CompiledKernel": "CompiledKernel('append', arch='emu:sm_80', registers=",
    "Reposition": f"Reposition({SPEC}, arch='emu:sm_80')",
    "Segments": "Segments(indptr=tensor(",
    "TokenSpans": "TokenSpans(indptr=tensor(",
    "TokenSlots": "TokenSlots(slot_mapping=tensor(",
    "Batch": "Batch(num_requests=1, num_segments=1, num_tokens=1, capacity=StepCapacity(requests=1, segments=1, ",
    "Step": "Step(num_tokens=1, capacity=StepCapacity(requests=1, segments=1, query_tokens=1, tokens_per_request=1, "
    "rotated_tokens=0, mass_pages=0), page_size=16, layout='NHD', nbytes=",
    "AppendStep": "AppendStep(capacity=AppendCapacity(tokens=7, spans=None), page_size=16, layout='NHD')",
    "Profile": "Profile(",
    "EagerAttention": f"EagerAttention({SPEC})",
    "EagerReposition": f"EagerReposition({SPEC})",
    "EagerStep": "EagerStep(num_tokens=1, page_size=16, layout='NHD')",
    "EagerAppendStep": "EagerAppendStep(capacity=AppendCapacity(tokens=7, spans=None), page_size=16, layout='NHD')",
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_repr_of_an_object_names_its_class_and_fields(name, objects):
    assert repr(objects[name]).startswith(TEXTS[name])


def test_every_public_class_has_a_repr():
    classes = {name for name in lazyrope.__all__ if inspect.isclass(getattr(lazyrope, name))}
    errors = {name for name in classes if issubclass(getattr(lazyrope, name), Exception)}
    assert classes - errors == {type(value).__name__ for value in VALUES} | (set(TEXTS) & classes)


def test_capacities_and_records_are_immutable_values():
    assert StepCapacity(1, 2, 3) == StepCapacity(1, 2, 3) and len({StepCapacity(1, 2, 3), StepCapacity(1, 2, 3)}) == 1
    for value in VALUES:
        if dataclasses.is_dataclass(value):
            name = dataclasses.fields(value)[0].name
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(value, name, 0)
