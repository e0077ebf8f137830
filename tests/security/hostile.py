"""What a server can send that no client should believe; none of it ever ends by itself.

with ScriptedServer(answer(ATTACKS["endless line"], b"GET"), MiniStore()) as server: ...
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import cast

from support.resp import bulk
from support.scripted import Pieces

MIB = 1 << 20
# Large pieces: whoever reads them never finds the socket empty for long.
PIECE_BYTES = 4 * MIB


def endless(start: bytes, *again: bytes) -> Pieces:
    """``start``, then the others over and over, in large pieces."""
    unit = b"".join(again)
    piece = unit * max(1, PIECE_BYTES // len(unit))
    return Pieces(cast("tuple[bytes, ...]", _Endless(start, piece)))


class _Endless:
    """Iterated anew by every connection."""

    def __init__(self, start: bytes, piece: bytes) -> None:
        self._start, self._piece = start, piece

    def __iter__(self) -> Iterator[bytes]:
        return chain((self._start,), repeat(self._piece))


_MEGABYTE = b"x" * MIB

ATTACKS: dict[str, Pieces] = {
    "endless line": endless(b"+", _MEGABYTE),
    "endless error": endless(b"-ERR ", _MEGABYTE),
    "endless number": endless(b":", b"1" * MIB),
    "endless big number": endless(b"(", b"1" * MIB),
    "endless length": endless(b"$", b"0" * MIB),
    "bulk of 2^62": endless(b"$%d\r\n" % (1 << 62), _MEGABYTE),
    "bulk of 1 GB": endless(b"$%d\r\n" % (1 << 30), _MEGABYTE),
    "bulk of the limit": endless(b"$%d\r\n" % (64 * MIB), _MEGABYTE),
    "error of 1 GB": endless(b"!%d\r\n" % (1 << 30), _MEGABYTE),
    "error of the limit": endless(b"!%d\r\n" % (64 * MIB), _MEGABYTE),
    "verbatim of the limit": endless(b"=%d\r\ntxt:" % (64 * MIB), _MEGABYTE),
    "streamed string": endless(b"$?\r\n", b";%d\r\n" % MIB, _MEGABYTE, b"\r\n"),
    "streamed array": endless(b"*?\r\n", bulk(_MEGABYTE)),
    "deep nesting": endless(b"", b"*1\r\n"),
    "array of 10^9": endless(b"*1000000000\r\n", b":1\r\n"),
    "map of 10^9": endless(b"%1000000000\r\n", b":1\r\n"),
    "array of megabytes": endless(b"*1000000\r\n", bulk(_MEGABYTE)),
    "arrays of arrays": endless(b"*1000000\r\n" * 8, b"*1000000\r\n", b":1\r\n" * 1_000_000),
    "array of nothing": endless(b"*1000000\r\n" * 8, b"*1000000\r\n", b"*0\r\n" * 1_000_000),
    "pushes": endless(b"", b">1\r\n+x\r\n"),
    "empty pushes": endless(b"", b">0\r\n"),
    "pushes of megabytes": endless(b"", b">1\r\n" + bulk(_MEGABYTE)),
    "push without end": endless(b">1000000000\r\n", bulk(_MEGABYTE)),
    "long push": endless(b">1000000\r\n", bulk(_MEGABYTE)),
    "attributes": endless(b"", b"|1\r\n+x\r\n+y\r\n"),
    "attributes of megabytes": endless(b"", b"|1\r\n+x\r\n" + bulk(_MEGABYTE)),
    "long attribute": endless(b"|1000000\r\n", bulk(_MEGABYTE)),
    "replies nobody asked for": endless(b"", b"$2\r\nhi\r\n"),
    "nulls nobody asked for": endless(b"", b"_\r\n"),
    "no RESP": endless(b"", b"\x16\x03\x01\x02\x00"),
}
