"""Makes mutants of the sites, and templates that contain all of them. A number selects one mutant at run time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tests.mutation.sites import Instructions, Site
from tests.mutation.text import Span, Text

CHOSEN = "lazyrope_mutant"  # an int variable of the process: the number of the active mutant, 0 for none
ORDERS = {"acq_rel": ("acquire", "release", "relaxed"), "acquire": ("relaxed",), "release": ("relaxed",)}
RELAXED_LOAD = "emulator->atom(EmulatedAtomic::kAdd, EmulatedOrder::kRelaxed, const_cast<uint32*>(p), 0, site)"
ORDER_OF = {
    "acquire": "EmulatedOrder::kAcquire",
    "release": "EmulatedOrder::kRelease",
    "relaxed": "EmulatedOrder::kRelaxed",
}
COMMIT = "_commit_group"
# These moves only cost time: a thread commits or releases later, or waits earlier. Results do not depend on the order
# in which warps issue products, or on whether queries are loaded before keys.
SLOWER = {
    "commit": ("later",),
    "release": ("later",),
    "await_phase": ("earlier",),
    "order_wait": ("earlier", "later"),
    "order_arrive": ("earlier", "later"),
    "signal_issued": ("earlier", "later"),
}
JUMP = re.compile(r"\b(?:return|break|continue)\b")


@dataclass(frozen=True)
class Mutant:
    site: Site
    kind: str  # removed, pending + 1, earlier, later, or a weaker order
    number: int = 0
    crosses: Span | None = None  # the statement past which the call moves, if it moves

    @property
    def name(self) -> str:
        return f"{self.site.path}:{self.site.line} {self.site.name}: {self.kind}"


def mutants(sites: Iterable[Site], instructions: Instructions) -> list[Mutant]:
    every = (mutant for site in sites for mutant in _of_site(site, instructions))
    found = [mutant for mutant in every if mutant.kind not in SLOWER.get(mutant.site.call.name, ())]
    return [replace(mutant, number=i) for i, mutant in enumerate(found, start=1)]


def _of_site(site: Site, instructions: Instructions) -> Iterator[Mutant]:
    if site.is_statement or instructions.returns_bool(site.call.name):
        yield Mutant(site, "removed")
    if "wait_group" in site.call.name:
        yield Mutant(site, "pending + 1")
    for order in _weaker(site.call.name):
        yield Mutant(site, order)
    crossed = _first_that_matters(site, site.before, instructions)
    # A move before another site is the same as the other site's move later.
    if crossed is not None and not _is_site(site.text, crossed, instructions):
        yield Mutant(site, "earlier", crosses=crossed)
    crossed = _first_that_matters(site, site.after, instructions)
    # A move past a jump would remove the call.
    if crossed is not None and not JUMP.match(site.text.of(crossed)):
        yield Mutant(site, "later", crosses=crossed)


def _first_that_matters(site: Site, statements: Iterable[Span], instructions: Instructions) -> Span | None:
    """Returns the first statement past which a move can change what the program does.

    A commit concerns the thread's own operations alone. All other calls order accesses to memory that is written. A
    move past a statement without these changes nothing.
    """
    matters = instructions.reaching
    if site.call.name.endswith(COMMIT):
        committed = site.call.name.removesuffix(COMMIT)
        matters = instructions.with_callers_of({name for name in instructions.wrappers if name.startswith(committed)})
    for statement in statements:
        if site.text.uses(statement) & matters or JUMP.search(site.text.of(statement)):
            return statement
    return None


def _is_site(text: Text, statement: Span, instructions: Instructions) -> bool:
    names = instructions.synchronizing | instructions.helpers
    return any(call.span == Span(statement.begin, statement.end - 1) for call in text.calls(names))


def _weaker(name: str) -> tuple[str, ...]:
    """Returns the weaker memory orders of an atomic access. A fence has none: it can only be removed."""
    if not name.startswith(("ld_", "st_", "atom_", "red_")):
        return ()
    return next((weaker for order, weaker in ORDERS.items() if f"_{order}_" in name), ())


def overlay(texts: dict[str, Text], mutants: Iterable[Mutant], instructions: Instructions) -> dict[str, dict[int, str]]:
    """Returns, for each file, the lines of the templates that change when all mutants are inserted."""
    edits: dict[str, list[tuple[Span, str]]] = defaultdict(list)
    of_site: dict[Site, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        of_site[mutant.site].append(mutant)
    for site, own in of_site.items():
        edits[site.path] += _edits(site, own)
    for name, (text, function) in instructions.wrappers.items():
        for order in _weaker(name):
            clone = _weakened(text.of(function.span), name, order)
            edits[text.path].append((Span(function.span.end, function.span.end), clone))
    return {path: _changed_lines(texts[path], own) for path, own in edits.items()}


def _edits(site: Site, mutants: list[Mutant]) -> Iterator[tuple[Span, str]]:
    call = site.text.text[site.call.span.begin : site.call.span.end]
    expression, gone = call, []
    for mutant in mutants:
        chosen = f"{CHOSEN} == {mutant.number}"
        if mutant.crosses is not None:
            at = mutant.crosses.end if mutant.kind == "later" else site.text.before(mutant.crosses.begin)
            yield Span(at, at), f" if ({chosen}) {call};"
        if mutant.crosses is not None or (mutant.kind == "removed" and site.is_statement):
            gone.append(chosen)
        else:
            expression = f"({chosen} ? {_changed(site, mutant.kind, call)} : {expression})"
    if site.is_statement:
        yield Span(site.call.span.begin, site.call.span.end + 1), f"{{ if (!({' || '.join(gone)})) {expression}; }}"
    else:
        yield site.call.span, expression


def _changed(site: Site, kind: str, call: str) -> str:
    if kind == "removed":
        return "true"
    if kind == "pending + 1":
        return re.sub(r"<(.*)>", r"<(\1) + 1>", call, flags=re.DOTALL)
    return call.replace(site.call.name, _weak_name(site.call.name, kind))


def _weak_name(name: str, order: str) -> str:
    return f"mutant_{order}_{name}"


def _weakened(code: str, name: str, order: str) -> str:
    """Returns the wrapper with a weaker order, on one line."""
    weak = re.sub(r"EmulatedOrder::k\w+", ORDER_OF[order], code)
    weak = weak.replace("emulator->ld_acquire(p, site)", RELAXED_LOAD)
    if weak == code:
        raise ValueError(f"{name} gives the emulator no EmulatedOrder that could be a weaker one")
    return " " + " ".join(re.sub(rf"\b{name}\b", _weak_name(name, order), weak).split())


def _changed_lines(text: Text, edits: list[tuple[Span, str]]) -> dict[int, str]:
    result, at = "", 0
    for span, put in sorted(edits, key=lambda edit: (edit[0].begin, edit[0].end)):
        if span.begin < at:
            raise ValueError(f"{text.path}:{text.line(span.begin)}: two mutants change the same text")
        kept_lines = "\n" * text.text.count("\n", span.begin, span.end)
        result += text.text[at : span.begin] + put.replace("\n", " ") + kept_lines
        at = span.end
    result += text.text[at:]
    lines = zip(text.text.split("\n"), result.split("\n"), strict=True)
    return {number: new for number, (old, new) in enumerate(lines, start=1) if old != new}
