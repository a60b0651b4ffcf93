"""Refuses arguments with wrong names and types before the function that they are for sees them.

The extension module calls :func:`refuse` with the signatures of its stubs. Functions in Python are decorated by
:func:`checked`. A message names the argument, what it must be and what was given, and shows no tensor's elements.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin

from .errors import SpecError

P = ParamSpec("P")
Result = TypeVar("Result")

MAX_REPR = 100
ADDRESSES = ("stream", "seed")  # the integers of 64 bits


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str  # the annotation's text
    is_required: bool
    is_keyword_only: bool


@dataclass(frozen=True)
class Signature:
    parameters: tuple[Parameter, ...]
    is_open: bool = False  # True if the function sorts out other arguments itself: it has *args and **kwargs

    @property
    def by_position(self) -> list[Parameter]:
        return [p for p in self.parameters if not p.is_keyword_only]

    @property
    def required_by_position(self) -> list[str]:
        return [p.name for p in self.by_position if p.is_required]


def as_count(name: str, value: Any, least: int) -> int:
    """Returns an integer of any type as an int.

    Raises:
        SpecError: It is no integer, or less than `least`.
    """
    try:
        if not isinstance(value, bool) and (count := operator.index(value)) >= least:
            return count
    except TypeError:
        pass
    raise SpecError(f"{name} = {value!r:.80}; it must be an integer, at least {least}")


def refuse(name: str, signatures: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raises the error of a call of the extension module, if no overload takes the arguments.

    Args:
        name: The function's name, as users write it.
        signatures: The parameters of each overload, as the stub has them.
        given: The arguments by position, without self.
        named: The arguments by name.
    """
    # Other classes are not checked here: the functions take any object with their attributes.
    types = _TypesOfExtension(vars(sys.modules["lazyrope._core"]))
    _refuse(name, [_parsed(signature) for signature in signatures], given, named, types.mismatch)


