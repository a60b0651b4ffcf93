#!/usr/bin/env bash
# Installs the dependencies of lazyrope: missing Debian packages (with sudo, if not root), and Python packages in a
# virtual environment inside the tree. It changes nothing else on the machine.
#
#   tools/set_up.sh VENV build|demo|test|lint|rag|docs
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 purpose=$2
python=${PYTHON:-python3}

say() { echo "set-up: $*"; }
fail() { say "$*" >&2; exit 1; }

missing=
need() {  # need PACKAGE COMMAND...: PACKAGE is missing unless COMMAND succeeds
  local package=$1
  shift
  "$@" > /dev/null 2>&1 || missing+=" $package"
}
has_header() { echo "#include <$1>" | c++ -E -x c++ -; }
has_python_headers() {
  "$python" -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))'
}

find_missing() {
  missing=
  need g++ command -v c++
  need cmake command -v cmake
  need ninja-build command -v ninja
  need libfmt-dev has_header fmt/format.h
  need libgtest-dev has_header gtest/gtest.h
  need libcli11-dev has_header CLI/CLI.hpp
  need nlohmann-json3-dev has_header nlohmann/json.hpp
  need libsodium-dev has_header sodium.h
  need libboost-context-dev has_header boost/context/fiber.hpp
  need python3 command -v "$python"
  need python3-venv "$python" -c 'import ensurepip, venv'
  need python3-dev has_python_headers
}

install_debian_packages() {
  find_missing
  [ -n "$missing" ] || return 0
  local command="apt-get install -y --no-install-recommends$missing" as_root=
  command -v apt-get > /dev/null || fail "install these packages (Debian names), then repeat:$missing"
  if [ "$(id -u)" != 0 ]; then
    command -v sudo > /dev/null || fail "packages are missing and there is no sudo; as root, run: $command"
    as_root=sudo
  fi
  say "Debian packages:$missing"
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086
  $as_root apt-get update -qq && $as_root $command -qq > /dev/null || fail "the installation failed; as root, run: $command"
  find_missing
  [ -z "$missing" ] || fail "these packages are installed, but $python, c++ or cmake does not find their files:$missing"
}

install_python_packages() {
  if [ ! -x "$venv/bin/pip" ]; then
    say "virtual environment $venv"
    "$python" -m venv --clear "$venv"
  fi
  # Python compiles a module when it is first imported. Of the modules of torch and transformers most never are.
  local install=("$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile)
  local requirements=tools/requirements/$purpose.txt
  say "Python packages in $venv: $(grep -v '^#' "$requirements" | tr '\n' ' ')"
  "${install[@]}" -r "$requirements"
  local alone=tools/requirements/$purpose-no-deps.txt  # packages to install without their dependencies
  [ ! -f "$alone" ] || "${install[@]}" --no-deps -r "$alone"
}

[ "$purpose" != build ] || install_debian_packages
install_python_packages
