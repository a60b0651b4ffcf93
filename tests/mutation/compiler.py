"""Inserts the mutants into a kernel's source, then runs the emulator's host compiler.

python compiler.py OVERLAY COMMAND... -o OUT SOURCE
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

MARK = re.compile(r'#line (\d+) "(.*)"')


def with_mutants(source: str, overlay: dict[str, dict[str, str]], declaration: str) -> str:
    """Returns a rendered source with the overlay's lines. #line marks in the source say where its lines come from."""
    lines, path, number = [declaration], "", 0
    for line in source.split("\n"):
        if mark := MARK.fullmatch(line):
            number, path = int(mark[1]) - 1, mark[2]
        lines.append(overlay.get(path, {}).get(str(number), line))
        number += 1
    return "\n".join(lines)


if __name__ == "__main__":
    file = Path(sys.argv[-1])
    overlay = json.loads(Path(sys.argv[1]).read_text())
    file.write_text(with_mutants(file.read_text(), overlay["files"], overlay["declaration"]))
    os.execvp(sys.argv[2], sys.argv[2:])
