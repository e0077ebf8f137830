"""What this process may use of its host: memory and cores, cgroup limits included.

A container sees the whole machine in /proc/meminfo and in os.cpu_count(); its limits stand in the
cgroup file systems, version 2 or 1, at any level between its own group and the root. A file that
cannot be read sets no limit. The root paths are arguments so that tests can show other hosts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["CGROUP", "PROC", "available_memory_bytes", "memory_limit_bytes", "usable_cores"]

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Memory that can be taken now without swapping and without meeting a cgroup limit."""
    available = _meminfo_available_bytes(proc)
    for group, is_v2, limit in _memory_limits(proc, cgroup):
        used = _number(group / ("memory.current" if is_v2 else "memory.usage_in_bytes"))
        if used is None:
            continue
        # Page cache that the kernel can drop at once counts as used there; not for us.
        cache = _field(group / "memory.stat", "inactive_file" if is_v2 else "total_inactive_file")
        available = min(available, max(0, limit - max(0, used - cache)))
    return available


def memory_limit_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Memory that can be taken at most, by all processes that share our limits: whoever takes more
    is ended by the kernel."""
    limits = [limit for _, _, limit in _memory_limits(proc, cgroup)]
    if total_kib := _field(proc / "meminfo", "MemTotal:"):
        limits.append(total_kib * 1024)
    return min(limits, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def usable_cores(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Cores that our affinity mask and CPU quota leave us, at least 1."""
    cores = len(os.sched_getaffinity(0))
    for group, is_v2 in _groups("cpu", proc, cgroup):
        if is_v2:
            quota_us, _, period_us = (_text(group / "cpu.max") or "max").partition(" ")
        else:
            quota_us = _text(group / "cpu.cfs_quota_us") or "-1"
            period_us = _text(group / "cpu.cfs_period_us") or ""
        if quota_us.isdigit() and period_us.isdigit() and int(period_us) > 0:
            cores = min(cores, int(quota_us) // int(period_us))
    return max(1, cores)


def _memory_limits(proc: Path, cgroup: Path) -> Iterator[tuple[Path, bool, int]]:
    """Each group of ours that limits memory, whether it is version 2, and its limit in bytes.

    Above `memory.high` a group is slowed down until it hardly runs, so that is a limit too.
    """
    for group, is_v2 in _groups("memory", proc, cgroup):
        names = ("memory.max", "memory.high") if is_v2 else ("memory.limit_in_bytes",)
        limits = [limit for name in names if (limit := _number(group / name)) is not None]
        if limits:
            yield group, is_v2, min(limits)


def _groups(controller: str, proc: Path, cgroup: Path) -> Iterator[tuple[Path, bool]]:
    """Our group and its ancestors in this controller's hierarchy; True where it is version 2."""
    for line in (_text(proc / "self/cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        is_v2 = number == "0"
        if not is_v2 and controller not in controllers.split(","):
            continue
        top = cgroup if is_v2 else cgroup / controller
        # Inside a container the path may be that of the host, absent here: start at the top.
        own = top / path.lstrip("/")
        group = own if own.is_dir() and ".." not in own.parts else top
        yield group, is_v2
        while group != top:
            group = group.parent
            yield group, is_v2


def _meminfo_available_bytes(proc: Path) -> int:
    kib = _field(proc / "meminfo", "MemAvailable:")
    if kib:
        return kib * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _field(path: Path, name: str) -> int:
    for line in (_text(path) or "").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name:
            return int(words[1])
    return 0


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
