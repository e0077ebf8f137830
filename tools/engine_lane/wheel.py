"""A wheel of this checkout with the native parts that are built already, in a moment.

`pip wheel` would compile: the development environment has an editable build, which it does not
reuse. An engine's environment has the same interpreter, so the same module will do, and the same
programs of the benchmarks.
"""

from __future__ import annotations

import base64
import hashlib
import tomllib
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import kvferry
from kvferry_lab.bench.programs import find_program

__all__ = ["PACKAGES", "ROOT", "key_of_package", "make_metadata", "make_wheel"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "src"
_PROGRAMS = ("delay", "floor", "load")
_PLAIN, _PROGRAM = 0o100644, 0o100755  # modes of files


def package_files() -> dict[str, Path]:
    """What belongs to the package: {name in the wheel: file}."""
    found = {
        str(path.relative_to(PACKAGES)): path
        for pattern in ("*.py", "*.pyi", "py.typed")
        for path in sorted((PACKAGES / "kvferry").rglob(pattern))
    }
    spec = find_spec("kvferry._native")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the native module is not built: run `make setup`")
    found[f"kvferry/_native{EXTENSION_SUFFIXES[0]}"] = Path(spec.origin)
    return found | {f"kvferry/bin/kvferry-{name}": Path(find_program(name)) for name in _PROGRAMS}


def key_of_package() -> str:
    """Changes with every file of the package."""
    made = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    for name, path in package_files().items():
        made.update(f"\0{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return made.hexdigest()


def make_wheel(folder: Path) -> Path:
    """Write the wheel into a folder; its path."""
    tag, info = _tag(), _info()
    texts = {
        **_metadata(),
        "WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}",
    }
    files = {name: path.read_bytes() for name, path in package_files().items()}
    files |= {f"{info}/{name}": f"{text}\n".encode() for name, text in texts.items()}
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = folder / f"kvferry-{kvferry.__version__}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (_PROGRAM if "/bin/" in name else _PLAIN) << 16
            archive.writestr(entry, data)
    return wheel


def make_metadata(folder: Path) -> None:
    """Write what an installed package says of itself, for a path where the package lies bare.

    Args:
        folder: Has the folder ``kvferry-VERSION.dist-info`` then; for ``sys.path``.
    """
    place = folder / _info()
    place.mkdir(parents=True, exist_ok=True)
    for name, text in _metadata().items():
        path = place / name
        if not path.exists() or path.read_text() != f"{text}\n":
            path.write_text(f"{text}\n")


def _info() -> str:
    return f"kvferry-{kvferry.__version__}.dist-info"


def _metadata() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        "Metadata-Version: 2.1",
        "Name: kvferry",
        f"Version: {kvferry.__version__}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {line}" for line in project["dependencies"]),
    ]
    points: list[str] = []
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    for group, named in groups.items():
        points += [f"[{group}]", *(f"{name} = {target}" for name, target in named.items()), ""]
    return {"METADATA": "\n".join(lines), "entry_points.txt": "\n".join(points)}


def _digest(data: bytes) -> str:
    digest = hashlib.sha256(data).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _tag() -> str:
    # ".cpython-311-x86_64-linux-gnu.so"
    _, version, *platform = EXTENSION_SUFFIXES[0].split(".")[1].split("-")
    interpreter = f"cp{version}"
    return f"{interpreter}-{interpreter}-linux_{platform[0]}"
