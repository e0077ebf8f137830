"""The report: parts in their order, each a process with a limit of its own.

    python -m gpu_lane report --half 1 --out FOLDER            on the machine: `run.sh`
    python -m gpu_lane report --profile cpu --python PYTHON    here, with a small model

A part that fails or takes too long costs the others nothing. Every row is in FOLDER/PART.jsonl as
soon as it is there; at the end all rows are printed once more, and what engines said lies in
FOLDER/logs.tar.xz.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_lane.blocks import blocks
from gpu_lane.client import client
from gpu_lane.doors import Lane, write_model
from gpu_lane.engines import DOORS, Sizes, documents, hits, same_tokens
from gpu_lane.model_info import keep_model_info
from gpu_lane.sheet import Sheet
from kvferry.base.errors import StoreError
from kvferry.embedded.program import ServerBinary, find_server

__all__ = ["DOORS", "HALVES", "LIMITS_S", "PROFILES", "Options", "run", "run_part"]

# Seconds. In each half the part that says most comes first.
LIMITS_S = {"check": 90, "hits": 215, "client": 80, "blocks": 25, "documents": 255, "same": 45}
HALVES = {
    "1": ("check", "hits", "client", "blocks"),
    "2": ("documents", "same"),
    "smoke": ("check", "hits"),
    "all": ("check", "hits", "client", "blocks", "documents", "same"),
}
_GRACE_S = 12.0
_MIB = 1 << 20


@dataclass(frozen=True)
class Profile:
    """Sizes of everything, for one kind of machine."""

    model: str
    sizes: Sizes
    block_size: int
    value_bytes: int
    values: int
    chunks: int


PROFILES = {
    "gpu": Profile(
        "8b",
        Sizes(
            lengths={8192: 4, 16_384: 4, 40_000: 2},
            memory_gb=10.0,
            small_gb=6.0,
            kv_gb=6.0,
            document=40_000,
            documents=6,
            answer=100,
            documents_kv_gb=8.0,
            documents_gb=33.0,
            busy=8192,
        ),
        block_size=16,
        value_bytes=4 * _MIB,
        values=64,
        chunks=16,
    ),
    # Is everything there, and does it answer? Less than two minutes.
    "smoke": Profile(
        "8b",
        Sizes(
            lengths={4096: 2, 8192: 1},
            memory_gb=3.0,
            small_gb=1.3,
            kv_gb=2.0,
            document=8192,
            documents=3,
            answer=20,
            documents_kv_gb=2.0,
            documents_gb=3.5,
            busy=4096,
        ),
        block_size=16,
        value_bytes=4 * _MIB,
        values=16,
        chunks=4,
    ),
    "cpu": Profile(
        "tiny",
        Sizes(
            lengths={512: 2, 1024: 1},
            memory_gb=0.0625,
            small_gb=0.0026,
            kv_gb=1.0,
            document=1024,
            documents=2,
            answer=8,
            documents_kv_gb=1.0,
            documents_gb=0.0625,
            busy=512,
        ),
        block_size=32,
        value_bytes=_MIB,
        values=8,
        chunks=2,
    ),
}


# What a hit in memory costs, beside vLLM's own tier: two minutes.
PROFILES["memory"] = replace(
    PROFILES["gpu"],
    sizes=replace(PROFILES["gpu"].sizes, lengths={8192: 3, 40_000: 2}, memory_gb=8.0, small_gb=0.0),
)


@dataclass(frozen=True)
class Options:
    """What was asked for.

    Attributes:
        profile: Of `PROFILES`.
        parts: Of `LIMITS_S`, in their order.
        out: Where results go.
        python: The engines' interpreter.
        slow: Limits are so many times longer, for a machine that is slow or busy.
        doors: Those of `hits`.
    """

    profile: str
    parts: Sequence[str]
    out: Path
    python: Path
    slow: float = 1.0
    doors: Sequence[str] = DOORS

    @property
    def device(self) -> str:
        """Where tensors are."""
        return "cpu" if self.profile == "cpu" else "cuda"


def run(options: Options) -> int:
    """All parts, one after the other; 0 if each came to its end."""
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for part in options.parts:
        limit_s = LIMITS_S[part] * options.slow
        words = [sys.executable, "-u", "-m", "gpu_lane", "part", part, "--out", options.out]
        words += ["--profile", options.profile, "--python", options.python, "--slow", options.slow]
        words += ["--doors", ",".join(options.doors)]
        began = time.monotonic()
        process = subprocess.Popen([str(word) for word in words], start_new_session=True)
        try:
            code: int | str = process.wait(limit_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            code = _end(process)
        print(f"== {part}: {code or 'done'}, {time.monotonic() - began:.0f} s")
        if code:
            failed.append(part)
    _keep_logs(options.out)
    for path in sorted(options.out.glob("*.jsonl")):
        print(f"== {path.name}: {len(path.read_text().splitlines())} rows")
    print(f"== parts that failed: {' '.join(failed) or 'none'}", flush=True)
    return 1 if failed else 0


def run_part(part: str, options: Options) -> None:
    """One part, in this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))  # so that servers and engines end
    profile = PROFILES[options.profile]
    sheet = Sheet(options.out, part, LIMITS_S[part] * options.slow)
    logs = options.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    keep_model_info(os.environ)
    with tempfile.TemporaryDirectory(prefix="gpu-lane-") as folder:
        longest = max(*profile.sizes.lengths, profile.sizes.document) + 512
        model = write_model(Path(folder, "model"), profile.model, longest)
        paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        if options.device == "cpu":
            paths.append(str(Path(__file__).parents[2] / "tests" / "engines" / "plugins"))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONHASHSEED": "0",  # vLLM 0.22 seeds its hashes with it
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_LOGGING_COLOR": "0",
            "TORCH_COMPILE_DISABLE": "1",  # eager: compiling takes longer than what is measured
        }
        lane = Lane(
            options.python,
            options.device,
            _device_gb(options.device),
            environment,
            model,
            profile.block_size,
            logs,
            options.slow,
        )
        sizes = profile.sizes
        todo: dict[str, Callable[[], None]] = {
            "check": lambda: _check(sheet, lane, LIMITS_S[part] * options.slow),
            "hits": lambda: hits(sheet, lane, find_server(), sizes, options.doors),
            "client": lambda: client(sheet, _servers(), profile.value_bytes, profile.values),
            "blocks": lambda: blocks(sheet, options.device, profile.chunks, 7),
            "documents": lambda: documents(sheet, lane, find_server(), sizes),
            "same": lambda: same_tokens(sheet, lane, sizes),
        }
        todo[part]()


