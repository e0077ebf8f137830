"""A client's sockets: how they are set, and what is read from them."""

from __future__ import annotations

import itertools
import os
import time
from typing import NamedTuple

import msgspec
import zmq

from kvferry.server.client.counters import Counters
from kvferry.server.protocol import MESSAGE_BYTES_MAX, Reply, decode_reply

__all__ = ["CurveKeys", "new_id", "open_socket", "poll_ms", "read_reply"]

_RECONNECT_MS = 50
_RECONNECT_MAX_MS = 1000
_HANDSHAKE_MS = 2000

_ids = itertools.count(int.from_bytes(os.urandom(4), "little"))


class CurveKeys(NamedTuple):
    """Keys of CURVE, as ZeroMQ takes them. The last one is a secret."""

    server_public: bytes
    client_public: bytes
    client_secret: bytes

    def __repr__(self) -> str:
        return "CurveKeys(...)"


def new_id() -> int:
    """An id for a request; no other request of this process has it."""
    return next(_ids)


def poll_ms(until: float) -> int:
    """Milliseconds to a moment of ``time.monotonic``, rounded up, and not negative."""
    return max(0, int((until - time.monotonic()) * 1000 + 0.999))


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]], url: str, keys: CurveKeys | None
) -> zmq.Socket[bytes]:
    """A DEALER socket for a server, with every limit set; it is not connected yet.

    Raises:
        zmq.ZMQError: There are no descriptors left.
    """
    socket = context.socket(zmq.DEALER)
    try:
        socket.linger = 0
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing waits in us for a server that is away
        socket.setsockopt(zmq.SNDTIMEO, 0)
        socket.setsockopt(zmq.RCVTIMEO, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.setsockopt(zmq.IPV6, 1 if "[" in url else 0)
        if keys is not None:
            socket.curve_serverkey = keys.server_public
            socket.curve_publickey = keys.client_public
            socket.curve_secretkey = keys.client_secret
        return socket
    except BaseException:
        socket.close(linger=0)
        raise


def read_reply(frame: bytes, counters: Counters) -> Reply | None:
    """A reply as it came, counted; None: it is none."""
    counters.exchanged(0, len(frame))
    try:
        reply: Reply = decode_reply(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        counters.add("nonsense")
        return None
    return reply
