"""A wheel of this checkout with the native module that is built already, in a moment.

`pip wheel` would compile: the development environment has an editable build, which it does not
reuse. An engine's environment has the same interpreter, so the same module will do.
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

__all__ = ["PACKAGES", "ROOT", "key_of_package", "make_wheel"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "src"


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
    return found


def key_of_package() -> str:
    """Changes with every file of the package."""
    made = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    for name, path in package_files().items():
        made.update(f"\0{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return made.hexdigest()


def make_wheel(folder: Path) -> Path:
    """Write the wheel into a folder; its path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = f"kvferry-{kvferry.__version__}.dist-info"
    tag = _tag()
    metadata = [
        "Metadata-Version: 2.1",
        "Name: kvferry",
        f"Version: {kvferry.__version__}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {line}" for line in project["dependencies"]),
    ]
    scripts = [f"{name} = {target}" for name, target in project["scripts"].items()]
    texts = {
        "METADATA": "\n".join(metadata),
        "WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}",
        "entry_points.txt": "\n".join(["[console_scripts]", *scripts]),
    }
    files = {name: path.read_bytes() for name, path in package_files().items()}
    files |= {f"{info}/{name}": f"{text}\n".encode() for name, text in texts.items()}
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = folder / f"kvferry-{kvferry.__version__}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


def _digest(data: bytes) -> str:
    digest = hashlib.sha256(data).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _tag() -> str:
    # ".cpython-311-x86_64-linux-gnu.so"
    _, version, *platform = EXTENSION_SUFFIXES[0].split(".")[1].split("-")
    interpreter = f"cp{version}"
    return f"{interpreter}-{interpreter}-linux_{platform[0]}"
