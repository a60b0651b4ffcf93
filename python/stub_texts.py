"""Writes the docstrings and signatures of the stubs (lazyrope/*.pyi) as C++ tables, for stub_texts.cpp.

python stub_texts.py OUT.inc STUB.pyi...
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

LINE = "{{{name}, {signature}, {text}, {{{overloads}}}}},\n"
PLAIN = ("int", "float", "bool", "str", "None")
ADDRESSES = ("stream", "seed")  # the integers of 64 bits


def plain_arguments(arguments: ast.arguments) -> str:
    """Returns the arguments without types, as ``inspect`` reads them in ``__text_signature__``."""
    for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs:
        argument.annotation = None
    return ast.unparse(arguments)


def type_names(annotation: ast.expr) -> list[str]:
    """Returns the names of the types in a union; "*" is any type."""
    if isinstance(annotation, ast.BinOp):
        return type_names(annotation.left) + type_names(annotation.right)
    text = ast.unparse(annotation)
    if text.startswith("Literal["):
        assert isinstance(annotation, ast.Subscript)
        members = getattr(annotation.slice, "elts", [annotation.slice])
        return list(dict.fromkeys(type(ast.literal_eval(member)).__name__ for member in members))
    return [text if text in PLAIN or text.isidentifier() else "*"]


def rule(argument: ast.arg, is_required: bool) -> str:
    """Returns an argument's name and types for argument_checks.cpp: "spec!=AttentionSpec", "arch=str|None"."""
    assert argument.annotation is not None
    names = ["address" if n == "int" and argument.arg in ADDRESSES else n for n in type_names(argument.annotation)]
    return f"{argument.arg}{'!' if is_required else ''}={'|'.join(names)}"


def overload_entry(node: ast.FunctionDef) -> str:
    """Returns a function's arguments without self: as the stub has them, and as argument_checks.cpp reads them."""
    a = node.args
    if a.args and a.args[0].arg == "self":
        del a.args[0]
    missing = len(a.args) - len(a.defaults)
    rules = [rule(argument, i < missing) for i, argument in enumerate(a.args)]
    rules += ["/"] * bool(a.kwonlyargs)
    rules += [rule(argument, default is None) for argument, default in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    return f"{{{literal(ast.unparse(a))}, {literal(' '.join(rules))}}}"


def is_marked(node: ast.FunctionDef | ast.ClassDef, *marks: str) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id in marks for mark in node.decorator_list)


def text_of(node: ast.FunctionDef | ast.ClassDef) -> str:
    return inspect.cleandoc(ast.get_docstring(node, clean=False) or "")


def literal(text: str) -> str:
    return 'R"text(' + text + ')text"'


def entry(name: str, signature: str, text: str, overloads: Sequence[str] = ()) -> str:
    values = {"name": name, "signature": signature, "text": text}
    return LINE.format(**{key: literal(value) for key, value in values.items()}, overloads=", ".join(overloads))


def function_entry(owner: str, nodes: list[ast.FunctionDef]) -> str:
    """Returns the entry of a function with its overloads. Its text and signature are those of the first one."""
    node = nodes[0]
    if is_marked(node, "property"):
        return entry(owner + node.name, "", text_of(node))
    first = copy.deepcopy(node)
    signature = f"{node.name}({plain_arguments(first.args)})"
    return entry(owner + node.name, signature, text_of(node), [overload_entry(each) for each in nodes])


def class_entries(node: ast.ClassDef) -> Iterator[str]:
    functions = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    named: dict[str, list[ast.FunctionDef]] = {}
    for function in functions:
        named.setdefault(function.name, []).append(function)
    texts = [text_of(node), text_of(named["__init__"][0]) if "__init__" in named else ""]
    yield entry(node.name, "", "\n\n".join(filter(None, texts)))
    for name, overloads in named.items():
        if text_of(overloads[0]) or name == "__init__" or not name.startswith("_"):
            yield function_entry(node.name + ".", overloads)


def entries(stub: str) -> Iterator[str]:
    for node in ast.parse(stub).body:
        if isinstance(node, ast.FunctionDef):
            yield function_entry("", [node])
        elif isinstance(node, ast.ClassDef) and not is_marked(node, "type_check_only"):
            yield from class_entries(node)


if __name__ == "__main__":
    out, *stubs = map(Path, sys.argv[1:])
    out.write_text("".join(line for stub in stubs for line in entries(stub.read_text())))
