"""What a cache in this process says of itself, to `kvferry top` of the same user.

    status = open_status_socket(cache, "vLLM 0.32.0, rank 0")
    ...
    status.close()

The socket is a Unix socket in the user's folder of sockets. Whoever connects is sent one JSON
object, shaped as the status of a cache server, and the end. Nothing is read. The socket of a
process that was killed is removed by the next look (`looks`).

Threads: any. One of its own answers, one connection after the other.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvferry import __version__
from kvferry.base.errors import ClosedError
from kvferry.base.local_secret import folder
from kvferry.base.threads import Guarded, noticed

if TYPE_CHECKING:
    from kvferry.cache.tiered_cache import TieredCache

__all__ = ["StatusSocket", "looks", "open_status_socket"]

_log = logging.getLogger("kvferry.cache")

_LIMIT_S = 2.0  # of a connection
_ANSWER_BYTES_MAX = 64 << 20
_numbers = itertools.count()


def open_status_socket(cache: TieredCache, software: str) -> StatusSocket | None:
    """A socket for a cache; None where there can be none, which is logged.

    Args:
        cache: Whose figures are told.
        software: Who uses it, for people.
    """
    try:
        return StatusSocket(cache, software)
    except OSError as error:
        _log.info("kvferry top does not see this process: %s", error)
        return None


def looks() -> Iterator[dict[str, Any]]:
    """What every process of this user says that has a status socket.

    Raises:
        OSError: There is no folder for them.
    """
    for path in sorted(folder().glob("*.sock")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(_LIMIT_S)
            try:
                line.connect(str(path))
                said = json.loads(_all_of(line))
            except ConnectionRefusedError:  # its process was killed
                path.unlink(missing_ok=True)
                continue
            except (OSError, ValueError):
                continue
        if isinstance(said, dict):
            yield said


def _all_of(line: socket.socket) -> bytes:
    until = time.monotonic() + _LIMIT_S
    data = bytearray()
    while part := line.recv(1 << 20):
        data += part
        if len(data) > _ANSWER_BYTES_MAX or time.monotonic() > until:
            raise TimeoutError
    return bytes(data)


class StatusSocket:
    """See the module.

    Args:
        cache, software: See `open_status_socket`.

    Raises:
        OSError: The socket cannot be made.
    """

    def __init__(self, cache: TieredCache, software: str) -> None:
        self._cache = cache
        self._software = software
        self._pid = os.getpid()
        self._closed = False
        self._began = time.monotonic()
        number = next(_numbers)
        self._incarnation = f"{self._pid}-{number}-{time.time_ns()}"
        self._path = folder() / f"{self._pid}-{number}.sock"
        self._path.unlink(missing_ok=True)  # of a process that had our number
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(self._path))
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        self._thread = Guarded(self._answer, "status")
        self._thread.start()

    def close(self) -> None:
        """Show nothing any more."""
        self._closed = True
        if os.getpid() == self._pid:  # a child's parent still listens
            self._path.unlink(missing_ok=True)
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join(_LIMIT_S)
        self._socket.close()

    def status(self) -> dict[str, Any]:
        """What is shown."""
        cache = self._cache
        stats, layout = cache.stats(), cache.layout
        used = stats["memory"]["resident"]
        pool_bytes = cache.memory.pages * layout.chunk_bytes
        age_s = round(time.monotonic() - self._began, 3)
        return {
            "version": __version__,
            "incarnation": self._incarnation,
            "pid": self._pid,
            "uptime_s": age_s,
            "state": "ready",
            "pool": {"bytes": pool_bytes, "granted_bytes": pool_bytes},
            "identities": [
                {
                    "identity": cache.identity.digest.hex(),
                    "model": cache.identity.model,
                    "chunk_bytes": layout.chunk_bytes,
                    "chunk_size": layout.chunk_size,
                    "used_bytes": used * layout.chunk_bytes,
                    "engines": 1,
                    **stats,
                }
            ],
            "sessions": [
                {
                    "pid": self._pid,
                    "software": self._software,
                    "model": cache.identity.model,
                    "age_s": age_s,
                    "requests": stats["metrics"]["kvferry_retrieve_seconds"]["count"],
                    "pages": used,
                }
            ],
        }

    def _answer(self) -> None:
        while True:
            try:
                line = self._socket.accept()[0]
            except OSError:
                if self._closed:
                    return
                raise  # e.g. no descriptors: it is tried again
            with line, suppress(OSError):
                line.settimeout(_LIMIT_S)
                line.sendall(self._text())

    def _text(self) -> bytes:
        try:
            return json.dumps(self.status(), default=str).encode()
        except Exception as error:
            if not isinstance(error, ClosedError):
                noticed("status", error)
            return b"{}"
