#!/usr/bin/env bash
# On the GPU machine, in the repository's root: unpack .gpu, then the report. Results go to $OUT.
#
#   bash tools/gpu_lane/run.sh --half 1         or --half 2, or --half smoke --profile smoke
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
place=${GPU_LANE_PLACE:-/tmp/kvferry-gpu}
if [ ! -e "$place/done" ]; then
  mkdir -p "$place"
  python3 - "$place" <<'UNPACK'
import sys, tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

def unpack(path):
    with tarfile.open(path) as tar:
        tar.extractall(Path(sys.argv[1], path.name.removesuffix(".tar.xz")), filter="tar")

with ThreadPoolExecutor(4) as pool:
    list(pool.map(unpack, Path(".gpu").glob("*.tar.xz")))
UNPACK
  cp "$place"/native/_native.*.so src/kvferry/
  mkdir -p "$place/lib"
  for library in libssl.so.3 libcrypto.so.3 libzstd.so.1; do  # what our extension is linked with
    ldconfig -p | grep -q "$library" || cp "$place/native/servers/lib/$library" "$place/lib/"
  done
  python3 -m compileall -q -j 0 "$place/vllm" "$place/site" src >/dev/null 2>&1
  touch "$place/done"
fi
export PYTHONPATH="$PWD/tools:$PWD/src:$PWD:${GPU_LANE_VLLM:-$place/vllm}:$place/site"
export PATH="$place/native/servers:$PATH" KVFERRY_BIN_DIR="$place/native"
export KVFERRY_SERVER_BINARY="$place/native/servers/valkey-server"
[ -z "$(ls -A "$place/lib")" ] || export LD_LIBRARY_PATH="$place/lib:${LD_LIBRARY_PATH:-}"
export PYTHONUNBUFFERED=1 CUDA_MODULE_LOADING=LAZY
export TRITON_CACHE_DIR="$place/triton" VLLM_CACHE_ROOT="$place/vllm-cache" HOME="${HOME:-/root}"
ulimit -n 65536 2>/dev/null; ulimit -l unlimited 2>/dev/null
if [ "$(df --output=size -m /dev/shm | tail -1)" -lt 100000 ] && [ "$(id -u)" = 0 ] &&
  [ "$(free -g | awk '/Mem:/ {print $2}')" -gt 100 ]; then
  mount -o remount,size=110G /dev/shm || true
fi
out=${OUT:-build/gpu-report}
mkdir -p "$out"
python3 -m gpu_lane report --out "$out" "$@" 2>&1 | tee -a "$out/report.txt"
exit "${PIPESTATUS[0]}"
