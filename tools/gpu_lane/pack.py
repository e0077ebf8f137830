"""Makes .gpu, which travels to the GPU machine beside the checkout: archives of about 45 MB.

    PYTHONPATH=tools .venv/bin/python -m gpu_lane pack [--python python3.12]

native.tar.xz   our extension and programs for that machine's Python, and both kinds of servers
vllm.tar.xz     vLLM's wheel: its Python, and the kernels of dense models for one kind of GPU
site.tar.xz     what vLLM and kvferry import and the machine lacks, and stand-ins for what is only
                named

Downloads go to build/gpu and are used again. Needs pip, a compiler, and a Python of the machine's
version with headers. Talks on stderr.
"""

from __future__ import annotations

import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from gpu_lane.fatbin import without_other_code
from kvferry.embedded.program import find_server

__all__ = ["FOLDER", "NEEDS", "ROOT", "STAND_INS", "VLLM", "is_left_out", "libraries_of", "pack"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".gpu"
_CACHE = ROOT / "build" / "gpu"
VLLM = "0.22.1"  # goes with torch 2.11, which the machine has
_GPU = 90  # H100, H200

# Missing on the machine, whose packages are listed where it is lent. Pinned where a later one
# needs more.
NEEDS = (
    *("msgspec", "pyzmq", "cachetools", "cbor2", "pybase64", "setproctitle", "blake3", "gguf"),
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "partial-json-parser"),
    *("fastapi==0.121.0", "starlette==0.49.1", "uvicorn", "python-json-logger"),
    *("openai==2.8.0", "openai-harmony", "distro", "jiter", "sniffio"),
)
# Imported at the start, used for structured output alone.
STAND_INS = ("llguidance", "xgrammar")
_STAND_IN = '''"""Stands in for a package that is named at the start and not used."""


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
'''
_LEFT_OUT = (
    *("vllm/vllm-rs", "vllm/benchmarks/datasets", "vllm/third_party/deep_gemm"),
    *("vllm/_flashmla_C.abi3.so", "vllm/_flashmla_extension_C.abi3.so"),
    *("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm/kernels/helion/configs"),
    *("vllm/model_executor/layers/fused_moe/configs", "vllm/entrypoints/serve/instrumentator"),
    "vllm/model_executor/layers/quantization/utils/configs",
)
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux2014_x86_64")
# Every machine has its own, which go together.
_OF_ALL = (
    "ld-linux",
    "libc.so",
    "libm.so",
    "libpthread",
    "libdl.",
    "librt.",
    "libstdc++",
    "libgcc_s",
)
_WITH_LIBRARIES = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$here/lib exec "$here/{name}.program" "$@"
"""


def pack(python: str, only: str = "") -> None:
    """Make the archives anew.

    Args:
        python: Of the machine's version, 3.12, with headers.
        only: One of them.
    """
    _CACHE.mkdir(parents=True, exist_ok=True)
    FOLDER.mkdir(exist_ok=True)
    for name, make in {"native": _native, "vllm": _vllm, "site": _site}.items():
        if only not in ("", name):
            continue
        target = FOLDER / f"{name}.tar.xz"
        target.write_bytes(_archive(make(python)))
        _say(f"{name}: {target.stat().st_size / 1e6:.1f} MB")


def is_left_out(name: str) -> bool:
    """Whether a file of vLLM's wheel stays behind."""
    path = PurePosixPath(name)
    return any(path.is_relative_to(left) for left in _LEFT_OUT)


def libraries_of(program: Path) -> list[Path]:
    """The shared libraries of a program that another machine may lack."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    found = [line.split("=>")[1].split()[0] for line in said.splitlines() if "=> /" in line]
    return [Path(one) for one in found if not Path(one).name.startswith(_OF_ALL)]


Files = Iterator[tuple[str, bytes, int]]  # name, content, mode


def _native(python: str) -> Files:
    build = _CACHE / "builder"
    if not (build / "bin" / "python").exists():
        _run(python, "-m", "venv", build)
        _run(build / "bin" / "python", *_PIP, "install", "scikit-build-core", "nanobind")
        _run(build / "bin" / "python", *_PIP, "install", "cmake", "ninja")
    wheels = _CACHE / "ours"
    shutil.rmtree(wheels, ignore_errors=True)
    settings = f"--config-settings=build-dir={ROOT / 'build' / 'gpu-native'}"
    make = [*_PIP, "wheel", "--no-build-isolation", "--no-deps", settings, "-w", wheels, ROOT]
    _run(build / "bin" / "python", *make, first=build / "bin")
    with zipfile.ZipFile(next(wheels.glob("kvferry-*.whl"))) as wheel:
        for name in wheel.namelist():
            if name.endswith(".so") or "/bin/" in name:
                yield PurePosixPath(name).name, wheel.read(name), 0o755
    servers = [Path(find_server().path), *map(Path, filter(None, [shutil.which("redis-server")]))]
    for server in servers:
        path = server.resolve()
        yield f"servers/{server.name}.program", path.read_bytes(), 0o755
        yield f"servers/{server.name}", _WITH_LIBRARIES.format(name=server.name).encode(), 0o755
        for library in libraries_of(path):
            yield f"servers/lib/{library.name}", library.read_bytes(), 0o644


def _vllm(python: str) -> Files:
    wheels = _CACHE / "vllm"
    _download(python, wheels, [f"vllm=={VLLM}"])
    with zipfile.ZipFile(next(wheels.glob(f"vllm-{VLLM}-*.whl"))) as wheel:
        for name in wheel.namelist():
            if name.endswith("/") or is_left_out(name):
                continue
            data: bytes | bytearray = wheel.read(name)
            if name.endswith(".so"):
                data = bytearray(data)
                left = without_other_code(data, _GPU)
                _say(f"{name}: {left / 1e6:.1f} MB of code for sm_{_GPU}")
            yield name, bytes(data), 0o644


def _site(python: str) -> Files:
    wheels = _CACHE / "site"
    _download(python, wheels, NEEDS)
    for path in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if not name.endswith(("/", ".pyi")):
                    yield name, wheel.read(name), 0o644
    for name in STAND_INS:
        yield f"{name}.py", _STAND_IN.encode(), 0o644


_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def _download(python: str, folder: Path, names: Sequence[str]) -> None:
    if folder.exists():
        return
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    choice = ["--python-version", "3.12", "--only-binary=:all:", "--no-deps"]
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    _run(python, *_PIP, "download", *choice, *platforms, "-d", unfinished, *names)
    unfinished.rename(folder)


def _archive(files: Files) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, data, mode in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    return lzma.compress(plain.getbuffer(), preset=6)


def _run(*words: object, first: Path | None = None) -> None:
    environment = dict(os.environ)
    if first is not None:
        environment["PATH"] = f"{first}{os.pathsep}{environment['PATH']}"
    subprocess.run([str(word) for word in words], check=True, env=environment, stdout=sys.stderr)


def _say(what: str) -> None:
    print(f"gpu-lane: {what}", file=sys.stderr, flush=True)
