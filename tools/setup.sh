#!/usr/bin/env bash
# From a fresh clone to a working .venv: system packages, Python packages, the native extension.
#
# Every stage looks at what is there and does the rest, so a second run takes a moment and a run
# that was interrupted goes on where it stopped. Talks on stderr. PYTHON and CXX choose others.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1
venv=.venv
candidates=("$venv/bin/python" "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11
  /usr/bin/python3)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# --- What is missing, asked of the thing itself and named as apt names it -------------------------

missing_native() {  # The preprocessor prints the names; without one nothing can be ruled out.
  "${CXX:-c++}" -std=c++20 -E -P -x c++ - 2>/dev/null <<'PROBE' || echo g++ libssl-dev libxxhash-dev libzstd-dev libgtest-dev
#if __cplusplus < 202002L || !__has_include(<stop_token>)
g++
#endif
#if !__has_include(<openssl/ssl.h>)
libssl-dev
#endif
#if !__has_include(<xxhash.h>)
libxxhash-dev
#endif
#if !__has_include(<zstd.h>)
libzstd-dev
#endif
#if !__has_include(<gtest/gtest.h>)
libgtest-dev
#endif
PROBE
}

missing_programs() {
  local program
  for program in make git redis-server; do
    command -v "$program" >/dev/null || echo "$program"
  done
}

# Programs that benchmarks compare with, and the browser and the tool for the controller's page,
# where this distribution has them. (Their tests skip, and the page is left out.)
missing_rivals() {
  [ "$(id -u)" = 0 ] && command -v apt-cache >/dev/null || return 0
  local program package
  for program in redis-benchmark:redis-tools memtier_benchmark:memtier-benchmark \
    chromium:chromium chromedriver:chromium-driver npm:npm; do
    package=${program#*:}
    command -v "${program%:*}" >/dev/null && continue
    [ -z "$(apt-cache show --no-all-versions "$package" 2>/dev/null)" ] || echo "$package"
  done
}

# Prints the first Python that is new enough and can make environments and build extensions.
find_python() {
  local python
  for python in "${candidates[@]}"; do
    if "$python" - 2>/dev/null <<'PROBE'; then echo "$python"; return; fi
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(sys.version_info < (3, 11) or not os.path.exists(header))
PROBE
  done
  return 1
}

# Prints the packages of the distribution's Python, or of the newest beside it that will do.
python_packages() {
  local name version
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    version=$(apt-cache show --no-all-versions "$name" 2>/dev/null | sed -n 's/^Version: //p')
    if [ -n "$version" ] && dpkg --compare-versions "$version" ge 3.11; then
      echo "$name $name-venv $name-dev"
      return
    fi
  done
  echo "python3 (3.11 or later)"
}

# --- Stage 1: system packages ---------------------------------------------------------------------

install_system() {
  export DEBIAN_FRONTEND=noninteractive
  local policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then  # Installing redis-server must not start one.
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  apt-get install --yes --quiet --no-install-recommends "$@" >&2
  if [[ " $* " == *" redis-server "* && -d /run/systemd/system ]]; then
    systemctl --quiet disable redis-server >&2 || true  # Nor at the next boot.
  fi
}

stage_system() {
  local packages
  packages="$(missing_native) $(missing_programs)"
  python=$(find_python) || python=
  [ -z "${packages// /}" ] && [ -n "$python" ] || install_needed "$packages"
  packages=$(missing_rivals)
  [ -z "$packages" ] || install_system $packages || say "going on without" $packages
}

install_needed() {
  local packages=$1
  command -v apt-get >/dev/null || die "please install what Debian calls" $packages \
    $([ -n "$python" ] || echo "python3, 3.11 or later, with venv and headers")
  if [ "$(id -u)" = 0 ]; then
    say "package lists"
    apt-get update --quiet >&2
  fi
  [ -n "$python" ] || packages="$packages $(python_packages)"
  [ "$(id -u)" = 0 ] || die "please run: sudo apt-get install --no-install-recommends $packages"
  say "installing $packages"
  install_system $packages
  hash -r
  packages="$(missing_native) $(missing_programs)"
  [ -z "${packages// /}" ] || die "installed, and still not found:" $packages
  python=$(find_python) || die "no Python 3.11 or later with venv and headers was found"
}

# --- Stages 2 and 3: the environment and its packages ---------------------------------------------

# Prints what the build, the package and the dev group require. (pip reads groups since 25.1 only.)
requirements() {
  "$python" - <<'READ'
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
groups = (
    project["build-system"]["requires"],
    project["project"]["dependencies"],
    project["dependency-groups"]["dev"],
)
print(*(line for group in groups for line in group), sep="\n")
READ
}

stage_python() {
  local stamp=$venv/.kvferry-python key wanted
  wanted=$(requirements)
  key=$(printf '%s\n' "$PWD" "$wanted" | sha256sum)
  if [ "$python" = "$venv/bin/python" ]; then
    if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then return; fi
    if ! "$python" -m pip --version >/dev/null 2>&1; then  # An interrupted beginning.
      python=$("$python" -c 'import sys; print(sys._base_executable)')
    fi
  fi
  if [ "$python" != "$venv/bin/python" ]; then
    say "environment $venv from $("$python" --version)"
    "$python" -m venv --clear "$venv"
  fi
  say "Python packages"
  printf '%s\n' "$wanted" | "$venv/bin/python" -m pip install --quiet --requirement /dev/stdin >&2
  rm -f "$venv/.kvferry-native"
  echo "$key" >"$stamp"
}

# --- Stage 4: the extension, built in Release into the environment --------------------------------

stage_native() {
  local stamp=$venv/.kvferry-native key
  # The editable install knows each Python module by its path, so moved ones need a new one.
  key=$({
    find pyproject.toml CMakeLists.txt native bindings tools/page -type f \
      ! -name '*_test.cpp' ! -path 'native/fuzz/*' -print0 |
      sort --zero-terminated | xargs --null sha256sum
    find src -name '*.py' | sort
    command -v npm || true
  } | sha256sum)
  if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then return; fi
  say "native extension (Release)"
  "$venv/bin/python" -m pip install --quiet --no-build-isolation --no-deps \
    --config-settings=cmake.define.KVFERRY_TESTS=ON --config-settings=build.targets=kvferry_python \
    --editable . >&2
  ls "$venv"/lib/python*/site-packages/kvferry/sharing/controller/page/lib/htmx.min.js >/dev/null 2>&1 ||
    say "going on without the controller's page: npm or the package registry is not there"
  echo "$key" >"$stamp"
}

mkdir -p build
exec 9>build/.setup.lock
flock 9
stage_system
stage_python
stage_native
