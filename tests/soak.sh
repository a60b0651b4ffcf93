#!/usr/bin/env bash
# Runs the tests that CI has no time for, on a machine without a GPU: `make soak`. Each part's output is in
# BUILD/soak/NAME.log, which the script names when the part begins. The summary goes to standard output and to
# BUILD/soak/summary.md, whose lines are kept in tests/soak.md.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python} build=${BUILD:-build}
mkdir -p "$build/soak"
summary=$build/soak/summary.md
: > "$summary"
failed=0

part() {  # part NAME COMMAND...
  local name=$1 begin=$SECONDS result=passed last
  shift
  echo "$name: output in $build/soak/$name.log" >&2
  "$@" > "$build/soak/$name.log" 2>&1 || { result=FAILED; failed=1; }
  last=$(grep -E '^[0-9]+ (passed|failed|error).* in [0-9.]+s| survived;|tests passed' "$build/soak/$name.log" | tail -n 1)
  echo "| $(date -I) | $(git rev-parse --short HEAD) | $name | $result | $((SECONDS - begin)) s | ${last//|/ } |" | tee -a "$summary"
}

part mutants "$python" -m tests.mutation
part sanitize env -u PYTHON make --no-print-directory sanitize BUILD="$build" NOT_SANITIZED=vptr
part tsan env -u PYTHON make --no-print-directory tsan BUILD="$build"
part cpp env LAZYROPE_SOAK=1 ctest --test-dir "$build" --output-on-failure -j"$(nproc)" \
  -R 'Autotune|CacheDamage|Compiles|ConfigFuzz|Overlap|Planner|SharedCode'
# The part "mutants" has run that test.
part python "$python" -m pytest --soak --requests 10000 --numprocesses="$(nproc)" --dist=loadfile \
  --deselect tests/python/test_mutation.py::test_every_mutant_is_caught
part random-steps "$python" -m pytest tests/python/test_attention.py tests/python/test_append.py --cases "${CASES:-200}" \
  --seed "${SEED:-$(date +%y%m%d)}" --numprocesses="$(nproc)" --dist=loadfile
part vllm env -u PYTHON make --no-print-directory test-vllm BUILD="$build"
part vllm-v2 env -u PYTHON make --no-print-directory test-vllm-v2 BUILD="$build"
if [ "$(id -u)" = 0 ] && command -v debootstrap > /dev/null; then
  part first-hour "$python" -m tools.first_hour --folder "$build/first-hour"
else
  echo "first-hour: left out, because it needs root and debootstrap" >&2
fi
exit "$failed"
