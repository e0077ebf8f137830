"""A rank of an engine as its scheduler sees it: connections to its socket; see `ranks`."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time

from kvferry.chunks.generation import FIRST, shared_of

__all__ = ["ANSWER", "GRACE_S", "Rank", "read"]

_log = logging.getLogger("kvferry.integrations.vllm")

ANSWER = struct.Struct("<q8s")
# What a rank may take beyond the limit of its stores: it has a lot to do besides.
GRACE_S = 0.2
# How long a rank that did not answer is left alone.
_REST_S = 1.0


class Rank:
    """One rank, and connections to it that nobody uses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._rest_until = 0.0
        self._told = False
        self.shared = shared_of(FIRST)

    def there(self) -> bool:
        """Whether somebody listens at this name."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(GRACE_S)
            try:
                line.connect("\0" + self.name)
            except OSError:
                return False
            return True

    def send(self, question: bytes, insist: bool) -> socket.socket | None:
        with self._lock:
            line = self._idle.pop() if self._idle else None
            if line is None and time.monotonic() < self._rest_until and not insist:
                return None
        try:
            if line is None:
                line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                line.settimeout(GRACE_S)
                line.connect("\0" + self.name)
            line.settimeout(GRACE_S)
            line.sendall(question)
        except OSError as error:
            self._failed(line, error)
            return None
        return line

    def receive(self, line: socket.socket | None, until: float) -> int:
        if line is None:
            return 0
        try:
            line.settimeout(max(0.001, until - time.monotonic()))
            result, self.shared = ANSWER.unpack(read(line, ANSWER.size))
        except OSError as error:
            self._failed(line, error)
            return 0
        with self._lock:
            self._idle.append(line)
        self._told = False
        return max(0, int(result))

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    def _failed(self, line: socket.socket | None, error: OSError) -> None:
        if line is not None:
            line.close()
        with self._lock:
            self._rest_until = time.monotonic() + _REST_S
            told, self._told = self._told, True
        if not told:
            _log.warning(
                "the worker at %s does not say what it has (%s); prompts are computed meanwhile",
                self.name,
                error,
            )


def read(line: socket.socket, count: int) -> bytes:
    """So many bytes.

    Raises:
        OSError: The other side is gone, or late.
    """
    data = bytearray()
    while len(data) < count:
        part = line.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the other side closed the connection")
        data += part
    return bytes(data)
