"""RESP for tests: encode a command, read a reply, cut a stream of replies into replies.

Written on its own, so that it can judge the parsers of the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

MAX_LINE_BYTES = 64 * 1024


class ReplyError(Exception):
    """An error reply; its text."""


def encode(*words: bytes | str | int | float) -> bytes:
    """A command as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts += [b"$%d\r\n" % len(data), data, b"\r\n"]
    return b"".join(parts)


def bulk(value: bytes) -> bytes:
    """A bulk string reply."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if data is None or len(data) != size:
        raise EOFError(f"{len(data or b'')} of {size} bytes, then the end")
    return data


def read_line(stream: BinaryIO) -> bytes:
    line = stream.readline(MAX_LINE_BYTES)
    if not line.endswith(b"\r\n"):
        raise EOFError(f"no end of line after {line!r}")
    return line[:-2]


def read_reply(stream: BinaryIO) -> Any:
    """One reply as Python values; an error reply is a returned ReplyError. Pushes are skipped."""
    line = read_line(stream)
    kind, rest = line[:1], line[1:]
    match kind:
        case b"+":
            return rest
        case b"-":
            return ReplyError(rest.decode())
        case b":":
            return int(rest)
        case b"#":
            return rest == b"t"
        case b"_":
            return None
        case b",":
            return float(rest)
        case b"(":
            return int(rest)
        case b"$" | b"=" | b"!":
            if rest == b"-1":
                return None
            data = read_exactly(stream, int(rest) + 2)[:-2]
            return ReplyError(data.decode()) if kind == b"!" else data
        case b"*" | b"~":
            return None if rest == b"-1" else [read_reply(stream) for _ in range(int(rest))]
        case b"%":
            return {read_reply(stream): read_reply(stream) for _ in range(int(rest))}
        case b"|" | b">":
            for _ in range(int(rest) * (2 if kind == b"|" else 1)):
                read_reply(stream)
            return read_reply(stream)
    raise ValueError(f"unknown reply {line!r}")


class Segment(NamedTuple):
    """A piece of one top-level reply. ``kind`` is its first byte; an attribute is part of the
    reply that it describes, which then has the kind ``|``."""

    data: memoryview
    kind: bytes
    begins: bool
    ends: bool


class ReplyFramer:
    """Cuts server bytes into top-level replies, RESP2 and RESP3, without joining or copying.

    Feed it the whole stream from the connection's first byte, in any pieces.
    """

    def __init__(self) -> None:
        self._line = bytearray()  # a header that has begun
        self._skip = 0  # payload bytes, trailer included, until the next header
        self._open: list[int | None] = []  # elements due per open aggregate; None: until "."
        self._in_chunks = False  # inside a streamed string
        self._kind = b""

    def feed(self, data: bytes) -> Iterator[Segment]:
        view = memoryview(data)
        start = at = 0
        begins = not self._kind
        while at < len(view):
            if self._skip:
                step = min(self._skip, len(view) - at)
                self._skip -= step
                at += step
                if self._skip:
                    break
                done = not self._in_chunks and self._element_done()
            else:
                newline = data.find(b"\n", at)
                stop = len(view) if newline < 0 else newline + 1
                self._line += view[at:stop]
                self._kind = self._kind or bytes(self._line[:1])
                at = stop
                if newline < 0:
                    break
                line, self._line = bytes(self._line[:-2]), bytearray()
                done = self._header(line[:1], line[1:])
            if done:
                yield Segment(view[start:at], self._kind, begins, True)
                start, begins, self._kind = at, True, b""
        if start < len(view):
            yield Segment(view[start:], self._kind, begins, False)

    def _header(self, kind: bytes, rest: bytes) -> bool:
        """Take one header line; whether it completed a top-level reply."""
        if kind == b";":
            self._skip = int(rest) + 2 if rest != b"0" else 0
            self._in_chunks = rest != b"0"
            return not self._in_chunks and self._element_done()
        if kind == b".":
            self._open.pop()
            return self._element_done()
        if kind in b"$=!" and rest != b"-1":
            self._in_chunks = rest == b"?"
            self._skip = 0 if self._in_chunks else int(rest) + 2
            return False
        if kind in b"*~>%|" and rest == b"?":
            self._open.append(None)
            return False
        if kind in b"*~>%" and int(rest) > 0:
            self._open.append(int(rest) * (2 if kind == b"%" else 1))
            return False
        if kind == b"|":  # its pairs, and then the element that it describes
            self._open.append(int(rest) * 2 + 1)
            return False
        return self._element_done()

    def _element_done(self) -> bool:
        while self._open:
            due = self._open[-1]
            if due is None:
                return False
            self._open[-1] = due - 1
            if due > 1:
                return False
            self._open.pop()
        return True