_CHECK = """
import time; began = time.monotonic()
import platform, torch
print("python", platform.python_version(), "torch", torch.__version__, flush=True)
if torch.cuda.is_available():
    print(torch.cuda.get_device_name(), torch.cuda.get_device_capability(), flush=True)
    ones = torch.ones(64, 64, device="cuda")
    print("matrix", float((ones @ ones)[0, 0]), flush=True)
import kvferry._native
print("native", kvferry._native.__file__, flush=True)
import vllm
from vllm.platforms import current_platform
print("vllm", vllm.__version__, current_platform.device_name, f"{time.monotonic() - began:.1f} s")
if torch.cuda.is_available():
    import vllm._C, vllm._C_stable_libtorch
    from vllm.vllm_flash_attn import flash_attn_interface as f
    print("FA3", f.FA3_AVAILABLE, f.FA3_UNAVAILABLE_REASON, flush=True)
    out, x, w = (torch.ones(2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    torch.ops._C.rms_norm(out, x, w[0], 1e-6)
    print("rms_norm", float(out[0, 0]), flush=True)
from vllm.model_executor.models.registry import ModelRegistry
ModelRegistry.models["LlamaForCausalLM"].inspect_model_cls()  # kept for the engines to come
print("inspected", f"{time.monotonic() - began:.1f} s", flush=True)
"""
_SYSTEM = (
    "nproc; ulimit -n; ulimit -l; df -h /dev/shm /tmp | tail -2; free -g | head -2; "
    "grep Huge /proc/meminfo | head -3; cat /sys/kernel/mm/transparent_hugepage/enabled; "
    "nvidia-smi --query-gpu=name,memory.total,memory.used,driver_version --format=csv,noheader; "
    "gcc --version | head -1"
)


def _check(sheet: Sheet, lane: Lane, limit_s: float) -> None:
    """The machine, and whether what was packed runs there."""
    said = subprocess.run(["sh", "-c", _SYSTEM], capture_output=True, text=True, timeout=20)
    sheet.row("machine", said=said.stdout)
    for binary in _servers():
        sheet.row("server", kind=binary.kind, version=binary.version)
    checked = subprocess.run(  # what it says is seen even if it takes too long
        [lane.python, "-P", "-c", _CHECK], env=dict(lane.environment), timeout=limit_s
    )
    sheet.row("packed", runs=int(not checked.returncode))
    if checked.returncode:
        raise SystemExit(checked.returncode)


def _device_gb(device: str) -> float:
    if device == "cpu":
        return 42.0  # room for two engines at a time
    ask = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    said = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True).stdout
    return float(said.split()[0]) / 1024


def _servers() -> list[ServerBinary]:
    found = [find_server()]
    redis = shutil.which("redis-server")
    try:
        return [*found, find_server(redis)] if redis else found
    except StoreError:
        return found


def _end(process: subprocess.Popen[bytes]) -> str:
    """SIGTERM, so that it ends what it started; then SIGKILL to its session."""
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "took too long"


def _keep_logs(out: Path) -> None:
    """One file for all logs: few files come back from such a machine."""
    logs = out / "logs"
    if logs.is_dir():
        with tarfile.open(out / "logs.tar.xz", "w:xz") as tar:
            tar.add(logs, "logs")
        shutil.rmtree(logs)
