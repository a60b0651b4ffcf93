"""Computes the attention mass of pages in fp64, and checks that of kernels."""

from __future__ import annotations

import lazyrope
import torch

from tests.support.cases import Case, Request
from tests.support.checks import GUARD
from tests.support.metadata import capacity_of, step_arguments
from tests.support.tolerance import HALF_ULP

PAGE = 16  # slots of a page whose mass is measured


def masses_of(weights: torch.Tensor, request: Request) -> list[torch.Tensor]:
    """Returns the masses of a request's pages, slice by slice: weights, [tokens, heads, keys], summed over pages."""
    of_keys, masses, at = weights.sum((0, 1)), [], 0
    for s in request.slices:
        before = (s.document.lead + s.start) % PAGE if s.length else 0
        after = -(before + s.length) % PAGE
        own = torch.nn.functional.pad(of_keys[at : at + s.length], (before, after))
        masses.append(own.view(-1, PAGE).sum(1))
        at += s.length
    return masses


def reference(case: Case, mass_tokens: list[int] | None = None) -> torch.Tensor:
    """Returns the masses of all pages of a step, fp64 [pages]."""
    masses = [torch.zeros(0, dtype=torch.float64, device=case.q.device)]
    for i, (weights, request) in enumerate(zip(case.weights(), case.requests, strict=True)):
        counted = len(weights) if mass_tokens is None else min(mass_tokens[i], len(weights))
        masses += masses_of(weights[len(weights) - counted :], request)
    return torch.cat(masses)


def mass_pages(case: Case, mass_tokens: list[int] | None = None) -> int:
    """Returns the capacity that the masses of a step need."""
    pages = [sum(map(len, masses_of(torch.zeros(1, 1, _keys(r)), r))) for r in case.requests]
    tokens = mass_tokens or [len(request.positions) for request in case.requests]
    counted = [min(n, len(request.positions)) for n, request in zip(tokens, case.requests, strict=True)]
    return sum(n * count for n, count in zip(pages, counted, strict=True))


def _keys(request: Request) -> int:
    return sum(s.length for s in request.slices)


def plan(
    case: Case, kernel: lazyrope.Attention, mass_tokens: list[int] | None = None, **capacity: int
) -> lazyrope.Step:
    """Plans a step that has exactly the room that its masses need, and so none for anything else."""
    if mass_tokens is not None:
        case.metadata["mass_tokens"] = torch.tensor(mass_tokens, dtype=torch.int32, device=case.q.device)
    room = {"mass_pages": max(1, mass_pages(case, mass_tokens))} | capacity
    return case.plan(kernel, capacity=capacity_of(case.metadata, **room))


def measure(case: Case, kernel: lazyrope.Attention, step: lazyrope.Step, pages: int, **options: object) -> torch.Tensor:
    """Returns the masses of a call, after checking that it writes them alone."""
    whole = torch.full((pages + 8,), GUARD, dtype=torch.float32, device=case.q.device)
    mass = whole[4:-4]
    mass.fill_(torch.nan)
    kernel(case.q, case.k_pool, case.v_pool, step, page_mass=mass, **case.call_arguments, **options)
    assert bool((whole[:4] == GUARD).all() and (whole[-4:] == GUARD).all()), "elements around the masses changed"
    return mass


def check_masses(
    case: Case, kernel: lazyrope.Attention, step: lazyrope.Step, mass_tokens: list[int] | None = None
) -> torch.Tensor:
    """Compares the masses of two calls with fp64, by relative error. Returns them."""
    exact = reference(case, mass_tokens)
    mass = measure(case, kernel, step, len(exact))
    assert_masses_close(mass, exact, case.q.dtype)
    assert torch.equal(measure(case, kernel, step, len(exact), return_lse=False), mass), "calls of one step differ"
    return mass


def assert_masses_close(mass: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    """Checks each mass by its relative error. That of rounded queries is below 0.4 of half a unit in these steps."""
    assert not bool(mass.isnan().any()), f"{int(mass.isnan().sum())} of {len(mass)} masses are NaN"
    assert bool((mass[exact == 0] == 0).all()), "pages that no query sees have mass"
    error = (mass.double() - exact).abs()
    limit = 2 * HALF_ULP[dtype] * exact + 1e-9 * exact.sum()
    worst = int((error - limit).argmax()) if len(exact) else 0
    assert bool((error <= limit).all()), f"page {worst}: mass {mass[worst].item()} for {exact[worst].item()}"


def updated(case: Case, step: lazyrope.Step) -> lazyrope.Step:
    step.update(**step_arguments(case.metadata))
    return step
