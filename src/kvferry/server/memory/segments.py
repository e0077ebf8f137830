"""Where shared segments live, what they are called, and how those of dead servers go.

A segment is a file of /dev/shm, or of a file system of huge pages, that only its user may open. Its
name cannot be guessed. The server holds a lock on it for as long as it lives, so whoever can take
that lock has found the segment of a server that was killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

from kvferry import _native
from kvferry.base.errors import ConfigError
from kvferry.server.memory.locks import has_server
from kvferry.server.memory.room import hugetlbfs

__all__ = ["create_segment", "directory", "sweep"]

_log = logging.getLogger("kvferry.server")

SHARED_MEMORY = Path("/dev/shm")


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


def create_segment(
    name: str, size_bytes: int, *, hugepages: bool, numa: int | None
) -> _native.SharedSegment:
    """A new segment, of which nothing is backed by memory yet.

    Raises:
        ConfigError: The node does not exist, or the name cannot be.
        OSError: The system refused it.
    """
    if "/" in name or name.startswith("."):
        raise ConfigError(f"shm_name={name!r} is no name of a file; leave out slashes")
    path = directory(hugepages) / f"{name}-{secrets.token_hex(16)}"
    return _native.SharedSegment.create(str(path), size_bytes, numa=-1 if numa is None else numa)


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
