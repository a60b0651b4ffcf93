"""The part of _core.pyi that is about the emulator. There is no such module at run time: use lazyrope.emulator."""

from typing import Any, final

@final
class Profile:
    """What memory accesses came to; :class:`lazyrope.emulator.Profile` shows it."""

    def __init__(self) -> None: ...
    def lines(self) -> list[dict[str, Any]]:
        """The fields of each :class:`lazyrope.emulator.ProfileLine`, by kernel, file and line."""

    def table(self) -> str:
        """The lines as text, those first that take the most beyond their ideal."""

def emulator_options() -> dict[str, Any]:
    """How launches of this process are run: "seed", "races", "resident_threads" and "profile" (None: nothing is
    counted)."""

def set_emulator_options(*, seed: int, races: bool, resident_threads: int, profile: Profile | None) -> None:
    """How they are run from now on. The profile must live as long as it is set.

    Raises:
        SpecError: this build has no emulator.
    """
