#!/usr/bin/env bash
# Builds every native/fuzz/*_fuzz.cpp with libFuzzer and runs each for SECONDS (default 60).
#
# Starts from native/fuzz/corpus/<name>; what it finds new goes to build/fuzz/corpus/<name>, and an
# input that breaks something to build/fuzz/<name>-crash-*. Exit 1 on the first such input.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}

if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }' |
  clang++ -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null; then
  echo "fuzz: needs clang++ with libFuzzer (Debian, Ubuntu, as root: apt-get install clang)" >&2
  exit 1
fi
cmake --preset fuzz --log-level=WARNING
cmake --build --preset fuzz
for source in native/fuzz/*_fuzz.cpp; do
  name=$(basename "$source" .cpp)
  seeds=native/fuzz/corpus/$name
  found=build/fuzz/corpus/$name
  mkdir -p "$found"
  [ -d "$seeds" ] || seeds=
  echo "fuzz: $name for $seconds s" >&2
  "build/fuzz/$name" -max_total_time="$seconds" -timeout=10 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz/$name-" "$found" ${seeds:+"$seeds"}
done
