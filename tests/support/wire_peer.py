"""A plain socket to a cache server: it speaks ZMTP as far as a test wants it to."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Self

from kvferry.config.endpoints import ipc_path
from kvferry.rpc.zmtp import GREETING, READY_CLIENT, ZmtpParser, framed

LIMIT_S = 10.0
DEALER = READY_CLIENT


class WirePeer:
    """A connection, of which nothing is said yet.

    Args:
        endpoint: Of a server: ipc://... or tcp://...
    """

    def __init__(self, endpoint: str) -> None:
        path = ipc_path(endpoint)
        if path is not None:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(LIMIT_S)
            try:
                self.socket.connect(path)
            except OSError:
                self.socket.close()
                raise
        else:
            host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            self.socket = socket.create_connection((host.strip("[]"), int(port)), LIMIT_S)
        self._wire = ZmtpParser(64 << 20)
        self._messages: list[bytes] = []

    def send(self, data: bytes) -> Self:
        """Bytes as they are."""
        self.socket.sendall(data)
        return self

    def hello(self) -> Self:
        """The whole handshake, of a DEALER."""
        self.send(GREETING + DEALER)
        while not self._wire.ready:
            self._messages += self._wire.feed(self._receive())
        return self

    def ask(self, body: bytes) -> bytes:
        """One message, and the next reply."""
        self.send(framed(body))
        return self.reply()

    def reply(self) -> bytes:
        """The next reply."""
        while not self._messages:
            self._messages += self._wire.feed(self._receive())
        return self._messages.pop(0)

    def _receive(self) -> bytes:
        data = self.socket.recv(1 << 16)
        assert data, "the connection was ended"
        return data

    def await_end(self, limit_s: float = LIMIT_S) -> None:
        """Wait until the server ends the connection. What comes is dropped."""
        began = time.monotonic()
        self.socket.settimeout(limit_s)
        with suppress(ConnectionError):
            while self.socket.recv(1 << 16):
                assert time.monotonic() - began < limit_s

    def close(self) -> None:
        """Drop it without a word."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
