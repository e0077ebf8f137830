"""ZeroMQ's wire protocol, ZMTP 3, as far as messages of one frame without encryption need it.

A machine without a socket: `feed` takes what came and returns whole messages; what is to be sent is
bytes too. So one thread can serve every connection, which takes a third of the time that handing
each message to an I/O thread and back takes; see docs/decisions/0015-the-servers-socket.md.

Peers are DEALER sockets of libzmq, and whatever speaks like one. Whoever does not is cut off.

Source: https://rfc.zeromq.org/spec/23/ (ZMTP 3.0).
"""

from __future__ import annotations

import struct

__all__ = [
    "GREETING",
    "MESSAGE_BYTES_MAX",
    "READY",
    "READY_CLIENT",
    "ZmtpError",
    "ZmtpParser",
    "framed",
]

MESSAGE_BYTES_MAX = 4 << 20

_MORE, _LONG, _COMMAND = 1, 2, 4
_U64 = struct.Struct(">Q")
_U64_BEHIND = struct.Struct(">BQ")
# What goes before a short body, by its length.
_SHORT = [bytes((0, size)) for size in range(256)]
_U32 = struct.Struct(">I")

# Signature, version 3.0, the mechanism NULL, and that of it we are not the server.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_SOCKET_TYPE = b"\x0bSocket-Type"
_COMMAND_READY = b"\x05READY"


def _ready(socket_type: bytes) -> bytes:
    body = _COMMAND_READY + _SOCKET_TYPE + _U32.pack(len(socket_type)) + socket_type
    return bytes([_COMMAND, len(body)]) + body


# The end of the handshake, as a server and as a client say it.
READY, READY_CLIENT = _ready(b"ROUTER"), _ready(b"DEALER")
_PEERS = (b"DEALER", b"ROUTER")
# A greeting, and metadata of the peer's socket.
_HANDSHAKE_BYTES_MAX = 64 + 9 + 4096


class ZmtpError(Exception):
    """The peer does not speak the protocol, or says too much; the connection is of no use."""


def framed(body: bytes) -> bytes:
    """A message, which is one frame."""
    size = len(body)
    if size < 256:
        return _SHORT[size] + body
    return _U64_BEHIND.pack(_LONG, size) + body


class ZmtpParser:
    """What came from one peer.

    It holds no more than one message that is not complete yet, and what came with its end. However
    small the pieces are in which a message comes, each byte is moved a few times only.

    Args:
        size_bytes_max: Of a message; one that is longer is an error.

    Attributes:
        size_bytes_max: It may change.
        ready: The handshake is over: messages may be sent.
    """

    __slots__ = ("_buffer", "_greeted", "_need", "ready", "size_bytes_max")

    def __init__(self, size_bytes_max: int) -> None:
        self.ready = False
        self._greeted = False
        self.size_bytes_max = size_bytes_max
        self._buffer = bytearray()
        self._need = 0  # how many bytes the buffer has to have before there is anything to do

    @property
    def half(self) -> bool:
        """Whether the peer has begun something that it has still to finish."""
        return bool(self._buffer)

    def only(self, data: bytes | memoryview, size: int) -> int:
        """Where the body begins, if what came, so many bytes, is exactly one message: what
        nearly always comes, as cheaply as can be. Else 0, and it is for `feed`."""
        if self._buffer or not self.ready or size < 2:
            return 0
        if data[0] == _LONG and size >= 9 and _U64.unpack_from(data, 1)[0] == size - 9:
            return 9 if size - 9 <= self.size_bytes_max else 0
        return 2 if data[0] == 0 and data[1] == size - 2 <= self.size_bytes_max else 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take what came; the messages that are complete now.

        Raises:
            ZmtpError: The connection has to end.
        """
        begin = self.only(data, len(data))
        if begin:
            return [data[begin:]]
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._need:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        at, need = 0, 2
        messages: list[bytes] = []
        if not self._greeted:
            at = self._greet(data)
        size = len(data)
        while self._greeted and size - at >= 2:
            flags = data[at]
            if flags > 6 or flags == _COMMAND | _MORE:
                raise ZmtpError("reserved flags of a frame are set")
            if flags & _MORE:
                raise ZmtpError("a message of more than one frame")
            if flags & _LONG:
                if size - at < 9:
                    need = 9
                    break
                length, begin = _U64.unpack_from(data, at + 1)[0], at + 9
            else:
                length, begin = data[at + 1], at + 2
            if length > (self.size_bytes_max if self.ready else _HANDSHAKE_BYTES_MAX):
                raise ZmtpError(f"a frame of {length} bytes")
            if size - begin < length:
                need = begin + length - at
                break
            at = begin + length
            body = data[begin:at]
            if flags & _COMMAND:
                self._command(body)
            elif not self.ready:
                raise ZmtpError("a message before the handshake")
            else:
                messages.append(body)
        if at < size:
            self._buffer += data[at:]
            self._need = need
        return messages

    def _greet(self, data: bytes) -> int:
        """How many bytes of a whole greeting; a wrong one is seen as soon as it is."""
        if data[:1] not in (b"", b"\xff") or (len(data) > 9 and data[9] != 0x7F):
            raise ZmtpError("no ZeroMQ")
        if len(data) > 10 and data[10] < 3:
            raise ZmtpError(f"version {data[10]} of ZMTP; it has to be 3")
        if len(data) < 64:
            return 0
        mechanism = data[12:32].rstrip(b"\0")
        if mechanism != b"NULL":
            raise ZmtpError(f"the mechanism {mechanism!r}; it has to be NULL")
        self._greeted = True
        return 64

    def _command(self, body: bytes) -> None:
        if self.ready:
            return  # heartbeats of ZMTP 3.1, which nobody may send us, and what comes later
        if not body.startswith(_COMMAND_READY):
            raise ZmtpError("the handshake has no READY")
        found = _metadata(body[len(_COMMAND_READY) :])
        if found.get(b"socket-type") not in _PEERS:
            raise ZmtpError("the peer is no DEALER")
        self.ready = True


def _metadata(data: bytes) -> dict[bytes, bytes]:
    found, at = {}, 0
    while at < len(data):
        name_end = at + 1 + data[at]
        if name_end + 4 > len(data):
            raise ZmtpError("metadata that is cut")
        end = name_end + 4 + _U32.unpack_from(data, name_end)[0]
        if end > len(data):
            raise ZmtpError("metadata that is cut")
        found[data[at + 1 : name_end].lower()] = data[name_end + 4 : end]
        at = end
    return found
