#!/usr/bin/env bash
# Checks C++ and Python without running them; with --fix, formats them in place instead. It uses the virtual environment
# VENV; clang-tidy and stubtest also need the configured and built tree BUILD.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/${VENV:-.venv}/bin
build=${BUILD:-build}
python_folders=(python tests tools)
mapfile -t cpp_files < <(find cache codegen python runtime templates tests tools -name '*.h' -o -name '*.cpp' -o -name '*.cuh')

if [ "${1:-}" = --fix ]; then
  "$bin/clang-format" -i "${cpp_files[@]}"
  "$bin/ruff" check --quiet --fix "${python_folders[@]}"
  "$bin/ruff" format --quiet "${python_folders[@]}"
  exit
fi

clang_tidy() {
  "$bin/run-clang-tidy.py" -clang-tidy-binary "$bin/clang-tidy" -quiet -p "$build" -j "$(nproc)" \
    "^$PWD/(($build/)?(codegen|cache|runtime|python)|tools)/"
}

failed=()
check() {  # check NAME COMMAND...: shows the command's output only if it fails
  local name=$1 begin=$SECONDS output
  shift
  if output=$("$@" 2>&1); then
    echo "lint: $name: clean ($((SECONDS - begin)) s)"
  else
    echo "$output"
    echo "lint: $name: FAILED ($((SECONDS - begin)) s)"
    failed+=("$name")
  fi
}

check clang-format "$bin/clang-format" --dry-run -Werror "${cpp_files[@]}"
check "ruff check" "$bin/ruff" check --quiet "${python_folders[@]}"
check "ruff format" "$bin/ruff" format --check --quiet "${python_folders[@]}"
check mypy "$bin/mypy"
check prose "$bin/python" tools/check_prose.py
check stubtest env PYTHONPATH="$build/package" "$bin/python" -m mypy.stubtest \
  --allowlist tools/stubtest_allowlist.txt lazyrope._core
check clang-tidy clang_tidy
[ ${#failed[@]} = 0 ] || { echo "lint: failed: ${failed[*]}" >&2; exit 1; }
