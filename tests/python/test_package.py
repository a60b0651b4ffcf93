"""The wheel and its stubs, installed into an environment that has nothing else."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import lazyrope
import pytest
from lazyrope import _core

from tools import make_wheels

ROOT = Path(__file__).parents[2]
STUBS = [ast.parse(file.read_text()) for file in sorted((ROOT / "python" / "lazyrope").glob("_*.pyi"))]
MAX_BYTES = 10_000_000


def run(*command: object, **options: object) -> str:
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}"
    return result.stdout.strip()


def test_the_extension_exports_nothing_but_its_entry():
    """Exported symbols of linked libraries could be mixed up with those of another copy in the process."""
    lines = run("nm", "--dynamic", "--defined-only", _core.__file__).splitlines()
    assert [line.split()[-1] for line in lines] == ["PyInit__core"]


def options_of_build_tree() -> tuple[list[str], dict[str, str]]:
    """Returns pip's arguments and the variables that repeat the options of the build tree.

    With ccache, files that were compiled before are not compiled again. It finds them only if the sources have the
    same path from both build directories.
    """
    file = Path(_core.__file__).resolve().parents[2] / "CMakeCache.txt"
    text = file.read_text() if file.exists() else ""
    known = dict(re.findall(r"^(LAZYROPE_WERROR|CMAKE_CXX_COMPILER):\w+=(.*)$", text, flags=re.MULTILINE))
    werror = [f"--config-settings=cmake.define.LAZYROPE_WERROR={known['LAZYROPE_WERROR']}"] if known else []
    return werror, {"CXX": known["CMAKE_CXX_COMPILER"]} if known else {}


@pytest.fixture(scope="session")
def sdist(tmp_path_factory) -> Path:
    return make_wheels.make_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(sdist, tmp_path_factory) -> Path:
    """Returns a wheel that is built from the sdist, but with the build tools of this environment."""
    arguments, variables = options_of_build_tree()
    source = make_wheels.unpack(sdist, make_wheels.WORK)
    folder = tmp_path_factory.mktemp("wheel")
    return make_wheels.build_wheel(
        Path(sys.executable), source, folder, "--no-build-isolation", *arguments, variables=variables
    )


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """Returns a new virtual environment with only lazyrope and its dependencies."""
    venv = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin" / "pip", "install", "--disable-pip-version-check", wheel)
    return venv


def clean_environment(**variables: object) -> dict[str, str]:
    """Returns an environment without this one's paths and without a visible GPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LAZYROPE_"))}
    return kept | {"CUDA_VISIBLE_DEVICES": ""} | {name: str(value) for name, value in variables.items()}


def test_the_wheel_is_small_and_complete(wheel):
    assert wheel.stat().st_size < MAX_BYTES
    version = lazyrope.__version__
    assert wheel.name.startswith(f"lazyrope-{version}-")
    names = zipfile.ZipFile(wheel).namelist()
    package = {name.removeprefix("lazyrope/") for name in names if name.startswith("lazyrope/")}
    folder = ROOT / "python" / "lazyrope"
    files = (file for file in folder.rglob("*") if file.suffix in (".py", ".pyi", ".typed"))
    sources = {str(file.relative_to(folder)) for file in files}
    assert package - sources == {Path(_core.__file__).name}
    assert {"_core.pyi", "py.typed", "transformers/engine.py"} <= package and sources <= package
    assert f"lazyrope-{version}.data/scripts/lazyrope" in names
    assert {name.split("/")[0] for name in names} == {
        "lazyrope",
        f"lazyrope-{version}.data",
        f"lazyrope-{version}.dist-info",
    }


def metadata_of(wheel: Path) -> str:
    return zipfile.ZipFile(wheel).read(f"lazyrope-{lazyrope.__version__}.dist-info/METADATA").decode()


