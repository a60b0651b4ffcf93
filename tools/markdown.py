"""Finds the code blocks and links of Markdown texts."""

from __future__ import annotations

import re

MARKED_BLOCK = re.compile(r"^<!-- test: ([\w-]+) -->\n```python[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def marked_examples(text: str) -> dict[str, str]:
    """Returns the Python blocks that have a comment <!-- test: NAME --> directly above them, by name.

    Blocks of one name are joined in their order and make one program.
    """
    programs: dict[str, str] = {}
    for name, block in MARKED_BLOCK.findall(text):
        programs[name] = f"{programs[name]}\n{block}" if name in programs else block
    return programs


def links(text: str) -> list[str]:
    """Returns the targets of links to files. Links to the web and to anchors of the same page are left out."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [link for link in LINK.findall(prose) if "://" not in link]
