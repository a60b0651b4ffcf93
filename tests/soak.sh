#!/usr/bin/env bash
# Runs the tests that CI has no time for, on a machine without a GPU: `make soak`. Each part's output is in
# BUILD/soak/NAME.log. The summary goes to standard output and to BUILD/soak/summary.md, whose lines are kept in tests/soak.md.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python} build=${BUILD:-build}
mkdir -p "$build/soak"
summary=$build/soak/summary.md
: > "$summary"
failed=0

part() {  # part NAME COMMAND...
  local name=$1 begin=$SECONDS result=passed
  shift
  "$@" > "$build/soak/$name.log" 2>&1 || { result=FAILED; failed=1; }
  echo "| $(date -I) | $(git rev-parse --short HEAD) | $name | $result | $((SECONDS - begin)) s | $(grep -E ' passed| survived|tests passed|tests failed' "$build/soak/$name.log" | tail -n 1 | tr -s '|' ' ') |" | tee -a "$summary"
}

part mutants "$python" -m tests.mutation
part cpp env LAZYROPE_SOAK=1 ctest --test-dir "$build" --output-on-failure -j"$(nproc)" -R 'Autotune|CacheDamage|Compiles|ConfigFuzz'
part python "$python" -m pytest --soak --requests 10000 --numprocesses="$(nproc)" --dist=loadfile
part random-steps "$python" -m pytest tests/python/test_attention.py tests/python/test_append.py --cases "${CASES:-200}" \
  --seed "${SEED:-$(date +%y%m%d)}" --numprocesses="$(nproc)" --dist=loadfile
exit "$failed"
