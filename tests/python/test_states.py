"""Attention to memories of attention states, beside documents and own tokens, equals that of fp64."""

from __future__ import annotations

import math
from dataclasses import replace

import lazyrope
import pytest
import torch
from lazyrope import eager

from tests.support.cases import Case, Setting, documents_case, random_case
from tests.support.metadata import step_arguments
from tests.support.states import CELL_ENTRY, KEY_PER_HEAD, Entries, check_states, with_memories

SETTINGS = {
    "plain": Setting(head_dim=64, states=True),
    "long head_dim": Setting(head_dim=128, states=True, layout="HND", page_size=32, dtype="float16"),
    "scores": Setting(head_dim=80, states=True, scores="softcap and sinks", rope="gptj", group=3),
    "rotated queries": Setting(head_dim=64, states=True, query_form="rotated", rope="yarn", group=8),
    "fp8": Setting(head_dim=64, states=True, kv_dtype="float8_e4m3fn", page_size=48),
    "full": Setting(head_dim=64, states=True, mask="full", scores="temperature", group=1, kv_heads=3),
}
HOPPER = {name: SETTINGS[name] for name in ("plain", "long head_dim", "full")}
PHASES = ("decode", "chunk", "mixed")


def one_memory(setting: Setting, lengths: list[int], tokens: int, device: str, code: int = 1) -> Case:
    """Returns a request whose first document is a memory. All documents are at base 0, before the queries."""
    case = with_memories(documents_case(setting, lengths, tokens, device), 1, share=0.0)
    request = case.requests[0]
    memory = request.slices[0]
    lse = torch.randn((memory.length, setting.kv_heads), generator=torch.Generator().manual_seed(1)).to(device)
    page = case.metadata["pages"].long()[memory.document.first_page :]
    slot = torch.arange(memory.length, device=device)
    case.call_arguments["entry_lse"][page[slot // setting.page_size], :, slot % setting.page_size] = lse
    case.metadata["memory"][0] = code
    slices = [replace(memory, entries=Entries(code, lse)), *request.slices[1:]]
    return replace(case, requests=[replace(request, slices=slices)])


def call(case: Case, kernel: lazyrope.Attention, **changes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = kernel(case.q, case.k_pool, case.v_pool, case.plan(kernel), **(case.call_arguments | changes))
    return out, lse


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SETTINGS)
def test_random_steps_agree_with_fp64(build, device, name, pytestconfig):
    """The steps mix memories, documents and own tokens; segments of one number are one memory."""
    kernel = build(SETTINGS[name].spec())
    for seed in range(60 if device == "cuda" else 12 if pytestconfig.getoption("soak") else 3):
        case = random_case(replace(SETTINGS[name], phase=PHASES[seed % 3]), seed, device)
        check_states(with_memories(case, seed), kernel)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs its own family; the emulator searches for races")
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", HOPPER)
def test_random_steps_of_hopper_agree_with_fp64_and_have_no_races(name, pytestconfig):
    kernel = lazyrope.compile(HOPPER[name].spec(), arch="emu:sm_90a")
    assert kernel.config.decode.family == "sm90a" and kernel.config.prefill.family == "sm80"
    with lazyrope.emulator.options(races=True):
        for seed in range(12 if pytestconfig.getoption("soak") else 2):
            case = random_case(replace(HOPPER[name], phase=PHASES[seed % 3]), seed, "cpu")
            check_states(with_memories(case, seed), kernel)


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch", [None, "emu:sm_90a"])
def test_the_best_entry_of_all_kv_splits_counts(build, arch):
    """Long memories are cut into KV splits, beside a document and another memory, in decode and in a chunk."""
    if arch is not None and torch.cuda.is_available():
        pytest.skip("the GPU runs its own family")
    setting = SETTINGS["plain"]
    kernel = lazyrope.compile(setting.spec(), arch=arch) if arch else build(setting.spec())
    device = "cuda" if arch is None and torch.cuda.is_available() else "cpu"
    for tokens, share in ((1, 1.0), (1, 0.5), (40, 0.5)):
        case = with_memories(documents_case(setting, [1500, 131, 900, 40], tokens, device), 3, share)
        assert check_states(case, kernel) > 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("splits", ["whole", "split"])
def test_a_row_gets_the_state_and_the_lse_of_one_entry(build, device, tokens, splits):
    """Without other keys the result is the entry's, bit for bit; entries of another head never count.

    The heads of KV head 0 are looked at.
    """
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    entries = 40 if splits == "whole" else 1500
    for code in (1, 2 + KEY_PER_HEAD):
        case = one_memory(setting, [entries], tokens, device, code)
        out, lse = call(case, kernel)
        memory = case.requests[0].slices[0]
        values, lses = memory.document.values[:, 0], memory.entries.lse[:, 0]
        for head in range(setting.group):
            found = (out[:, head, None] == values[None]).all(dim=-1)
            assert bool(found.any(dim=-1).all()), "a row is no entry's state"
            best = found.int().argmax(dim=-1)
            torch.testing.assert_close(lse[:, head], lses[best], atol=1e-5, rtol=1e-5)
            assert code == 1 or bool((best % setting.group == head).all())
        assert check_states(case, kernel) > 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("arch", [None, "emu:sm_90a"])
def test_a_row_gets_the_best_entry_of_the_best_cell(build, device, tokens, arch):
    """The centres decide, also where the best entry of all is in another cell. Cells begin and end inside of runs."""
    if arch is not None and torch.cuda.is_available():
        pytest.skip("the GPU runs its own family")
    setting = replace(SETTINGS["plain"], group=3)
    kernel = lazyrope.compile(setting.spec(), arch=arch) if arch else build(setting.spec())
    for cell, cells, code in ((7, 45, 1), (37, 12, 2 + KEY_PER_HEAD), (200, 3, 4 + KEY_PER_HEAD), (1, 150, 3)):
        case = one_memory(setting, [cells * (cell + 1)], tokens, device, code + CELL_ENTRY * cell)
        out, lse = call(case, kernel)
        memory = case.requests[0].slices[0]
        values, lses = memory.document.values[: cells * cell, 0], memory.entries.lse[:, 0]
        for head in range(setting.group):
            found = (out[:, head, None] == values[None]).all(dim=-1)
            assert bool(found.any(dim=-1).all()), "a row is no entry's state"
            best = found.int().argmax(dim=-1)
            torch.testing.assert_close(lse[:, head], lses[best], atol=1e-5, rtol=1e-5)
            assert code < KEY_PER_HEAD or bool((best // cell % setting.group == head).all())
        assert check_states(case, kernel) > 0


def test_cells_of_several_requests_are_looked_up_in_one_step(build, device):
    """Each request has a segment with cells of its own number in the step; some share the number of a memory."""
    setting = replace(SETTINGS["plain"], kv_heads=2)
    kernel = build(setting.spec())
    for seed in range(2):
        case = documents_case(setting, [96, 60, 31, 210], 3, device)
        assert check_states(with_memories(case, seed, 0.8, numbers=2, cell_share=1.0), kernel) > 0


@pytest.mark.parametrize("make", ["compiled", "plain PyTorch"])
def test_a_centre_of_nan_is_never_the_best(build, device, make):
    setting = SETTINGS["plain"]
    kernel = build(setting.spec()) if make == "compiled" else eager.compile(setting.spec())
    cell, cells = 9, 4
    case = one_memory(setting, [cells * (cell + 1)], 3, device, 1 + CELL_ENTRY * cell)
    page = case.metadata["pages"].long()
    for slot in (cells * cell, 5):  # a centre, and an entry
        case.k_pool[page[slot // setting.page_size], slot % setting.page_size] = torch.nan
    out, lse = call(case, kernel)
    assert bool(out.isfinite().all()) and bool(lse.isfinite().all())
    case.k_pool[page] = torch.nan
    out, lse = call(case, kernel)
    assert bool((out == 0).all()) and bool((lse == -torch.inf).all())


def test_an_entry_without_keys_and_an_empty_memory_count_nothing(build, device):
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    case = one_memory(setting, [40, 30], 3, device)
    nothing = torch.full_like(case.call_arguments["entry_lse"], -torch.inf)
    alone = replace(
        case,
        metadata=case.metadata
        | {
            "segment_indptr": torch.tensor([0, 1], dtype=torch.int32, device=device),
            **{name: case.metadata[name][1:] for name in ("base", "start", "length", "first_page", "lead")},
            "memory": case.metadata["memory"][1:],
        },
    )
    exact = call(alone, kernel)
    for result in (call(case, kernel, entry_lse=nothing), call(shortened(case), kernel)):
        torch.testing.assert_close(result[0].float(), exact[0].float(), atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(result[1], exact[1], atol=1e-3, rtol=1e-3)


def shortened(case: Case) -> Case:
    """Returns the case with a memory of no entries."""
    length = case.metadata["length"].clone()
    length[0] = 0
    return replace(case, metadata=case.metadata | {"length": length})


@pytest.mark.parametrize("make", ["compiled", "plain PyTorch"])
def test_scores_of_nan_are_never_the_best(build, device, make):
    setting = SETTINGS["plain"]
    kernel = build(setting.spec()) if make == "compiled" else eager.compile(setting.spec())
    case = one_memory(setting, [40], 3, device)
    page = case.metadata["pages"].long()[0]
    case.k_pool[page, 5] = torch.nan
    out, lse = call(case, kernel)
    assert not bool(out.isnan().any()) and not bool(lse.isnan().any())


def test_an_updated_step_keeps_nothing_of_its_last_requests(build, device):
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    cases = [
        with_memories(random_case(replace(setting, phase=phase), seed, device), seed)
        for seed, phase in enumerate(("decode", "mixed") * 2)
    ]
    capacity = lazyrope.StepCapacity(requests=8, segments=300, query_tokens=800)
    step = cases[0].plan(kernel, capacity=capacity)
    for case in cases:
        step.update(**step_arguments(case.metadata), check=True)
        check_states(case, kernel, step)


def test_a_batch_names_its_memories(build, device):
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    case = one_memory(setting, [40, 23], 2, device)
    pages = case.metadata["pages"]
    documents = [lazyrope.Document(s.document.first_page, s.document.length) for s in case.requests[0].slices]
    segments = [lazyrope.Segment(documents[0], 0, memory=1), lazyrope.Segment(documents[1], 40)]
    batch = lazyrope.batch([lazyrope.Request(case.requests[0].positions, segments)], pages)
    check_states(case, kernel, kernel.plan(batch, page_size=setting.page_size))


def test_dimensions_of_one_element_have_any_stride(build, device):
    """A tensor of one KV head is contiguous whatever the stride of its heads, as views of PyTorch have it."""
    setting = replace(SETTINGS["plain"], kv_heads=1)
    case = one_memory(setting, [40, 30], 2, device)
    lse = case.call_arguments["entry_lse"]
    strided = lse.as_strided(lse.shape, (setting.page_size, 1, 1))
    kernel = build(setting.spec())
    for given, wanted in zip(call(case, kernel, entry_lse=strided), call(case, kernel), strict=True):
        assert torch.equal(given, wanted)


def test_mistakes_are_refused(build, device):
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    case = one_memory(setting, [40, 30], 2, device)
    step = case.plan(kernel)
    arguments = (case.q, case.k_pool, case.v_pool, step)
    lse = case.call_arguments["entry_lse"]
    with pytest.raises(lazyrope.SpecError, match="the spec has states; give entry_lse="):
        kernel(*arguments)
    for given, why in (
        (lse.double(), "entry_lse .*float64"),
        (lse[0], r"\[pages, kv_heads, page_size\]"),
        (lse[1:], "pages, as k_pool"),
        (lse.transpose(1, 2).contiguous().transpose(1, 2), "it must be contiguous"),
    ):
        with pytest.raises(lazyrope.SpecError, match=why):
            kernel(*arguments, entry_lse=given)
    other = build(replace(setting, states=False).spec())
    with pytest.raises(lazyrope.SpecError, match=r"segments.memory is given; the spec has no attention states"):
        case.plan(other)
    plain = replace(case, metadata={k: v for k, v in case.metadata.items() if k != "memory"})
    with pytest.raises(lazyrope.SpecError, match="entry_lse is given; the spec has no states"):
        other(*arguments[:3], plain.plan(other), entry_lse=lse)
    for memory in (5, -1, KEY_PER_HEAD, CELL_ENTRY, 1 + CELL_ENTRY * 65536):
        wrong = case.metadata["memory"].clone()
        wrong[0] = memory
        with pytest.raises(lazyrope.SpecError, match=f"request 0, segment 0: memory = {memory}; allowed are 0 for"):
            replace(case, metadata=case.metadata | {"memory": wrong}).plan(kernel, check=True)
        segment = lazyrope.Segment(lazyrope.Document(0, 16), 0, memory=memory)
        with pytest.raises(lazyrope.SpecError, match=f"memory = {memory}; allowed are 0 for"):
            lazyrope.batch([lazyrope.Request(0, [segment])], case.metadata["pages"])
    memory = 1 + 7 * CELL_ENTRY
    wrong = case.metadata["memory"].clone()
    wrong[1] = memory
    why = rf"length = 30 with memory = {memory}; a segment with cells of 7 entries .* a multiple of 8 slots"
    with pytest.raises(lazyrope.SpecError, match=f"request 0, segment 1: {why}"):
        replace(case, metadata=case.metadata | {"memory": wrong}).plan(kernel, check=True)
    with pytest.raises(lazyrope.SpecError, match=why):
        segment = lazyrope.Segment(lazyrope.Document(0, 30), 0, memory=memory)
        lazyrope.batch([lazyrope.Request(0, [segment])], case.metadata["pages"])
    with pytest.raises(lazyrope.SpecError, match=why):
        replace(case, metadata=case.metadata | {"memory": wrong}).plan(eager.compile(setting.spec()))
    for part in ({"length": 16}, {"start": 16}):
        segment = lazyrope.Segment(lazyrope.Document(0, 32), 0, memory=memory, **part)
        with pytest.raises(lazyrope.SpecError, match=f"memory = {memory} has cells; it must be the whole document"):
            lazyrope.batch([lazyrope.Request(0, [segment])], case.metadata["pages"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"batch_invariant": True}, "states with batch_invariant; .*choose one of them"),
        ({"mask": "sliding_window"}, 'states with mask = "sliding_window"; .*no window and no chunk'),
        ({"mask": "chunked"}, 'states with mask = "chunked"'),
        ({"key_form": "raw"}, 'states with key_form = "raw"; .*use key_form = "local"'),
        ({"page_mass": True}, "states with page_mass; .*choose one of them"),
        ({"cascade": True}, "states with cascade; .*choose one of them"),
        ({"key_bias": True}, "states with key_bias; the entries of a memory have no bias of keys: choose one of them"),
        ({"packed_prefill": True}, "states with packed_prefill; packing copies tokens, not the entries of a memory"),
    ],
)
def test_specs_that_states_do_not_fit_are_refused(change, why):
    with pytest.raises(lazyrope.SpecError, match=why):
        replace(SETTINGS["plain"], **change).spec()


@pytest.mark.parametrize("name", SETTINGS)
def test_plain_pytorch_looks_up_too(name):
    kernel = eager.compile(SETTINGS[name].spec())
    for seed in range(3):
        case = with_memories(random_case(replace(SETTINGS[name], phase=PHASES[seed]), seed, "cpu"), seed)
        check_states(case, kernel)
    lse = case.call_arguments["entry_lse"]
    for given, why in (
        (None, "entry_lse must be given"),
        (lse[1:], r"entry_lse is torch.float32 .*it must be float32"),
    ):
        with pytest.raises(lazyrope.SpecError, match=why):
            call(case, kernel, entry_lse=given)


def test_the_lse_of_a_row_is_the_logaddexp_of_its_parts(build, device):
    """The tokens alone and the memory alone give the parts; the combination is that of the paper."""
    setting = SETTINGS["plain"]
    kernel = build(setting.spec())
    case = one_memory(setting, [300, 90], 2, device)
    parts = []
    for s in range(2):
        columns = {name: case.metadata[name][s : s + 1] for name in ("base", "start", "length", "first_page", "lead")}
        columns["memory"] = case.metadata["memory"][s : s + 1]
        columns["segment_indptr"] = torch.tensor([0, 1], dtype=torch.int32, device=device)
        parts.append(call(replace(case, metadata=case.metadata | columns), kernel))
    out, lse = call(case, kernel)
    (memory, memory_lse), (own, own_lse) = parts
    total = torch.logaddexp(memory_lse, own_lse)
    torch.testing.assert_close(lse, total, atol=1e-3, rtol=1e-3)
    weights = [torch.exp(part - total)[..., None] for part in (memory_lse, own_lse)]
    torch.testing.assert_close(
        out.float(), weights[0] * memory.float() + weights[1] * own.float(), atol=2e-2, rtol=2e-2
    )
    assert math.isfinite(float(lse.sum()))