def refuse_rest(name: str, signatures: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raises an error for arguments that :func:`refuse` lets pass and pybind11 refuses."""
    values = [*map(described, given), *(f"{key}={described(value)}" for key, value in named.items())]
    takes = " or ".join(f"({signature})" for signature in signatures)
    raise TypeError(f"{name}() does not take ({', '.join(values)}); it takes {takes}")


def checked(function: Callable[P, Result]) -> Callable[P, Result]:
    """Checks the names and types of a function's arguments at each call, by its annotations."""
    check: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None

    @functools.wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> Result:
        nonlocal check
        if check is None:
            check = _check_of(function)
        check(given, named)
        return function(*given, **named)

    return call


def _check_of(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:
    """Returns the check of a function's arguments. It raises their error."""
    name = function.__qualname__.removesuffix(".__init__")
    signature = _signature_of(function)
    first = 1 if "self" in inspect.signature(function).parameters else 0
    types = _Types(vars(sys.modules[function.__module__]))
    by_position = [types.exact(p) for p in signature.by_position]
    by_name = {p.name: types.exact(p) for p in signature.parameters}
    required = [(i, p.name) for i, p in enumerate(signature.parameters) if p.is_required]

    def is_certain(given: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Returns True if every argument has exactly a type that is allowed."""
        if len(given) > len(by_position) or any(i >= len(given) and key not in named for i, key in required):
            return False
        for kinds, value in zip(by_position, given, strict=False):
            if kinds is not None and type(value) not in kinds:
                return False
        for key, value in named.items():
            kinds = by_name.get(key, frozenset())
            if kinds is not None and type(value) not in kinds:
                return False
        return True

    def check(given: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = given[first:]
        if not is_certain(given, named):
            _refuse(name, [signature], given, named, types.mismatch)

    return check


def described(value: object) -> str:
    """Returns a value's repr and type, at most some :data:`MAX_REPR` characters. Tensors are described, not shown."""
    kind = type(value)
    if value is None or isinstance(value, bool):
        return repr(value)
    if hasattr(kind, "__dlpack__") or (hasattr(kind, "shape") and hasattr(kind, "dtype")):
        return _described_tensor(value)
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        label = "class" if isinstance(value, type) else "function"
        return f"the {label} {value.__module__}.{value.__qualname__}"
    text = _short(value)
    return f"a {type_name(kind)}" if text.startswith("<") else f"{text} ({type_name(kind)})"


def near(name: object, names: Iterable[str]) -> str | None:
    """Returns the name that is most like the given one, if any is."""
    return next(iter(get_close_matches(str(name), list(names), n=1)), None)


def no_such_argument(function: str, name: str, names: Sequence[str]) -> str:
    """Returns the message for a misspelt keyword."""
    meant = near(name, names)
    hint = f"did you mean {meant!r}?" if meant else f"its arguments are {_listed(names, 'and')}"
    return f"{function}() has no argument {name!r}; {hint}"


@functools.lru_cache(maxsize=256)
def _parsed(signature: str) -> Signature:
    (function,) = ast.parse(f"def f({signature}): ...").body
    assert isinstance(function, ast.FunctionDef)
    a = function.args
    missing = len(a.args) - len(a.defaults)
    rows = [(p, i < missing, False) for i, p in enumerate(a.args)]
    rows += [(p, d is None, True) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    return Signature(tuple(Parameter(p.arg, ast.unparse(p.annotation or ast.Name("Any")), r, k) for p, r, k in rows))


def _signature_of(function: Callable[..., Any]) -> Signature:
    every = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    is_open = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in every)
    plain = [p for p in every if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Signature(
        tuple(
            Parameter(p.name, str(p.annotation), p.default is p.empty, p.kind is p.KEYWORD_ONLY or is_open)
            for p in plain
        ),
        is_open,
    )


Mismatch = Callable[[Parameter, Any], "Exception | None"]


def _refuse(
    name: str, overloads: list[Signature], given: Sequence[Any], named: Mapping[str, Any], mismatch: Mismatch
) -> None:
    found = []
    for signature in overloads:
        errors = _errors(name, signature, given, named, mismatch)
        if not errors:
            return
        found.append((len(errors), errors[0], signature))
    found.sort(key=lambda row: row[0])
    _, error, best = found[0]
    alternatives = [other.required_by_position for _, _, other in found[1:]]
    others = [_listed(names, "and") for names in alternatives if names and names != best.required_by_position]
    raise type(error)("; or give ".join([str(error), *others])) from None


def _errors(
    name: str, signature: Signature, given: Sequence[Any], named: Mapping[str, Any], mismatch: Mismatch
) -> list[Exception]:
    """Returns what is wrong with the arguments, the most important first."""
    by_position, names = signature.by_position, [p.name for p in signature.parameters]
    taken = dict(zip((p.name for p in by_position), given, strict=False))
    errors: list[Exception] = []
    if not signature.is_open:
        errors += [TypeError(no_such_argument(name, key, names)) for key in named if key not in names]
        if len(given) > len(by_position):
            errors.append(TypeError(_too_many(name, signature, len(given))))
    errors += [TypeError(f"{name}() gets {key} twice: by position and by name") for key in named if key in taken]
    values = taken | dict(named)
    missing = [p for p in signature.parameters if p.is_required and p.name not in values]
    if missing and not errors:
        errors += [TypeError(f"{name}() lacks {_listed([p.name for p in missing], 'and')}")] * len(missing)
    errors += [e for p in signature.parameters if p.name in values and (e := mismatch(p, values[p.name]))]
    return errors


def _too_many(name: str, signature: Signature, count: int) -> str:
    most = len(signature.by_position)
    rest = [p.name for p in signature.parameters if p.is_keyword_only]
    takes = f"{most} argument{'s'[: most != 1]} by position" if most else "no argument by position"
    hint = f"; give the others by name: {_listed([f'{key}=' for key in rest], 'and')}" if rest else ""
    return f"{name}() takes {takes}, and {count} are given{hint}"


class _Types:
    """The types that annotations name in a module's namespace."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._known: dict[str, list[Any]] = {}

    def of(self, parameter: Parameter) -> list[Any]:
        """Returns the types that the parameter may have."""
        if parameter.type not in self._known:
            parts = _parts(ast.parse(parameter.type, mode="eval").body)
            self._known[parameter.type] = [_resolved(part, self._namespace) for part in parts]
        return self._known[parameter.type]

    def exact(self, parameter: Parameter) -> frozenset[type] | None:
        """Returns the types whose values need no further check, or None if no value does."""
        kinds: set[type] = set()
        for kind in self.of(parameter):
            if kind is None:
                kinds.add(type(None))
            elif get_origin(kind) is Literal:
                kinds |= {type(member) for member in get_args(kind)}
            elif kind in (Callable, Mapping):
                continue
            elif not isinstance(kind, type) or _is_protocol(kind):
                return None
            else:
                kinds.add(kind)
        return frozenset(kinds)

    def mismatch(self, parameter: Parameter, value: Any) -> Exception | None:
        """Returns the error of a value of another type, or None."""
        types = self.of(parameter)
        if any(_accepts(kind, value) for kind in types):
            return None
        wanted = _listed([_wanted(kind) for kind in types], "or")
        return TypeError(f"{parameter.name} is {described(value)}; it must be {wanted}{_hint(types, value)}")


class _TypesOfExtension(_Types):
    """The types of the extension module. Its ints have 32 bits, or 64 bits if they are addresses."""

    def mismatch(self, parameter: Parameter, value: Any) -> Exception | None:
        error = super().mismatch(parameter, value)
        if error is not None or value is None or int not in self.of(parameter):
            return error
        number = operator.index(value)
        least, most, bits = (0, 1 << 64, 64) if parameter.name in ADDRESSES else (-(1 << 31), 1 << 31, 32)
        if least <= number < most:
            return None
        return SpecError(f"{parameter.name} = {_short(number)}; it must be an int of {bits} bits")


def _parts(node: ast.expr) -> list[ast.expr]:
    """Returns the alternatives of a union."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _parts(node.left) + _parts(node.right)
    return [node]


def _resolved(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """Returns the type that an annotation names: a class, a Literal, None, or Any for one that is not checked."""
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if isinstance(node, ast.Subscript):
        base = ast.unparse(node.value).rpartition(".")[2]
        if base == "Literal":
            return Literal[ast.literal_eval(node.slice)]
        return {"Callable": Callable, "Mapping": Mapping}.get(base, Any)
    name, _, attribute = ast.unparse(node).partition(".")
    found = {"int": int, "float": float, "bool": bool, "str": str}.get(name) or namespace.get(name, Any)
    return getattr(found, attribute, Any) if attribute else found


def _accepts(kind: Any, value: object) -> bool:
    if kind is None:
        return value is None
    if get_origin(kind) is Literal:  # the function refuses other values of the type, and lists those that it knows
        return isinstance(value, tuple({type(member) for member in get_args(kind)}))
    if kind in _ACCEPTS:
        return _ACCEPTS[kind](value)
    return not isinstance(kind, type) or _is_protocol(kind) or isinstance(value, kind)


def _is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def _is_int(value: Any) -> bool:
    """Returns True for an int and for what converts to one without loss, such as an integer of NumPy."""
    if isinstance(value, int):
        return True
    try:
        operator.index(value)
    except Exception:
        return False
    return True


def _is_number(value: object) -> bool:
    kind = type(value)
    return not isinstance(value, str | complex) and (hasattr(kind, "__float__") or hasattr(kind, "__index__"))


def _is_truth(value: object) -> bool:
    return isinstance(value, int) or type(value).__name__.rstrip("_") == "bool"


def _is_numbers(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) and _is_number(v) for k, v in value.items())


_ACCEPTS: dict[Any, Callable[[object], bool]] = {
    Any: lambda value: True,
    int: _is_int,
    float: _is_number,
    bool: _is_truth,
    Callable: callable,
    Mapping: _is_numbers,
}

_WANTED: dict[Any, str] = {
    None: "None",
    int: "an int",
    float: "a number",
    bool: "True or False",
    str: "a str",
    Callable: "a function",
    Mapping: "a dict of numbers by name",
}


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return _listed([f'"{member}"' if isinstance(member, str) else repr(member) for member in get_args(kind)], "or")
    if kind in _WANTED:
        return _WANTED[kind]
    name = type_name(kind)
    return f"a{'n' if name[0] in 'aeiou' else ''} {name}"


def _hint(types: list[Any], value: object) -> str:
    """Returns advice for a RoPE variant's name or function in place of a Rope, and for other functions, or ""."""
    if "Rope" in [getattr(kind, "__name__", None) for kind in types]:
        variants = [name for name in sys.modules["lazyrope.rope"].__all__ if name != "Rope"]
        meant = near(getattr(value, "__name__", value), variants) if isinstance(value, str) or callable(value) else None
        return f": write lazyrope.rope.{meant}()" if meant else ": call a function of lazyrope.rope"
    return ": call the function" if inspect.isroutine(value) else ""


class _Repr(reprlib.Repr):
    """Shows builtin values, shortened, and of other objects only the type."""

    def repr_instance(self, x: object, level: int) -> str:
        is_plain = isinstance(x, int | float | complex | str | bytes) or x is None
        return super().repr_instance(x, level) if is_plain else f"<{type_name(type(x))}>"


def _short(value: object) -> str:
    try:
        text = _Repr().repr(value)
    except Exception:  # a subclass of a builtin type may raise anything
        text = f"<{type_name(type(value))}>"
    return text if len(text) <= MAX_REPR else f"{text[: MAX_REPR - 3]}..."


def _described_tensor(value: Any) -> str:
    name = type_name(type(value))
    try:
        return f"a {name} of shape {list(value.shape)}, {value.dtype}"
    except Exception:  # any object may have such attributes, and they may raise anything
        return f"a {name}"


def type_name(kind: type) -> str:
    """Returns a class's name with the public module that has it."""
    module = kind.__module__.split("._")[0]
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _listed(words: Sequence[str], last: str) -> str:
    """Returns "a, b and c"."""
    words = list(dict.fromkeys(words))
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1] if words else ""]))
