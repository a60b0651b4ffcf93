"""Checks that includes go downwards between layers (the top-level folders), and a few other rules of the tree.

python tools/check_layers.py [ROOT]

Prints one line per complaint, FILE:LINE: what is wrong and what is allowed. Exits with 1 if there is a complaint, else
with 0.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Host code that plans a step shares the costs and limits of the planner's kernel.
POLICY = "templates/planner/policy.h"
# A layer may include itself and these folders and files.
MAY_INCLUDE = {
    "codegen": {"templates/abi"},
    "cache": set(),
    "templates": set(),
    "runtime": {"codegen", "cache", "templates/abi", POLICY},
    "python": {"runtime", "codegen", "cache", "templates/abi"},
    "tools": {"runtime", "codegen", "cache", "templates/abi"},
    "tests": {"runtime", "codegen", "cache", "templates", "python"},
}
# A folder of templates/ may include itself and folders of later levels.
LEVELS = [("kernel",), ("family", "planner"), ("pipeline",), ("ops",), ("tile",), ("isa",), ("abi",)]
LEVEL_OF = {folder: i for i, level in enumerate(LEVELS) for folder in level}
LEVEL_NAMES = " > ".join(", ".join(level) for level in LEVELS)
# A folder of runtime/ may include itself and the folders after it. "" stands for the files of runtime/ itself.
RUNTIME_FOLDERS = ["", "tuning", "attention", "step", "engine", "spec", "emulator", "driver", "base"]
RUNTIME_NAMES = " > ".join(folder or "runtime" for folder in RUNTIME_FOLDERS)
ISAS = ["ptx", "emu"]
# The conformance kernels are device code outside templates/. They test the instruction wrappers and use nothing else.
CONFORMANCE_KERNELS = "tests/isa/kernels/"
CONFORMANCE_MAY_INCLUDE = ["isa", "abi"]

# codegen is a pure function: no files, clock or environment. The cache stores bytes under a key and knows no CUDA.
CUDA_HEADERS = r"cuda\w*\.h|nvrtc\.h|driver_types\.h|dlpack/.*"
REFUSED_HEADERS = {
    "codegen": rf"{CUDA_HEADERS}|filesystem|fstream|chrono|ctime|cstdio|cstdlib|unistd\.h|sys/.*|fcntl\.h",
    "cache": CUDA_HEADERS,
    "templates": r".*",
    "conformance kernels": r".*",
}

# These words belong to CUDA. "__\w+" covers __device__, __shared__, __syncthreads, __shfl_sync and all intrinsics.
DEVICE_WORD = re.compile(
    r"\b(?:asm|threadIdx|blockIdx|blockDim|gridDim|clusterIdx|warpSize|atomic[A-Z]\w*|clock64|__\w+)\b"
)
EMULATOR_WORD = re.compile(r"__builtin_\w+")  # builtins of g++, which isa/emu uses
READS_ENVIRONMENT = re.compile(r"\b(?:(?:secure_)?getenv|environ\.get)\b")
ENVIRONMENT_READER = "runtime/base/config.cpp"

MAX_LINES = 600
CPP_SUFFIXES = (".h", ".cpp", ".cuh", ".cu.in")
SUFFIXES = (*CPP_SUFFIXES, ".py", ".pyi", ".sh")

QUOTED_OR_COMMENT = re.compile(
    r"""
    //[^\n]*
    | /\*.*?\*/
    | R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"
    | "(?:\\.|[^"\\\n])*"
    | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'   # not the separator of 10'000
    """,
    re.DOTALL | re.VERBOSE,
)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]*)"|<([^>\n]*)>)', re.MULTILINE)
PYTHON_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)", re.MULTILINE)


@dataclass(frozen=True)
class Include:
    line: int
    path: str
    angled: bool


@dataclass(frozen=True)
class Source:
    """A file of the tree: its path, its text, and its text with comments and literals blanked out."""

    path: str
    text: str
    code: str

    @property
    def layer(self) -> str:
        return self.path.split("/")[0]

    @property
    def is_conformance_kernel(self) -> bool:
        return self.path.startswith(CONFORMANCE_KERNELS)

    @property
    def owner(self) -> str:
        return "conformance kernels" if self.is_conformance_kernel else self.layer

    @property
    def is_cpp(self) -> bool:
        return self.path.endswith(CPP_SUFFIXES)

    @property
    def level(self) -> str:
        return self.path.split("/")[1]

    def includes(self) -> Iterator[Include]:
        # The # of an include inside a literal or a comment is blanked out in `code`.
        for match in INCLUDE.finditer(self.text):
            hash_at = self.text.index("#", match.start())
            if self.code[hash_at] == "#":
                path = match[1] if match[1] is not None else match[2]
                yield Include(line_of(self.text, hash_at), path, match[1] is None)


def line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def sources(root: Path) -> list[Source]:
    found = []
    for layer in MAY_INCLUDE:
        for file in sorted((root / layer).rglob("*")):
            if file.is_file() and file.name.endswith(SUFFIXES) and "__pycache__" not in file.parts:
                text = file.read_text(encoding="utf-8")
                code = QUOTED_OR_COMMENT.sub(blank, text) if file.name.endswith(CPP_SUFFIXES) else text
                found.append(Source(file.relative_to(root).as_posix(), text, code))
    return found


def runtime_folder(path: str) -> str:
    """Returns the folder of runtime/ that has the file, or "" for a file of runtime/ itself."""
    return path.split("/")[1] if path.count("/") > 1 else ""


def check_runtime_include(source: Source, include: Include) -> str | None:
    """Checks that includes between the folders of runtime/ go downwards, so that there is no cycle."""
    folder, target = runtime_folder(source.path), runtime_folder(include.path)
    for one in (folder, target):
        if one not in RUNTIME_FOLDERS:
            return f"runtime/{one} is on no level of runtime/; these are: {RUNTIME_NAMES}"
    if RUNTIME_FOLDERS.index(target) < RUNTIME_FOLDERS.index(folder):
        return f'runtime/{folder} must not include "{include.path}"; downwards is: {RUNTIME_NAMES}'
    return None


def check_layer_include(source: Source, include: Include) -> str | None:
    """Checks that host code includes paths from the root, in layers that its own layer may include."""
    target = include.path.split("/")[0]
    if target not in MAY_INCLUDE:
        return f'"{include.path}" is in no layer; give paths from the root, <...> for libraries'
    if target == source.layer:
        return check_runtime_include(source, include) if target == "runtime" else None
    allowed = MAY_INCLUDE[source.layer]
    if any(include.path == one or include.path.startswith(f"{one}/") for one in allowed):
        return None
    names = ", ".join([source.layer, *sorted(allowed)])
    return f'{source.layer} must not include "{include.path}"; it may include: {names}'


def check_template_path(include: Include, paths: set[str]) -> str | None:
    """Checks that an included file of templates/ exists and names no instruction set."""
    if include.path.startswith(tuple(f"isa/{isa}/" for isa in ISAS)):
        return f'"{include.path}" chooses an instruction set; include "isa/{include.path.split("/", 2)[2]}"'
    in_isa = include.path.startswith("isa/")
    in_each_isa = [include.path.replace("isa/", f"isa/{isa}/", 1) for isa in ISAS] if in_isa else []
    if not any(f"templates/{path}" in paths for path in (include.path, *in_each_isa)):
        return f'"{include.path}" does not exist in templates/'
    return None


def check_conformance_include(include: Include, paths: set[str]) -> str | None:
    """Checks that conformance kernels include only one another and the templates below tile/."""
    if include.path.startswith(CONFORMANCE_KERNELS):
        return None if include.path in paths else f'"{include.path}" does not exist'
    if include.path.split("/")[0] not in CONFORMANCE_MAY_INCLUDE:
        names = ", ".join([*CONFORMANCE_MAY_INCLUDE, CONFORMANCE_KERNELS.removesuffix("/")])
        return f'conformance kernels must not include "{include.path}"; they may include: {names}'
    return check_template_path(include, paths)


def check_template_include(source: Source, include: Include, paths: set[str]) -> str | None:
    """Checks that templates include existing files by paths from templates/, downwards."""
    if source.level not in LEVEL_OF:
        return f"{source.path} is on no level of templates/; these are: {LEVEL_NAMES}"
    target = include.path.split("/")[0]
    if include.path.startswith("${"):
        return None if source.level == "kernel" else f'"{include.path}": only files of kernel/ have placeholders'
    if target not in LEVEL_OF:
        return f'"{include.path}" is on no level of templates/; these are: {LEVEL_NAMES}'
    if target != source.level and LEVEL_OF[target] <= LEVEL_OF[source.level]:
        return f'{source.level} must not include "{include.path}"; downwards is: {LEVEL_NAMES}'
    return check_template_path(include, paths)


def check_includes(source: Source, paths: set[str]) -> Iterator[tuple[int, str]]:
    refused = REFUSED_HEADERS.get(source.owner)
    for include in source.includes():
        if include.angled:
            complaint = None
            if refused and re.fullmatch(refused, include.path):
                complaint = f"{source.owner} must not include <{include.path}>"
        elif source.is_conformance_kernel:
            complaint = check_conformance_include(include, paths)
        elif source.layer == "templates":
            complaint = check_template_include(source, include, paths)
        else:
            complaint = check_layer_include(source, include)
        if complaint:
            yield include.line, complaint


def check_imports(source: Source) -> Iterator[tuple[int, str]]:
    for match in PYTHON_IMPORT.finditer(source.code):
        package = match[1].split(".")[0]
        if package in ("tests", "tools") and package != source.layer and source.layer != "tests":
            yield line_of(source.code, match.start()), f"{source.layer} must not import {match[1]}; only tests may"


def check_words(source: Source) -> Iterator[tuple[int, str]]:
    """Checks that CUDA stays in isa/ptx, because all other device code also compiles as host C++ for the emulator."""
    if not source.path.startswith(("templates/", "tests/isa/")) or source.path.startswith("templates/isa/ptx/"):
        return
    in_emulator = source.path.startswith("templates/isa/emu/")
    for match in DEVICE_WORD.finditer(source.code):
        if not (in_emulator and EMULATOR_WORD.fullmatch(match[0])):
            yield line_of(source.code, match.start()), f"{match[0]} belongs in templates/isa/ptx"


def check_environment(source: Source) -> Iterator[tuple[int, str]]:
    is_tool = source.path.startswith(("tools/", "python/docs/")) and not source.is_cpp
    shipped = source.layer != "tests" and not is_tool
    if not shipped or source.path == ENVIRONMENT_READER:
        return
    for match in READS_ENVIRONMENT.finditer(source.code):
        yield line_of(source.code, match.start()), f"{match[0]}: only {ENVIRONMENT_READER} reads the environment"


def check_length(source: Source) -> Iterator[tuple[int, str]]:
    lines = len(source.text.splitlines())
    if lines > MAX_LINES:
        yield lines, f"{lines} lines; at most {MAX_LINES} are allowed: divide it"


def check_isas(paths: set[str]) -> Iterator[str]:
    """Checks that both instruction sets have the same headers."""
    names = {
        isa: {path.rsplit("/", 1)[1] for path in paths if path.startswith(f"templates/isa/{isa}/")} for isa in ISAS
    }
    for isa, other in (ISAS, ISAS[::-1]):
        for name in sorted(names[isa] - names[other]):
            yield f"templates/isa/{isa}/{name}:1: templates/isa/{other}/{name} is missing; both must offer it"


def complaints(tree: list[Source]) -> list[str]:
    paths = {source.path for source in tree}
    result = list(check_isas(paths))
    for source in tree:
        each = [*check_words(source), *check_environment(source), *check_length(source)]
        if source.is_cpp:
            each += check_includes(source, paths)
        else:
            each += check_imports(source)
        result += [f"{source.path}:{line}: {text}" for line, text in sorted(each)]
    return result


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    tree = sources(root)
    if not tree:
        print(f"{root} has none of the layers {', '.join(MAY_INCLUDE)}", file=sys.stderr)
        return 1
    found = complaints(tree)
    for complaint in found:
        print(complaint, file=sys.stderr)
    print(f"layering: {len(tree)} files, {len(found) or 'no'} complaint{'' if len(found) == 1 else 's'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
