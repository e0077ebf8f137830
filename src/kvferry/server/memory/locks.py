"""The bytes of a segment that its server and its sessions lock; see docs/formats/server.md.

They lie far behind the end of every file, and their locks are those of open file descriptions, so
the kernel ends them with whoever has them.
"""

from __future__ import annotations

import fcntl
import os
import struct

__all__ = ["FIRST_SESSION_LOCK", "has_server"]

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
