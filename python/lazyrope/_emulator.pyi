"""Describes the emulator, a part of _core.pyi. This module does not exist at run time: use lazyrope.emulator."""

from typing import Any, final

@final
class Profile:
    """Counts of memory accesses. :class:`lazyrope.emulator.Profile` shows them."""

    def __init__(self) -> None: ...
    def lines(self) -> list[dict[str, Any]]:
        """Returns the fields of each :class:`lazyrope.emulator.ProfileLine`, sorted by kernel, file and line."""

    def table(self) -> str:
        """Returns the lines as a text table, sorted by the excess over their ideal, the greatest first."""

def emulator_options() -> dict[str, Any]:
    """Returns the options of this process's launches: "seed", "races", "resident_threads" and "profile".

    A profile of None means that nothing is counted.
    """

def set_emulator_options(*, seed: int, races: bool, resident_threads: int, profile: Profile | None) -> None:
    """Sets the options of this process's launches. The profile must live as long as it is set.

    Raises:
        SpecError: This build has no emulator.
    """
