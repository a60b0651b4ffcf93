"""English texts that most machines have: Debian's licences and manual pages, and the docs of Python's standard library.

They are read from the machine, so that this repository has no copy of them.
"""

from __future__ import annotations

import gzip
import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType

LICENCES = Path("/usr/share/common-licenses")
MANUAL = Path("/usr/share/man/man1")
COPYRIGHT = Path("/usr/share/doc")

# Documents are taken in this order. Importing one of these modules has no visible effect.
MODULES = """
    json heapq bisect statistics argparse datetime pathlib itertools functools textwrap decimal fractions random shelve
    struct zlib csv sched queue collections difflib shutil tempfile secrets contextlib dataclasses graphlib string re
    copy pprint enum asyncio math cmath operator glob fnmatch pickle gzip bz2 lzma zipfile tarfile configparser hashlib
    hmac time logging logging.handlers logging.config getpass platform threading multiprocessing concurrent.futures
    subprocess contextvars socket ssl select selectors signal mmap email.message email.policy mailbox mimetypes base64
    binascii html.parser xml.etree.ElementTree xml.dom.minidom xml.sax urllib.request urllib.parse urllib.robotparser
    http.client http.server http.cookies http.cookiejar ftplib poplib imaplib smtplib uuid socketserver xmlrpc.client
    xmlrpc.server ipaddress wave gettext locale cmd shlex typing doctest unittest unittest.mock bdb pdb timeit profile
    pstats trace tracemalloc venv sys sysconfig builtins warnings abc traceback gc inspect site code zipimport pkgutil
    runpy importlib.metadata importlib.resources importlib.abc importlib.util ast symtable tokenize pyclbr py_compile
    compileall pickletools calendar types weakref array zoneinfo filecmp fileinput optparse getopt plistlib unicodedata
    codecs posixpath os io sqlite3 ctypes readline curses turtle tkinter
""".split()


@dataclass(frozen=True)
class Source:
    """A text that is read on demand. Names are such as "GPL-3", "heapq" and "ls(1)"."""

    name: str
    read: Callable[[], str]


@cache
def all_sources() -> dict[str, Source]:
    """Returns the sources of this machine in a fixed order. The first of two with the same name is used."""
    found: dict[str, Source] = {}
    for make in (_licences, _modules, _manual_pages, _copyright_files):
        for source in make():
            found.setdefault(source.name, source)
    return found


@cache
def text_of(name: str) -> str:
    """Returns the text of a source, or "" if this machine lacks it."""
    source = all_sources().get(name)
    return source.read() if source else ""


def _licences() -> Iterator[Source]:
    for file in sorted(LICENCES.glob("*")):
        # GPL is a link to the newest GPL-n.
        if file.is_file() and not file.is_symlink():
            yield Source(file.name, partial(_plain_file, file))


def _modules() -> Iterator[Source]:
    for name in MODULES:
        yield Source(name, partial(_module_text, name))


def _manual_pages() -> Iterator[Source]:
    for file in sorted(MANUAL.glob("*.1.gz")):
        if not file.is_symlink():
            yield Source(f"{file.name[:-5]}(1)", partial(_manual_text, file))


def _copyright_files() -> Iterator[Source]:
    for file in sorted(COPYRIGHT.glob("*/copyright")):
        if file.is_file() and not file.is_symlink() and not file.parent.is_symlink():
            yield Source(f"copyright of {file.parent.name}", partial(_plain_file, file))


def _plain_file(file: Path) -> str:
    return _plain(file.read_bytes())


def _plain(data: bytes) -> str:
    lines = data.decode("utf-8", errors="replace").replace("\f", "\n").splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def _module_text(name: str) -> str:
    """Returns the docstrings of a module and its public names. They have no file paths, unlike pydoc's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about deprecated modules
            module = importlib.import_module(name)
    except ImportError:  # some distributions split the standard library
        return ""
    parts = [f"The module {name}", _own_doc(module)]
    for public in _public_names(module):
        parts += _object_parts(public, getattr(module, public, None))
    return "\n\n".join(part for part in parts if part)


def _public_names(module: ModuleType) -> list[str]:
    return list(getattr(module, "__all__", None) or (name for name in vars(module) if not name.startswith("_")))


def _object_parts(name: str, thing: object) -> Iterator[str]:
    if inspect.ismodule(thing) or not callable(thing):
        return
    yield _entry(name, thing)
    if inspect.isclass(thing):
        for key, member in vars(thing).items():
            if not key.startswith("_") and not inspect.ismodule(member):
                yield _entry(f"{name}.{key}", member)


def _entry(name: str, thing: object) -> str:
    doc = _own_doc(thing)
    return f"{name}{_signature(thing)}\n{doc}" if doc else ""


def _own_doc(thing: object) -> str:
    """Returns the docstring of the thing itself, not one from its type or base class."""
    doc = vars(thing).get("__doc__") if inspect.isclass(thing) else getattr(thing, "__doc__", None)
    if not isinstance(doc, str) or doc == type(thing).__doc__ or doc.startswith("Alias for field number"):
        return ""
    return inspect.cleandoc(doc)


def _signature(thing: object) -> str:
    try:
        signature = str(inspect.signature(thing))  # type: ignore[arg-type]
    except (AttributeError, TypeError, ValueError):  # many C functions have none, or an invalid one
        return ""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", signature)  # addresses differ from run to run


def _manual_text(file: Path) -> str:
    """Returns a manual page without its markup, roughly as man shows it."""
    with gzip.open(file) as stream:
        lines = [_manual_line(line) for line in _plain(stream.read()).splitlines()]
    text = "\n".join(line for line in lines if line is not None)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def _manual_line(line: str) -> str | None:
    """Returns the text of a line, or None if man shows nothing for it."""
    if not line.startswith((".", "'")):
        return _without_escapes(line)
    request, _, rest = line[1:].strip().partition(" ")
    words = _without_escapes(rest).replace('"', "")
    if request in ("SH", "SS", "Sh", "Ss"):
        return f"\n{words}\n"
    if request in ("B", "I", "BR", "IR", "RB", "RI", "BI", "IB", "IP", "Nm", "Nd", "Fl", "Ar", "It"):
        return words
    return "" if request in ("PP", "P", "LP", "TP", "Pp", "sp") else None


def _without_escapes(text: str) -> str:
    text = re.sub(r"\\f(?:\[\w*\]|\(..|.)|\\s[-+]?\d+|\\[&|^/,]|\\\".*", "", text)
    text = text.replace(r"\-", "-").replace(r"\e", "\\").replace(r"\(aq", "'").replace(r"\(cq", "'")
    return re.sub(r"\\\(..|\\\[\w+\]|\\\*(?:\(..|\[\w+\]|.)|\\(.)", lambda match: match[1] or "", text)
