"""Prepares the stubs for the reference.

griffe expects an implementation after a function's overloads, which a stub does not have. Docstrings name objects by
roles (:class:`Name`), which Markdown does not know.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Class, Extension, Module, Object

ROLE = re.compile(r":(?:class|func|meth|attr|mod|data):`~?([^`]+)`")


class Stubs(Extension):
    def on_package(self, *, pkg: Module, **_: Any) -> None:
        _prepare(pkg)


def _prepare(scope: Object) -> None:
    if scope.docstring is not None:
        scope.docstring.value = ROLE.sub(r"`\1`", scope.docstring.value)
    if not isinstance(scope, Module | Class):
        return
    for name, overloads in scope.overloads.items():
        if overloads and name not in scope.members:
            described = next((f for f in overloads if f.docstring), overloads[0])
            described.overloads = [f for f in overloads if f is not described]
            scope.set_member(name, described)
    for member in list(scope.members.values()):
        if not member.is_alias:
            _prepare(member)
