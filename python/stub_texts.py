"""Writes the docstrings and signatures of the stubs (lazyrope/*.pyi) as a C++ table, for stub_texts.cpp.

python stub_texts.py OUT.inc STUB.pyi...
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

LINE = "{{{name}, {signature}, {text}}},\n"


def plain_arguments(arguments: ast.arguments) -> str:
    """Returns the arguments without types, as ``inspect`` reads them in ``__text_signature__``."""
    for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs:
        argument.annotation = None
    return ast.unparse(arguments)


def is_marked(node: ast.FunctionDef | ast.ClassDef, *marks: str) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id in marks for mark in node.decorator_list)


def text_of(node: ast.FunctionDef | ast.ClassDef) -> str:
    return inspect.cleandoc(ast.get_docstring(node, clean=False) or "")


def literal(text: str) -> str:
    return 'R"text(' + text + ')text"'


def entry(name: str, signature: str, text: str) -> str:
    return LINE.format(name=literal(name), signature=literal(signature), text=literal(text))


def function_entry(owner: str, node: ast.FunctionDef) -> str:
    if is_marked(node, "property"):
        return entry(owner + node.name, "", text_of(node))
    return entry(owner + node.name, f"{node.name}({plain_arguments(node.args)})", text_of(node))


def class_entries(node: ast.ClassDef) -> Iterator[str]:
    functions = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    named = {function.name: function for function in reversed(functions)}  # the first overload of each
    texts = [text_of(node), text_of(named["__init__"]) if "__init__" in named else ""]
    yield entry(node.name, "", "\n\n".join(filter(None, texts)))
    for name, function in named.items():
        if text_of(function) or name == "__init__":
            yield function_entry(node.name + ".", function)


def entries(stub: str) -> Iterator[str]:
    for node in ast.parse(stub).body:
        if isinstance(node, ast.FunctionDef):
            yield function_entry("", node)
        elif isinstance(node, ast.ClassDef) and not is_marked(node, "type_check_only"):
            yield from class_entries(node)


if __name__ == "__main__":
    out, *stubs = map(Path, sys.argv[1:])
    out.write_text("".join(line for stub in stubs for line in entries(stub.read_text())))
