"""python -m tests.mutation [--only TEXT]... [--sample N] [--trial NAME]... [--seeds N]
                            [--templates FOLDER] [--keep]

Removes or weakens each wait, fence and barrier of the templates, one at a time, and runs small steps in the emulator,
which looks for races. Exits with 1 if a mutant survives. Then add a trial or a rule of the emulator that catches the
mutant, or remove the line, which is unnecessary.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutation import table
from tests.mutation.mutants import Mutant, mutants, overlay
from tests.mutation.run import ORIGINAL, Seeds, Verdict, judge, mutants_inside
from tests.mutation.sites import Instructions, sites
from tests.mutation.text import templates

if TYPE_CHECKING:
    from tests.mutation.trials import Trial  # imports lazyrope

SEED = 2606  # draws the mutants of --sample
TEMPLATES = Path(__file__).resolve().parents[2] / "templates"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="mutants whose names have all of these"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="only N of the mutants, the same ones each time")
    parser.add_argument("--trial", action="append", default=[], metavar="NAME", help="the steps to run; all by default")
    parser.add_argument(
        "--seeds", type=int, default=Seeds.mutant, metavar="N", help="thread orders, one of which must catch a mutant"
    )
    parser.add_argument("--templates", type=Path, default=TEMPLATES, help="a copy whose lines may be changed")
    parser.add_argument("--keep", action="store_true", help=f"write {table.FILE.name}")
    options = parser.parse_args()
    begin = time.monotonic()

    texts = templates(options.templates)
    instructions = Instructions(texts)
    found = sites(texts, instructions)
    every = mutants(found, instructions)
    of_number = {m.number: key for key, m in table.keys(every).items()}
    known = table.read() if table.FILE.exists() else {}
    first = {number: known[key].trial for number, key in of_number.items() if key in known}
    verdicts: dict[table.Key, Verdict] = {}

    numbers = [m.number for m in every if all(text in m.name for text in options.only)]
    if options.sample is not None:
        numbers = random.Random(SEED).sample(numbers, min(options.sample, len(numbers)))
    # All trials together take long, so a sample runs only those that the table names for its mutants.
    wanted = options.trial or ([first[n] for n in numbers if n in first] if options.sample else [])

    with mutants_inside(overlay(texts, every, instructions)) as chosen:
        trials = _prepared(wanted)
        by_number = {m.number: m for m in every}

        def report(number: int, verdict: Verdict) -> None:
            if number == ORIGINAL:
                if verdict.caught_by:
                    sys.exit(f"the kernels as they are fail in trial {verdict.trial}: {verdict.text}")
                return
            verdicts[of_number[number]] = verdict
            _say(by_number[number], verdict)

        # A sample runs the unchanged kernels in one thread order.
        seeds = Seeds(original=1 if options.sample else Seeds.original, mutant=options.seeds)
        judge([ORIGINAL, *numbers], trials, first, chosen, report, seeds)

    survived = sum(not verdict.caught_by for verdict in verdicts.values())
    took = time.monotonic() - begin
    print(f"{len(verdicts)} of {len(every)} mutants of {len(found)} sites: {survived} survived; {took:.0f} s")
    if options.keep:
        table.write({key: verdicts[key] for key in of_number.values() if key in verdicts})
    return 1 if survived else 0


def _prepared(names: list[str]) -> list[Trial]:
    """Prepares the trials with these names, or all. The processes that try the mutants inherit the result."""
    import torch

    from tests.mutation.trials import TRIALS

    torch.set_num_threads(1)
    trials = [trial for trial in TRIALS if not names or trial.name in names]
    for trial in trials:
        trial.prepare()
    return trials


def _say(mutant: Mutant, verdict: Verdict) -> None:
    if verdict.caught_by:
        print(f"{mutant.name}: {verdict.caught_by} ({verdict.trial})", flush=True)
    else:
        print(f"{mutant.name}: SURVIVED", flush=True)


if __name__ == "__main__":
    sys.exit(main())
