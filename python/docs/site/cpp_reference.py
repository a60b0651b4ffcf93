"""The reference of the C++ interface, from the public headers: each declaration with the comment above it.

python python/docs/site/cpp_reference.py    prints the page
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FIRST = "runtime/lazyrope.h"
# Headers that the public one needs indirectly, with declarations that a caller uses. Others are details.
ALSO = ("tensor.h", "kernel_spec.h", "rope.h", "mask.h")


@dataclass
class Declaration:
    comment: str
    text: str

    @property
    def name(self) -> str:
        head = re.sub(r"\[\[\w+\]\] *", "", self.text.split("{")[0])
        if match := re.match(r"(?:enum class|class|struct|using) (\w+)", head):
            return match[1]
        if match := re.search(r"(\w+)\(", head):
            return match[1]
        return head.split("=")[0].split()[-1]

    @property
    def is_forward(self) -> bool:
        return re.fullmatch(r"(class|struct) \w+;( *//.*)?", self.text.strip()) is not None


def page(root: Path) -> str:
    parts = []
    for header in _headers(root):
        found = [d for d in declarations((root / header).read_text()) if not d.is_forward]
        if not found:
            continue
        parts.append(f"## {header}")
        before = ""
        for declaration in found:
            if declaration.name != before:
                parts.append(f"### {declaration.name}")
            before = declaration.name
            if declaration.comment:
                parts.append(declaration.comment)
            parts.append(f"```cpp\n{declaration.text.rstrip()}\n```")
    return "\n\n".join(parts)


def declarations(text: str) -> list[Declaration]:
    """Returns the declarations of a header in namespace lazyrope, in order, each with the comment right above it."""
    body = text.split("namespace lazyrope {", 1)[-1].rsplit("}  // namespace lazyrope", 1)[0]
    found: list[Declaration] = []
    comment: list[str] = []
    lines: list[str] = []
    for line in body.splitlines():
        if not lines and (not line.strip() or line.startswith("#")):
            comment = []
        elif not lines and line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
        else:
            lines.append(line)
            if _is_complete(lines):
                public = re.sub(r"\n+ private:\n.*(?=\n};)", "", "\n".join(lines), flags=re.DOTALL)
                found.append(Declaration(_prose(comment), public))
                comment, lines = [], []
    return found


def _is_complete(lines: list[str]) -> bool:
    code = re.sub(r"//.*", "", "\n".join(lines))
    if code.count("{") != code.count("}") or code.count("(") != code.count(")"):
        return False
    return code.rstrip().endswith((";", "}"))


def _prose(comment: list[str]) -> str:
    """Returns the comment as Markdown. Outside code, characters of HTML and emphasis are escaped."""
    parts = " ".join(comment).split("`")
    parts[::2] = [re.sub(r"([<>*])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _headers(root: Path) -> list[str]:
    """The public header, those that it includes, and those of the others that a caller needs."""
    direct = _includes(root / FIRST)
    seen, waiting = {FIRST, *direct}, list(direct)
    also = []
    while waiting:
        for header in _includes(root / waiting.pop()):
            if header not in seen:
                seen.add(header)
                waiting.append(header)
                if Path(header).name in ALSO:
                    also.append(header)
    return [FIRST, *direct, *sorted(also)]


def _includes(file: Path) -> list[str]:
    return re.findall(r'^#include "([^"]+)"', file.read_text(), flags=re.MULTILINE)


if __name__ == "__main__":
    print(page(Path(__file__).resolve().parents[3]))
