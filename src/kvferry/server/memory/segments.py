"""Shared segments as files: where they live, their names and locks, and how stale ones are removed.

A segment is a file of /dev/shm, or of a file system of huge pages, that only its user may open. Its
name cannot be guessed. Its server and each session lock one byte of it, far behind the end of every
file; see docs/formats/server.md. The locks are those of open file descriptions, so the kernel ends
them with whoever has them: a segment that no server locks is left of one that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import struct
from pathlib import Path

from kvferry import _native
from kvferry.base.errors import ConfigError

__all__ = ["FIRST_SESSION_LOCK", "create_segment", "directory", "has_server", "hugetlbfs", "sweep"]

_log = logging.getLogger("kvferry.server")

SHARED_MEMORY = Path("/dev/shm")
MOUNTS = Path("/proc/mounts")

# As `kOwnerLock` of native/mem/shared_segment.hpp.
_SERVER_LOCK = 1 << 60
FIRST_SESSION_LOCK = 1 << 61
_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, pid


def has_server(segment: int) -> bool:
    """Whether a server lives that has this open file as a segment.

    Raises:
        OSError: The system does not say.
    """
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _SERVER_LOCK, 1, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(segment, fcntl.F_OFD_GETLK, asked))[0]
    return kind != fcntl.F_UNLCK


def directory(hugepages: bool) -> Path:
    """Where segments are made. Without a file system of huge pages it is shared memory."""
    if hugepages:
        if (place := hugetlbfs()) is not None:
            return place
        _log.warning(
            "no file system of huge pages can be written; using plain shared memory "
            "(mount one with: mount -t hugetlbfs none /dev/hugepages)"
        )
    return SHARED_MEMORY


def hugetlbfs(mounts: Path = MOUNTS) -> Path | None:
    """Where huge pages are files in a directory that we may write to, if anywhere."""
    for line in mounts.read_text().splitlines():
        words = line.split()
        if len(words) > 2 and words[2] == "hugetlbfs" and os.access(words[1], os.W_OK):
            return Path(words[1])
    return None


def create_segment(name: str, size_bytes: int, *, hugepages: bool) -> _native.SharedSegment:
    """A new segment, of which nothing is backed by memory yet.

    Raises:
        ConfigError: The name cannot be.
        OSError: The system refused it.
    """
    if "/" in name or name.startswith("."):
        raise ConfigError(f"shm_name={name!r} is no name of a file; leave out slashes")
    path = directory(hugepages) / f"{name}-{secrets.token_hex(16)}"
    return _native.SharedSegment.create(str(path), size_bytes)


def sweep(name: str, keep: frozenset[str] = frozenset()) -> int:
    """Remove segments of servers that died, except `keep`; how many there were."""
    swept = 0
    for place in {SHARED_MEMORY, directory(hugepages=False)}:
        for path in place.glob(f"{name}-*"):
            if str(path) not in keep and len(path.name) == len(name) + 33 and _abandoned(path):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                    swept += 1
    if swept:
        _log.warning("removed %d shared segments of servers that had died", swept)
    return swept


def _abandoned(path: Path) -> bool:
    try:
        if path.stat().st_uid != os.geteuid():
            return False
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not has_server(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
