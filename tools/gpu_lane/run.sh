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
  mkdir -p "$place/lib"
  known=$(ldconfig -p)
  for library in libssl.so.3 libcrypto.so.3 libzstd.so.1; do  # what our extension is linked with
    [[ $known == *"$library"* ]] || cp "$place/native/servers/lib/$library" "$place/lib/"
  done
  python3 -m compileall -q -j 0 "$place/vllm" "$place/site" src >/dev/null 2>&1
  touch "$place/done"
  echo "== unpacked within $SECONDS s"
fi
cp "$place"/native/_native.*.so src/kvferry/
export PYTHONPATH="$PWD/tools:$PWD/src:${GPU_LANE_VLLM:-$place/vllm}:$place/site"
export PATH="$place/native/servers:$PATH" KVFERRY_BIN_DIR="$place/native"
export KVFERRY_SERVER_BINARY="$place/native/servers/valkey-server"
cuda=$(python3 -c "import importlib.util as u; s = u.find_spec('nvidia'); \
print(':'.join(f'{p}/cu13/lib' for p in s.submodule_search_locations) if s else '')")
export LD_LIBRARY_PATH="$place/lib:$cuda:${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64"
export GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
export PYTHONUNBUFFERED=1 CUDA_MODULE_LOADING=LAZY
export TRITON_CACHE_DIR="$place/triton" VLLM_CACHE_ROOT="$place/vllm-cache" HOME="${HOME:-/root}"
ulimit -n 65536 2>/dev/null; ulimit -l unlimited 2>/dev/null
if command -v nvidia-smi >/dev/null && [ "$(id -u)" = 0 ] &&
  [ "$(df --output=size -m /dev/shm | tail -1)" -lt 100000 ]; then
  mount -o remount,size=110G /dev/shm || true
fi
out=${OUT:-build/gpu-report}
mkdir -p "$out"
python3 -m gpu_lane report --out "$out" "$@" 2>&1 | tee -a "$out/report.txt"
exit "${PIPESTATUS[0]}"
