"""Hooks that mkdocs calls: they fill in the generated parts, and check that the drawings are current.

A page asks for a generated part by a comment on a line of its own:

    <!-- python: NAME ... -->   mkdocstrings of these names of the package, of those that it exports
    <!-- python: others -->     of all names that no page asks for
    <!-- cpp -->                the public C++ headers
    <!-- command-line -->       the help texts of the lazyrope command, if it is built
"""

from __future__ import annotations

import ast
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SITE = Path(__file__).resolve().parent
DOCS = SITE.parent
ROOT = DOCS.parents[1]
sys.path.insert(0, str(SITE))
import cpp_reference  # noqa: E402
import drawings  # noqa: E402

log = logging.getLogger("mkdocs.hooks.lazyrope")

# Pages that `tools/docs_pages.py` writes from the code and from tests/gpu/results. Without them the site says so.
WRITTEN_BY_SCRIPT = ("reference/environment.md", "reference/supported.md", "results/index.md")
COMMANDS = ("render", "compile", "precompile", "pack", "unpack", "keygen", "autotune", "profile", "cache", "doctor")
CACHE_COMMANDS = ("list", "verify", "prune", "pin", "unpin", "pins", "clear", "path")
MARKER = r"^<!-- {} -->$"


def on_config(config: Any) -> Any:
    for entry in config["nav"]:
        if entry.get("Results") == "results/":
            found = sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("results/*.md"))
            entry["Results"] = ["results/index.md", *(page for page in found if page != "results/index.md")]
    for name, text in drawings.drawings().items():
        file = DOCS / "images" / name
        if not file.is_file() or file.read_text() != text:
            log.warning("images/%s is not what site/drawings.py draws: run it", name)
    return config


def on_files(files: Files, config: Any) -> Files:
    for page in WRITTEN_BY_SCRIPT:
        if files.get_file_from_path(page) is None:
            text = f"# {Path(page).stem}\n\nThis page is written by a script from the code and from recorded results.\n"
            files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    markdown = re.sub(MARKER.format(r"python: (.*?)"), _python, markdown, flags=re.MULTILINE)
    markdown = re.sub(MARKER.format("cpp"), lambda _: cpp_reference.page(ROOT), markdown, flags=re.MULTILINE)
    return re.sub(MARKER.format("command-line"), lambda _: _command_line(), markdown, flags=re.MULTILINE)


def _exported() -> list[str]:
    """The names that the package exports, read from its text: it is not imported."""
    tree = ast.parse((ROOT / "python" / "lazyrope" / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    raise ValueError("lazyrope/__init__.py has no __all__")


def _asked_for() -> set[str]:
    texts = (page.read_text() for page in DOCS.glob("reference/*.md"))
    return {
        name
        for text in texts
        for names in re.findall(r"^<!-- python: (.*?) -->$", text, re.MULTILINE)
        for name in names.split()
    }


def _python(marker: re.Match[str]) -> str:
    exported = _exported()
    names = marker[1].split()
    if names == ["others"]:
        modules = ("emulator", "rope", "errors", "torch", "documents", "transformers", "eager", "__version__")
        names = [name for name in exported if name not in _asked_for() and name not in modules]
        names = [name for name in names if not name.endswith(("Error", "Fault"))]  # on a page of their own
    else:
        for name in names:
            if name not in exported:
                log.info("the package exports no %s: left out", name)
        names = [name for name in names if name in exported]
    return "\n\n".join(f"::: lazyrope.{name}" for name in names)


def _command_line() -> str:
    command = os.environ.get("LAZYROPE_COMMAND") or str(ROOT / "build" / "tools" / "lazyrope")
    if not os.access(command, os.X_OK):
        log.info("%s is not there: the command line's page has no help texts", command)
        return "*This copy of the site was built without the command. `lazyrope NAME --help` prints its help.*"
    sections = [_help(command, [])]
    for name in COMMANDS:
        sections.append(_help(command, [name]))
        if name == "cache":
            sections += [_help(command, [name, sub]) for sub in CACHE_COMMANDS]
    return "\n\n".join(sections)


def _help(command: str, arguments: list[str]) -> str:
    result = subprocess.run([command, *arguments, "--help"], capture_output=True, text=True, check=True, timeout=60)
    depth = "###" if len(arguments) > 1 else "##"
    title = " ".join(["lazyrope", *arguments])
    return f"{depth} {title}\n\n```text\n{result.stdout.strip()}\n```"
