"""A rank of an engine as its scheduler sees it: connections to its socket; see `ranks`.

The names of these sockets are for anybody to take, so both sides of a connection begin with a proof
that they know the secret of this user's processes: 16 random bytes of the rank, 16 of whoever asks
with its proof, and the proof of the rank.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import struct
import threading
import time

from kvferry.base.errors import ConfigError
from kvferry.base.local_secret import NONCE_BYTES, is_own_process, local_proof
from kvferry.chunks.generation import FIRST, shared_of

__all__ = ["ANSWER", "GRACE_S", "Rank", "connect", "met", "read"]

_log = logging.getLogger("kvferry.integrations.vllm")

ANSWER = struct.Struct("<q8s")
# What a rank may take beyond the limit of its stores: it has a lot to do besides.
GRACE_S = 0.2
# How long a rank that did not answer is left alone.
_REST_S = 1.0
_PROOF_BYTES = 32
_MEET_S = 2.0  # of a worker that begins


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
        """Whether it listens; the connection is kept, so that nobody has to wait for it later."""
        try:
            line = connect(self.name, _MEET_S)
        except OSError:
            return False
        with self._lock:
            self._idle.append(line)
        return True

    def send(self, question: bytes, insist: bool) -> socket.socket | None:
        with self._lock:
            line = self._idle.pop() if self._idle else None
            if line is None and time.monotonic() < self._rest_until and not insist:
                return None
        try:
            if line is None:
                line = connect(self.name, GRACE_S)
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


def connect(name: str, limit_s: float) -> socket.socket:
    """A connection to a rank, which is one of ours.

    Raises:
        OSError: It is not there, or is another user's, or late.
    """
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(limit_s)
        line.connect("\0" + name)
        nonces = read(line, NONCE_BYTES) + secrets.token_bytes(NONCE_BYTES)
        line.sendall(nonces[NONCE_BYTES:] + _proof("scheduler", name, nonces))
        _check(line, "rank", name, nonces)
    except BaseException:
        line.close()
        raise
    return line


def met(line: socket.socket, name: str) -> None:
    """Begin a connection that somebody has made to a rank.

    Raises:
        OSError: It is another user's.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    line.sendall(nonce)
    nonces = nonce + read(line, NONCE_BYTES)
    _check(line, "scheduler", name, nonces)
    line.sendall(_proof("rank", name, nonces))


def _proof(side: str, name: str, nonces: bytes) -> bytes:
    try:
        return local_proof(f"{side} of {name}", nonces)
    except ConfigError as error:
        raise PermissionError(str(error)) from None


def _check(line: socket.socket, side: str, name: str, nonces: bytes) -> None:
    shown = read(line, _PROOF_BYTES)
    if not is_own_process(line) or not hmac.compare_digest(shown, _proof(side, name, nonces)):
        raise PermissionError("the other side is no process that shares this user's runtime folder")


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
