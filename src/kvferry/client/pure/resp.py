"""RESP2 and RESP3 without I/O: bytes in, replies out.

The parser is fed whatever arrived and gives back complete replies. One thing it does not buffer:
asked for a `direct` reply, it answers a bulk string with its `BulkHead` as soon as the length is
known, so that the caller can receive the payload where it belongs; `take` hands over the piece that
came along, and `end_bulk` checks what follows.

    simple string  str               bulk, verbatim   bytes      null     None
    integer, big   int               double           float      boolean  bool
    error          ErrorReply        array, set, map  list       (a map as key, value, key, ...)

Pushes and attributes are counted and dropped. Streamed types, replies beyond the limits and
anything malformed are a ProtocolError: such a connection can only be closed. The limits are on a
whole reply, counted as it arrives: what a server claims reserves nothing.

Source: https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, TypeAlias

from kvferry.base.errors import AuthError, UnavailableError

__all__ = [
    "NEED_MORE",
    "BulkHead",
    "ErrorReply",
    "ProtocolError",
    "Reply",
    "ReplyParser",
    "encode",
    "encode_set",
]

LINE_BYTES_MAX = 64 << 10
# One reply with all that is in it, but for payload that goes straight to the caller.
REPLY_BYTES_MAX = 4 << 20
REPLY_VALUES_MAX = 200_000
DEPTH_MAX = 16

_LENGTH_LINE_BYTES_MAX = 24  # sign, 19 digits and some leading zeros
_AGGREGATES = b"*~%>|"
_BULKS = b"$=!"
_LENGTH = re.compile(rb"\d{1,19}")
_INTEGER = re.compile(rb"[+-]?\d{1,19}")
_BIG_NUMBER = re.compile(rb"[+-]?\d{1,4000}")
_DOUBLE = re.compile(rb"[+-]?(\d+(\.\d*)?([eE][+-]?\d+)?|inf|nan)")


# How the refusal of a user or password begins, as in native/redis/server_error.cpp; the long ones
# are of Redis before version 6.
_CREDENTIALS = (
    *("NOAUTH", "WRONGPASS", "NOPERM"),
    *("ERR AUTH", "ERR invalid password", "ERR Client sent AUTH"),
)
# Refusals of a greeting after which no other one would do, as in native/redis/server_error.cpp.
_GREETING_ENDS = (
    *("WRONGPASS", "ERR invalid password", "ERR max number of clients", "DENIED"),
    *("LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN"),
)


class ProtocolError(Exception):
    """The peer broke the protocol; what follows on this connection means nothing."""

    kind: type[UnavailableError] = UnavailableError


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error that the server answered with, e.g. ``WRONGTYPE Operation against a key ...``."""

    text: str

    @property
    def code(self) -> str:
        """Its first word."""
        return self.text.partition(" ")[0]

    @property
    def ends_greeting(self) -> bool:
        """Whether no other greeting would do: wrong credentials, or the server takes nobody now.

        Whatever else a server or proxy says, it may know an older greeting.
        """
        return self.text.startswith(_GREETING_ENDS)

    @property
    def kind(self) -> type[UnavailableError]:
        """What it is where it means that the server does not serve us."""
        return AuthError if self.text.startswith(_CREDENTIALS) else UnavailableError


@dataclass(frozen=True, slots=True)
class BulkHead:
    """A bulk string of `size` bytes begins; its payload is still to come."""

    size: int


class _Signal(Enum):
    NEED_MORE = 0


NEED_MORE: Final = _Signal.NEED_MORE
NeedMore: TypeAlias = Literal[_Signal.NEED_MORE]
Reply: TypeAlias = "str | bytes | int | float | bool | list[Reply] | ErrorReply | BulkHead | None"


@dataclass(slots=True)
class _Aggregate:
    """An array, set, map, push or attribute of which `missing` elements are still to come."""

    missing: int
    dropped: bool  # a push or an attribute: no element of what it stands in
    kept: bool  # neither that nor inside one
    items: list[Reply] = field(default_factory=list)

    def add(self, item: Reply) -> None:
        if self.kept:
            self.items.append(item)
        self.missing -= 1


def encode(*args: bytes) -> bytes:
    """One command, as the array of bulk strings that every server takes."""
    parts = [b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in args]
    return b"*%d\r\n%b" % (len(args), b"".join(parts))


def encode_set(key: bytes, size: int, ttl_ms: int | None) -> tuple[bytes, bytes]:
    """What goes before and after the payload of a SET."""
    before = b"*%d\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n"
    if ttl_ms is None:
        return before % (3, len(key), key, size), b"\r\n"
    ttl = b"%d" % ttl_ms
    return before % (5, len(key), key, size), b"\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(ttl), ttl)


