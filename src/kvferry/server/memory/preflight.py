"""Before a server starts: whether the system can give the pool the memory that it is to have."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from kvferry.base.errors import ConfigError
from kvferry.base.host import CGROUP, PROC, available_memory_bytes, memory_limit_bytes
from kvferry.config.server import ServerConfig
from kvferry.config.setting import GB
from kvferry.server.memory.segments import MOUNTS, SHARED_MEMORY, has_server, hugetlbfs

__all__ = ["check_shared_memory"]

_log = logging.getLogger("kvferry.server")


def check_shared_memory(
    config: ServerConfig,
    *,
    shm: Path = SHARED_MEMORY,
    proc: Path = PROC,
    cgroup: Path = CGROUP,
    mounts: Path = MOUNTS,
) -> None:
    """Compare the size of the pool with what there is; the files are those of the system.

    A pool that can never fit is refused. One that does not fit now is warned of, since memory is
    taken as it fills and no more than there is.

    Raises:
        ConfigError: The host, a cgroup or shared memory has less; the text names both sizes
            and the way out.
    """
    if config.cache.hugetlb:
        _check_hugepages(config, proc / "meminfo", mounts)
        return
    _check_shm(config, shm)
    limit, now = memory_limit_bytes(proc, cgroup), available_memory_bytes(proc, cgroup)
    if config.l1_bytes > limit:
        raise ConfigError(
            f"l1_size_gb is {_gb(config.l1_bytes)} and this server may take {_gb(limit)} (the "
            "memory of the host, or the limit of its cgroup): the kernel would end it when the "
            "pool has filled; lower --l1-size-gb, or raise the limit (docker run --memory=..., in "
            "Kubernetes resources.limits.memory)"
        )
    now += _left_behind(shm, config.shm_name)
    if config.l1_bytes > now:
        _log.warning(
            "l1_size_gb is %s and %s of memory can be taken now: the pool will end there while "
            "that is so; lower --l1-size-gb, or free memory",
            _gb(config.l1_bytes),
            _gb(now),
        )


def _check_shm(config: ServerConfig, shm: Path) -> None:
    try:
        found = os.statvfs(shm)
    except OSError as error:
        raise ConfigError(f"{shm} cannot be used: {error.strerror}; mount a tmpfs there") from None
    size = found.f_blocks * found.f_frsize
    free = found.f_bavail * found.f_frsize + _left_behind(shm, config.shm_name)
    wanted = config.l1_bytes
    if wanted > free:
        raise ConfigError(
            f"l1_size_gb is {_gb(wanted)} and {shm} has {_gb(free)} free of {_gb(size)}: lower "
            "--l1-size-gb, or make it larger (docker run --shm-size="
            f"{-(-(wanted + size - free) // GB) + 1}g; in Kubernetes an emptyDir with medium "
            f"Memory at {shm}; else mount -o remount,size=... {shm})"
        )


def _left_behind(shm: Path, name: str) -> int:
    """Bytes of stale segments, which the server that starts removes or takes over."""
    found = 0
    for path in shm.glob(f"{name}-*"):
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            facts = os.fstat(handle)
            if facts.st_uid == os.getuid() and not has_server(handle):
                found += facts.st_blocks * 512
        except OSError:
            pass
        finally:
            os.close(handle)
    return found


def _check_hugepages(config: ServerConfig, meminfo: Path, mounts: Path) -> None:
    if hugetlbfs(mounts) is None:
        raise ConfigError(
            "hugetlb is set and no hugetlbfs is mounted where we may write; run mount -t "
            "hugetlbfs none /dev/hugepages, or leave it out"
        )
    facts = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    pages, size_kb = (
        int(facts.get(name, "0").split()[0]) for name in ("HugePages_Free", "Hugepagesize")
    )
    wanted, free = config.l1_bytes, pages * size_kb * 1024
    if wanted > free:
        need = -(-wanted // (size_kb * 1024)) if size_kb else 0
        raise ConfigError(
            f"l1_size_gb is {_gb(wanted)} and huge pages of {_gb(free)} are free: lower "
            f"--l1-size-gb, or set more aside (sysctl vm.nr_hugepages={need})"
        )


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / GB:.2f} GB"
