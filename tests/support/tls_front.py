"""TLS in front of what speaks none: a scripted server, or a FaultProxy that has to see replies.

    with TlsFront(scripted.host, scripted.port) as front:
        client = connect(front.host, front.port, **front.settings)

It shows the good certificate. When the other side ends a connection, the client gets what is left
and then close_notify; after a reset it gets a reset. A thread per connection; close() ends them.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from typing import Any, Self

from support.tls import ServerTls

HOST = "127.0.0.1"
HELD_BYTES_MAX = 256 << 10  # in each direction
READ_BYTES = 64 << 10
PATIENCE_S = 5.0
LOOK_MS = 50  # how often a connection sees that the front is closing


class TlsFront:
    """See the module."""

    def __init__(self, host: str, port: int) -> None:
        tls = ServerTls()
        self.settings: dict[str, Any] = tls.client_settings
        self._target = (host, port)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(tls.certificate.cert_file, tls.certificate.key_file)
        self._closing = threading.Event()
        self._listener = socket.create_server((HOST, 0))
        self.host, self.port = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._accept, name="tls-front", daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all threads and connections; idempotent."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a thread of the TLS front does not end"
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(PATIENCE_S / 2)
        # An OSError: the client has gone, or does not want us, or the server has reset.
        with (
            contextlib.suppress(OSError),
            client,
            self._context.wrap_socket(client, server_side=True) as tls,
        ):
            with socket.create_connection(self._target, PATIENCE_S / 2) as server:
                self._forward(tls, server)
            tls.settimeout(PATIENCE_S / 5)
            tls.unwrap()  # close_notify

    def _forward(self, tls: ssl.SSLSocket, server: socket.socket) -> None:
        """Until one side ends, or the front closes."""
        up, down = bytearray(), bytearray()
        tls.setblocking(False)
        server.setblocking(False)
        server_ended = False
        while not self._closing.is_set():
            if server_ended and not down:
                return
            poller = select.poll()
            for sock, reads, writes in (
                (tls, len(up) < HELD_BYTES_MAX, down),
                (server, not server_ended and len(down) < HELD_BYTES_MAX, up),
            ):
                mask = (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0)
                if mask:
                    poller.register(sock, mask)
            poller.poll(0 if tls.pending() and len(up) < HELD_BYTES_MAX else LOOK_MS)
            if len(up) < HELD_BYTES_MAX and _take(tls, up):
                return
            if not server_ended and len(down) < HELD_BYTES_MAX:
                try:
                    server_ended = _take(server, down)
                except ConnectionResetError:
                    tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    raise
            _give(server, up)
            _give(tls, down)


_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def _take(source: socket.socket, held: bytearray) -> bool:
    """Receive what is there; whether it has ended."""
    try:
        data = source.recv(READ_BYTES)
    except _LATER:
        return False
    held += data
    return not data


def _give(sink: socket.socket, held: bytearray) -> None:
    """Send what it takes."""
    if not held:
        return
    with contextlib.suppress(*_LATER):
        count = sink.send(bytes(held[:READ_BYTES]))
        del held[:count]
