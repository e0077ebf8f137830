"""Makes the environment of an engine, and puts this checkout's kvferry into it.

    python = install("vllm-0.32.0")          # build/engines/vllm-0.32.0/bin/python
    subprocess.run([python, ...], env=environment_for(python))

Every stage looks at what is there and does the rest: a second run takes a moment, and one that was
interrupted begins that environment anew. Processes that do this at the same time wait for each
other. Talks on stderr.

KVFERRY_ENGINES_DIR      the folder of environments, build/engines by default. An environment that
                         lies there and that we did not make is used as it is, and not changed.
KVFERRY_ENGINE_PYTHONPATH=1   do not install kvferry; engines find src/ by PYTHONPATH (its native
                         module has to lie there), so that an edit counts at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine_lane.recipes import RECIPES, Patch, Recipe
from engine_lane.stand_ins import make_stand_ins
from engine_lane.wheel import PACKAGES, ROOT, key_of_package, make_metadata, make_wheel

__all__ = ["InstallError", "environment_for", "home", "install", "patch_file"]

_STAMP = ".kvferry-engine"
_STAMP_OF_US = ".kvferry-wheel"
_INDEX_WAIT_S = 20
_INSTALL_LIMIT_S = 1800


class InstallError(Exception):
    """An engine cannot be installed here; the message is the reason, in one sentence."""


def home() -> Path:
    """The folder of environments and models."""
    return Path(os.environ.get("KVFERRY_ENGINES_DIR") or ROOT / "build" / "engines").absolute()


def install(name: str) -> Path:
    """Make sure that an engine is there; its interpreter.

    Raises:
        InstallError: It cannot be installed, say because the package index is out of reach.
    """
    recipe = RECIPES[name]
    place = home() / name
    home().mkdir(parents=True, exist_ok=True)
    with _locked(home() / f".{name}.lock"):
        python = place / "bin" / "python"
        stamp, unfinished = place / _STAMP, home() / f".{name}.unfinished"
        if python.exists() and not stamp.exists() and not unfinished.exists():
            return python  # somebody else's
        key = _key_of(recipe)
        try:
            if unfinished.exists() or not python.exists() or stamp.read_text() != key:
                unfinished.touch()
                _make(name, recipe, place)
                stamp.write_text(key)
                unfinished.unlink()
            if not by_path(python):
                _install_us(place)
        except (OSError, subprocess.CalledProcessError) as error:  # no compiler, no native module
            raise InstallError(f"{name}: {error}") from error
        return python


def by_path(python: Path) -> bool:
    """Whether an engine finds kvferry by PYTHONPATH, and not in its environment."""
    ours = (python.parents[1] / _STAMP).exists()
    return not ours or os.environ.get("KVFERRY_ENGINE_PYTHONPATH", "") not in ("", "0")


def environment_for(python: Path, *paths: Path) -> dict[str, str]:
    """Variables for a program of this interpreter: of ours, plus where it finds kvferry.

    Args:
        paths: Further folders with modules.
    """
    folders = [*paths]
    if by_path(python):  # its entry points are read there, and not where an older wheel lies
        metadata = ROOT / "build" / "metadata"
        make_metadata(metadata)
        folders += [PACKAGES, metadata]
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in folders)
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return environment


def _make(name: str, recipe: Recipe, place: Path) -> None:
    """A new environment; what was there is removed."""
    uv = _uv()
    _say(f"{name}: {recipe.engine} {recipe.version}")
    shutil.rmtree(place, ignore_errors=True)
    _run([uv, "venv", "--quiet", "--python", sys.executable, place])
    python = place / "bin" / "python"
    overrides = place / "overrides.txt"
    overrides.write_text(recipe.overrides())
    add = [uv, "pip", "install", "--quiet", "--python", python]
    _run([*add, "--overrides", overrides, *recipe.requires, *requirements()])
    if recipe.bare:
        _run([*add, "--no-deps", *recipe.bare])
    modules = Path(
        _run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    )
    made = make_stand_ins(modules / "torch" / "lib")
    _say(f"{name}: {len(made)} stand-ins for CUDA's libraries")
    for distribution, version in recipe.names.items():
        folder = modules / f"{distribution}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (folder / "METADATA").write_text(text)
    for patch in recipe.patches:
        patch_file(modules, patch)
    imports = "; ".join(f"import {module}" for module in recipe.modules)
    _run([python, "-c", imports])


def patch_file(modules: Path, patch: Patch) -> None:
    """Change one file of an environment, if it is not changed yet.

    The installer's cache has a hard link to the same file, so the changed one is a new file.
    """
    file = modules / patch.path
    source = file.read_text()
    if patch.old not in source and patch.new not in source:
        raise InstallError(f"{patch.path} is not what the recipe's patch is for")
    file.unlink()
    file.write_text(source.replace(patch.old, patch.new))


def _install_us(place: Path) -> None:
    """kvferry of this checkout, with the native module that is built already."""
    stamp = place / _STAMP_OF_US
    key = key_of_package()
    if stamp.exists() and stamp.read_text() == key:
        return
    with tempfile.TemporaryDirectory() as scratch:
        wheel = make_wheel(Path(scratch))
        add = ["pip", "install", "--quiet", "--no-deps", "--reinstall", "--python"]
        _run([_uv(), *add, place / "bin" / "python", wheel])
    stamp.write_text(key)


def requirements() -> list[str]:
    """What kvferry and its server need, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]
    return [*project["dependencies"], *extra["server"], *extra["numpy"]]


def _key_of(recipe: Recipe) -> str:
    """Changes with all that goes into an environment, except kvferry."""
    parts = [repr(recipe), recipe.overrides(), sys.version, *requirements()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _uv() -> Path:
    """The installer, which reads override files: one on PATH, else one of our own."""
    if found := shutil.which("uv"):
        return Path(found)
    place = home() / ".uv"
    if not (place / "bin" / "uv").exists():
        _say("the installer uv")
        _run([sys.executable, "-m", "venv", place])
        wait = ["--retries", "1", "--timeout", _INDEX_WAIT_S]
        _run([place / "bin" / "python", "-m", "pip", "install", "--quiet", *wait, "uv"])
    return place / "bin" / "uv"


def _run(command: Iterable[object]) -> str:
    words = [str(word) for word in command]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_NO_PROGRESS": "1"}
    environment["UV_HTTP_TIMEOUT"] = str(_INDEX_WAIT_S)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_INSTALL_LIMIT_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{words[0]} did not run to its end: {error}") from error
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-6:]
        raise InstallError(f"`{' '.join(words[:4])} ...` failed: {' / '.join(last)}")
    return done.stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(what: str) -> None:
    print(f"engines: {what}", file=sys.stderr, flush=True)
