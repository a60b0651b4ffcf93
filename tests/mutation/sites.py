"""Finds the calls with which kernels synchronize, by the names of the instruction wrappers, which are PTX's names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.mutation.text import Call, Function, Span, Text, functions

# A wrapper with such a name orders memory or makes threads wait for each other.
SYNCHRONIZES = re.compile(
    r"(?:^|_)(?:bar|barrier|mbarrier|fence|membar|commit_group|wait_group|wait|arrive|griddepcontrol|acq_rel|acquire"
    r"|release)(?:_|$)"
)
# These wrappers access no memory that is written. Memory that ld.global.nc reads must not be written (PTX ISA,
# "ld.global.nc").
REACHES_NO_MEMORY = re.compile(r"^(?:ld_global_nc$|shfl_|vote_|mma_|elect_|setmaxnreg|prefetch|shared_descriptor$)")
# All other wrappers move data.
MOVES_DATA = re.compile(r"^(?:(?:ld|st|atom|red)_(?:shared|global|generic|relaxed)|(?:ld|st)matrix|cp_|wgmma_m)")

# These functions synchronize and do other things as well. Each of their calls is a site.
ALSO_SYNCHRONIZE = {"acquire", "commit", "release", "await_phase", "order_wait", "order_arrive", "signal_issued"}
# The results are the same without these calls. A CTA would take work tiles from others before it has room for them, or
# would load its first queries after its first keys and values.
FOR_SPEED = {
    ("family/sm90a/scheduler_warp.cuh", "work_tiles_.await_phase(work_tile_stage_.index)"),
    ("pipeline/issue_order.cuh", "mbarrier_try_wait_parity(memory_, 0)"),
}

LEVELS = ("kernel/", "planner/", "family/", "pipeline/", "ops/", "tile/")


@dataclass(frozen=True)
class Site:
    """A call in the templates that synchronizes."""

    text: Text
    call: Call
    before: tuple[Span, ...]  # statements of its block, the nearest first; empty unless the call is a statement
    after: tuple[Span, ...]
    is_statement: bool

    @property
    def path(self) -> str:
        return self.text.path

    @property
    def line(self) -> int:
        return self.text.line(self.call.span.begin)

    @property
    def name(self) -> str:
        return " ".join(self.text.of(self.call.span).split())


class Instructions:
    """Tells by name what the functions of the templates do. Functions that share a name count as one."""

    def __init__(self, texts: dict[str, Text]) -> None:
        self.own = _functions(texts, LEVELS)
        self.wrappers = _wrappers(texts)
        self.synchronizing = {name for name in self.wrappers if SYNCHRONIZES.search(name)}
        self.helpers = self._helpers() | ALSO_SYNCHRONIZE
        self.reaching = self.with_callers_of({name for name in self.wrappers if not REACHES_NO_MEMORY.match(name)})

    def unclassified(self) -> set[str]:
        """Returns the wrappers that match none of the rules above."""
        known = (SYNCHRONIZES.search, MOVES_DATA.match, REACHES_NO_MEMORY.match)
        return {name for name in self.wrappers if not any(rule(name) for rule in known)}

    def returns_bool(self, name: str) -> bool:
        every = [*self.own, *self.wrappers.values()]
        return any(f.name == name and re.search(rf"\bbool\s+{name}\s*\(", text.of(f.span)) for text, f in every)

    def with_callers_of(self, names: set[str]) -> set[str]:
        """Returns these names and those of all functions that may call one of them, directly or not."""
        return _closure(names, self.own)

    def _helpers(self) -> set[str]:
        """Returns the functions that do nothing but synchronize."""
        helpers: set[str] = set()
        while True:
            known = self.synchronizing | helpers
            found = {f.name for text, f in self.own if _only_calls(text, f, known)}
            if found <= helpers:
                return helpers
            helpers |= found


def _functions(texts: dict[str, Text], folders: str | tuple[str, ...]) -> list[tuple[Text, Function]]:
    return [(text, f) for path, text in texts.items() if path.startswith(folders) for f in functions(text)]


def _closure(names: set[str], among: list[tuple[Text, Function]]) -> set[str]:
    names = set(names)
    while found := {f.name for text, f in among if f.name not in names and text.uses(f.span) & names}:
        names |= found
    return names


def _wrappers(texts: dict[str, Text]) -> dict[str, tuple[Text, Function]]:
    """Returns the wrappers that call the emulator. All others compute in the thread's registers."""
    emulated = _functions(texts, "isa/emu/")
    asking = {f.name for text, f in emulated if re.search(r"emulator->\w+\(", text.of(f.body))}
    instructions = {f.name for _, f in _functions(texts, "isa/ptx/")}
    names = _closure(asking, emulated) & instructions
    return {f.name: (text, f) for text, f in emulated if f.name in names}


def _only_calls(text: Text, function: Function, names: set[str]) -> bool:
    called = [call for call in text.calls(names) if function.body.begin <= call.span.begin < function.body.end]
    rest = text.of(function.body)
    for call in called:
        rest = rest.replace(text.of(call.span), "")
    return bool(called) and re.sub(r"if\s+constexpr\s*\([^()]*\)|else|[;\s{}]", "", rest) == ""


def sites(texts: dict[str, Text], instructions: Instructions) -> list[Site]:
    """Returns the sites whose mutants can give other results than the program."""
    return [site for site in every_site(texts, instructions) if (site.path, site.name) not in FOR_SPEED]


def every_site(texts: dict[str, Text], instructions: Instructions) -> list[Site]:
    names = instructions.synchronizing | instructions.helpers
    return [
        _site(text, call)
        for path, text in texts.items()
        if path.startswith(LEVELS)
        for call in sorted(text.calls(names), key=lambda call: call.span.begin)
    ]


def _site(text: Text, call: Call) -> Site:
    statements = list(text.statements(text.block_of(call.span.begin)))
    own = next(i for i, s in enumerate(statements) if s.begin <= call.span.begin < s.end)
    ends = text.code[call.span.end : call.span.end + 1] == ";"
    if ends and statements[own].begin == call.span.begin:
        return Site(text, call, tuple(reversed(statements[:own])), tuple(statements[own + 1 :]), True)
    is_branch = ends and text.code[: call.span.begin].rstrip().endswith((")", "else"))
    return Site(text, call, (), (), is_branch)