def test_the_metadata_names_each_python_that_wheels_are_for(wheel):
    (oldest, newest), metadata = (make_wheels.OLDEST, make_wheels.NEWEST), metadata_of(wheel)
    named = set(re.findall(r"^Classifier: Programming Language :: Python :: (3\.\d+)$", metadata, flags=re.MULTILINE))
    assert named == {f"3.{minor}" for minor in range(oldest[1], newest[1] + 1)}
    assert f"Requires-Python: >={oldest[0]}.{oldest[1]}\n" in metadata


def test_the_sdist_is_small(sdist):
    assert sdist.stat().st_size < MAX_BYTES // 4


def test_the_wheel_depends_only_on_nvrtc(wheel):
    """Other dependencies belong to the extra."""
    metadata = metadata_of(wheel)
    needed = [line.split(": ", 1)[1] for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    extra = [line for line in needed if "extra ==" in line]
    (nvrtc,) = (line for line in needed if line not in extra)
    assert nvrtc.startswith("nvidia-cuda-nvrtc")
    assert set(nvrtc.removeprefix("nvidia-cuda-nvrtc").split(",")) == {">=13.0", "<14"}
    assert {re.split(r"[<>=;]", line)[0].strip() for line in extra} == {
        "matplotlib",
        "numpy",
        "tabulate",
        "torch",
        "tqdm",
        "transformers",
    }


def test_the_extension_needs_no_library_that_a_machine_may_lack(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (extension,) = (tmp_path / "lazyrope").glob("_core.*.so")
    dynamic = run("readelf", "--dynamic", extension)
    needed = {line.split("[")[1].split("]")[0] for line in dynamic.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}


IMPORT = """
import sys, lazyrope
spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.llama3())
kernel = lazyrope.compile(spec, arch="sm_90a")
assert kernel.cubin.startswith(b"\\x7fELF") and not kernel.from_cache
assert not {"torch", "numpy", "cupy"} & set(sys.modules)
print(lazyrope.__version__, lazyrope.__file__)
"""


def test_the_wheel_imports_and_compiles_without_torch_numpy_or_gpu(installed, tmp_path):
    environment = clean_environment(LAZYROPE_CACHE_DIR=tmp_path / "cache")
    version, file = run(installed / "bin" / "python", "-c", IMPORT, env=environment, cwd=tmp_path).split()
    assert version == lazyrope.__version__
    assert Path(file).is_relative_to(installed)
    packages = run(installed / "bin" / "pip", "list", "--format=freeze", "--disable-pip-version-check")
    names = {line.split("==")[0] for line in packages.splitlines()}
    assert names - {"pip", "setuptools", "wheel"} == {"lazyrope", "nvidia-cuda-nvrtc"}


def test_the_command_is_installed_and_finds_the_compiler(installed, tmp_path):
    command = installed / "bin" / "lazyrope"
    environment = clean_environment(LAZYROPE_CACHE_DIR=tmp_path / "cache")
    assert run(command, "--version", env=environment) == f"lazyrope {lazyrope.__version__}"
    assert f"chosen: {installed}" in run(command, "doctor", env=environment)


def test_no_text_advises_an_installation_from_an_index():
    """An index may have no lazyrope, or another one. A path, such as "pip install .", is right."""
    names = run("git", "ls-files", "*.md", "*.py", "*.pyi", "*.cpp", "*.h", "*.j2", "*.ipynb", "Makefile", cwd=ROOT)
    advice = re.compile(r"\b(?:pip|uv|pipx) (?:install|add|run)(?: [-\w]+)* ['\"]?lazyrope\b(?!-)")
    assert advice.search("pip install lazyrope") and advice.search("pip install 'lazyrope[bench]'")
    files = [ROOT / name for name in names.splitlines() if (ROOT / name) != Path(__file__)]
    assert [str(file) for file in files if file.exists() and advice.search(file.read_text())] == []


def test_unpacking_leaves_equal_files_and_removes_those_of_before(sdist, tmp_path):
    source = make_wheels.unpack(sdist, tmp_path)
    (source / "CMakeLists.txt").write_text("old")
    (source / "codegen" / "removed.cpp").touch()
    (source / "build").mkdir()
    (source / "build" / "object.o").touch()
    os.utime(source / "LICENSE", (1, 1))
    assert make_wheels.unpack(sdist, tmp_path) == source
    assert (source / "CMakeLists.txt").read_text() == (ROOT / "CMakeLists.txt").read_text()
    assert not (source / "codegen" / "removed.cpp").exists() and (source / "build" / "object.o").exists()
    assert (source / "LICENSE").stat().st_mtime == 1


def test_a_wheel_of_a_newer_glibc_is_refused(tmp_path, monkeypatch):
    assert make_wheels.glibc_of(Path("lazyrope-0-cp311-cp311-manylinux_2_34_x86_64.manylinux_2_36_x86_64.whl")) == (
        2,
        34,
    )
    newer = "lazyrope-0-cp311-cp311-manylinux_2_39_x86_64.whl"
    monkeypatch.setattr(make_wheels, "run", lambda *command, **_: Path(command[-2], newer).touch())
    with pytest.raises(SystemExit, match=r"needs glibc 2\.39, and at most 2\.34 is wanted"):
        make_wheels.repair(tmp_path / "lazyrope-0-cp311-cp311-linux_x86_64.whl", tmp_path)


def test_wheels_are_made_for_the_pythons_with_headers(tmp_path):
    (tmp_path / "python3.12").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "python3.12").chmod(0o755)
    assert make_wheels.version_with_headers(tmp_path / "python3.12") is None
    assert make_wheels.version_with_headers(tmp_path / "absent") is None
    assert make_wheels.version_with_headers(Path(sys.executable)) == sys.version_info[:2]


def test_build_requirements_of_pip_and_make_are_equal():
    """pip reads pyproject.toml, and make reads tools/requirements/build.txt."""
    tomllib = pytest.importorskip("tomllib")
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = (ROOT / "tools" / "requirements" / "build.txt").read_text().splitlines()
    assert sorted(pyproject["build-system"]["requires"]) == sorted(x for x in lines if not x.startswith("#"))


def parameters(function: ast.FunctionDef) -> list[tuple[str, str, str | None]]:
    """Returns name, kind and default of each parameter except self."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(positional) - len(a.defaults)) + list(a.defaults)
    rows = [(p.arg, "any", d) for p, d in zip(positional, defaults, strict=True)]
    rows += [(p.arg, "keyword", d) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    return [(name, kind, ast.unparse(d) if d else None) for name, kind, d in rows if name != "self"]


def stubs() -> dict[str, ast.FunctionDef]:
    """Returns the functions and methods that the stubs declare, and the first of overloads."""
    found: dict[str, ast.FunctionDef] = {}
    for node in (node for file in STUBS for node in file.body):
        inside = [(f"{node.name}.", member) for member in node.body] if isinstance(node, ast.ClassDef) else [("", node)]
        for prefix, function in inside:
            if isinstance(function, ast.FunctionDef):
                is_property = any(ast.unparse(d) == "property" for d in function.decorator_list)
                if not is_property:
                    found.setdefault(prefix + function.name, function)
    return found


def bound() -> dict[str, ast.FunctionDef]:
    """Returns the functions and methods with pybind11's signatures, the first of overloads.

    The extension keeps those that it has replaced by the stubs' in ``_bound``.
    """
    found = {}
    spaces = [("", _core), *((f"{name}.", cls) for name, cls in vars(_core).items() if isinstance(cls, type))]
    for prefix, space in spaces:
        for name, member in vars(space).items():
            member = getattr(member, "__func__", member)
            if type(member).__name__ not in ("instancemethod", "builtin_function_or_method") or name in UNNAMED:
                continue
            text = _core._bound.get(prefix + name, member.__doc__)
            if text and (signature := re.search(rf"^(?:1\. )?{name}(\((?!\*args).*)$", text, flags=re.MULTILINE)):
                (found[prefix + name],) = ast.parse(f"def {name}{signature[1]}: ...").body
    return found


# Functions without names of arguments, and pybind11's own.
UNNAMED = ("__eq__", "__repr__", "__str__", "__copy__", "__deepcopy__", "__reduce__", "_pybind11_conduit_v1_")


def literals(annotation: ast.expr | None) -> list[object]:
    """Returns the members of the Literal in an annotation."""
    nodes = ast.walk(annotation) if annotation else ()
    slices = [n.slice for n in nodes if isinstance(n, ast.Subscript) and ast.unparse(n.value) == "Literal"]
    return [ast.literal_eval(member) for part in slices for member in getattr(part, "elts", [part])]


NAMES = {
    "dtype": ["bfloat16", "float16"],
    "kv_dtype": ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"],
    "mask": [*lazyrope.masks()],
    "layout": ["NHD", "HND"],
    "query_form": ["raw", "rotated"],
    "append_form": ["raw", "rotated"],
    "key_form": ["local", "raw"],
    "family": ["sm80", "sm90a"],
}


def functions_in(node: ast.AST) -> list[ast.FunctionDef]:
    return [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef)]


def test_arguments_with_few_values_are_literals():
    """A type checker then refuses a misspelt name. The members are those that the library takes."""
    eager = ast.parse((ROOT / "python" / "lazyrope" / "eager.py").read_text())
    functions = [f for file in STUBS for f in functions_in(file)]
    functions += [f for f in functions_in(eager) if not f.name.startswith("_")]
    found = [(a.arg, literals(a.annotation)) for f in functions for a in [*f.args.args, *f.args.kwonlyargs]]
    for name, members in found:
        assert name not in NAMES or sorted(members) == sorted(NAMES[name]), name
    assert set(NAMES) <= {name for name, _ in found}


def test_stubs_declare_every_bound_function():
    """Names, keyword-only arguments and defaults agree."""
    ours, theirs = stubs(), bound()
    assert len(theirs) > 15
    assert {name: parameters(ours[name]) for name in theirs} == {name: parameters(f) for name, f in theirs.items()}
    python_only = {"Tensor.__dlpack__"}
    assert {name for name in set(ours) - set(theirs) if name.rpartition(".")[2] not in UNNAMED} == python_only


def is_of_the_extension(item: object) -> bool:
    return inspect.isbuiltin(item) or inspect.isclass(item)


@pytest.mark.parametrize("name", [name for name in lazyrope.__all__ if is_of_the_extension(getattr(_core, name, None))])
def test_docstrings_equal_those_of_the_stubs(name):
    """The docstrings of functions, classes and members are those of the stubs."""
    stub = next(node for file in STUBS for node in file.body if getattr(node, "name", None) == name)
    item = getattr(lazyrope, name)
    assert inspect.getdoc(item).startswith(ast.get_docstring(stub))
    if isinstance(stub, ast.FunctionDef):
        assert [*inspect.signature(item).parameters] == [argument for argument, _, _ in parameters(stub)]
        return
    for member in (part for part in stub.body if isinstance(part, ast.FunctionDef)):
        text = ast.get_docstring(member)
        if member.name == "__init__":
            assert [*inspect.signature(item).parameters] == [argument for argument, _, _ in parameters(member)]
            assert (text or "") in inspect.getdoc(item)
        elif text is not None:
            assert inspect.getdoc(getattr(item, member.name)) == text


def test_the_call_of_attention_has_a_signature():
    assert [*inspect.signature(lazyrope.Attention.__call__).parameters][:3] == ["self", "q", "k_pool"]


def test_stubs_describe_every_public_function():
    silent = [name for name, function in stubs().items() if not ast.get_docstring(function)]
    assert [name for name in silent if not name.split(".")[-1].startswith("_")] == [
        "Attention.ptx",
    ]