class ReplyParser:
    """The replies of one connection, in order.

    Args:
        bulk_bytes_max: The longest direct bulk string that is believed.

    Attributes:
        skipped: How many pushes and attributes were dropped.
    """

    def __init__(self, bulk_bytes_max: int = 512 << 20) -> None:
        self.skipped = 0
        self._bulk_bytes_max = bulk_bytes_max
        self._buffer = bytearray()
        self._at = 0  # consumed up to here
        self._open: list[_Aggregate] = []
        self._values = 0  # of the reply that is being read
        self._bytes = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is half read: only then does the next byte begin a reply."""
        return not self._open and self._at == len(self._buffer)

    def feed(self, data: bytes | memoryview) -> None:
        """Add what arrived."""
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def next(self, *, direct: bool = False) -> Reply | NeedMore:
        """The next complete reply, or NEED_MORE.

        Args:
            direct: Answer a bulk string with its BulkHead. Then `take` and `end_bulk` must
                consume the payload before `next` is called again.
        """
        while (item := self._element(direct and not self._open)) is not NEED_MORE:
            self._values += 1
            if self._values > REPLY_VALUES_MAX:
                raise ProtocolError("a reply has too many values")
            if isinstance(item, _Aggregate):
                self._open.append(item)
            elif not self._open:
                self._end_reply()
                return item
            else:
                self._open[-1].add(item)
            while self._open and not self._open[-1].missing:
                done = self._open.pop()
                if not self._open:
                    self._end_reply()
                if done.dropped:
                    self.skipped += 1
                elif not self._open:
                    return done.items
                else:
                    self._open[-1].add(done.items)
        return NEED_MORE

    def take(self, target: memoryview) -> int:
        """Move payload that was fed already into `target`; returns how many bytes that was."""
        count = min(len(target), len(self._buffer) - self._at)
        target[:count] = self._buffer[self._at : self._at + count]
        self._at += count
        return count

    def end_bulk(self) -> bool:
        """Consume the CRLF after a payload; False if it was not all fed yet."""
        end = bytes(self._buffer[self._at : self._at + 2])
        if not b"\r\n".startswith(end):
            raise ProtocolError(f"a value ends with {end!r} where CRLF belongs")
        if len(end) < 2:
            return False
        self._at += 2
        return True

    def _end_reply(self) -> None:
        self._values = self._bytes = 0

    def _element(self, direct: bool) -> Reply | _Aggregate | NeedMore:
        if self._at == len(self._buffer):
            return NEED_MORE
        kind = self._buffer[self._at]
        if kind in _AGGREGATES or kind in _BULKS:
            line = self._line(_LENGTH_LINE_BYTES_MAX)
            if line is None:
                return NEED_MORE
            if line == b"-1" and kind in b"$*":
                return self._consume(line, None)
            return (
                self._begin(kind, line) if kind in _AGGREGATES else self._bulk(kind, line, direct)
            )
        if kind not in _LEAVES:
            raise ProtocolError(f"no reply begins with {bytes((kind,))!r}")
        line = self._line(LINE_BYTES_MAX)
        if line is None:
            return NEED_MORE
        self._allow(len(line))
        self._bytes += len(line)
        return self._consume(line, _LEAVES[kind](line))

    def _line(self, bytes_max: int) -> bytes | None:
        """The bytes between the type byte and CRLF; consumes nothing."""
        start = self._at + 1
        end = self._buffer.find(b"\r\n", start, start + bytes_max + 2)
        if end < 0:
            if len(self._buffer) - start >= bytes_max + 2:
                raise ProtocolError(f"a line is longer than {bytes_max} bytes")
            return None
        line = bytes(self._buffer[start:end])
        if b"\n" in line or b"\r" in line:
            raise ProtocolError("a line holds a bare CR or LF")
        return line

    def _allow(self, size: int) -> None:
        if size > REPLY_BYTES_MAX - self._bytes:
            raise ProtocolError("a reply has too much text")

    def _consume(self, line: bytes, reply: Reply) -> Reply:
        self._at += 1 + len(line) + 2
        return reply

    def _begin(self, kind: int, line: bytes) -> _Aggregate:
        count = _length(line, REPLY_VALUES_MAX)
        if len(self._open) == DEPTH_MAX:
            raise ProtocolError(f"a reply is nested deeper than {DEPTH_MAX}")
        if kind == ord(">") and self._open:
            raise ProtocolError("a push inside another reply")
        self._consume(line, None)
        dropped = kind in b">|"
        kept = not dropped and (not self._open or self._open[-1].kept)
        return _Aggregate(count * 2 if kind in b"%|" else count, dropped, kept)

    def _bulk(self, kind: int, line: bytes, direct: bool) -> Reply | NeedMore:
        if direct and kind == ord("$"):
            return self._consume(line, BulkHead(_length(line, self._bulk_bytes_max)))
        size = _length(line, REPLY_BYTES_MAX)
        self._allow(size)
        start = self._at + 1 + len(line) + 2
        if len(self._buffer) < start + size + 2:
            return NEED_MORE
        payload = bytes(self._buffer[start : start + size])
        self._bytes += size
        self._at = start + size
        self.end_bulk()
        if kind == ord("!"):
            return ErrorReply(_text(payload))
        if kind == ord("="):  # e.g. b"txt:..."
            if payload[3:4] != b":":
                raise ProtocolError("a verbatim string without its format")
            return payload[4:]
        return payload


def _length(line: bytes, most: int) -> int:
    # int() alone would take "1_0" and " 1".
    if not _LENGTH.fullmatch(line):
        raise ProtocolError(f"{line!r} is not a length")
    if (length := int(line)) > most:
        raise ProtocolError(f"a length of {length} is beyond the limit of {most}")
    return length


def _text(line: bytes) -> str:
    return line.decode(errors="replace")  # one character for what is none: text cannot swell


def _number(line: bytes, pattern: re.Pattern[bytes]) -> bytes:
    if not pattern.fullmatch(line):
        raise ProtocolError("what should be a number is none")  # it may quote a secret
    return line


def _null(line: bytes) -> None:
    if line:
        raise ProtocolError("a null with content")


def _boolean(line: bytes) -> bool:
    if line not in (b"t", b"f"):
        raise ProtocolError(f"{line[:64]!r} is not a boolean")
    return line == b"t"


_LEAVES: dict[int, Callable[[bytes], Reply]] = {
    ord("+"): _text,
    ord("-"): lambda line: ErrorReply(_text(line)),
    ord(":"): lambda line: int(_number(line, _INTEGER)),
    ord("("): lambda line: int(_number(line, _BIG_NUMBER)),
    ord(","): lambda line: float(_number(line, _DOUBLE)),
    ord("_"): _null,
    ord("#"): _boolean,
}
