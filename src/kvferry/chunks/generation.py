"""Generations: what a clear renews, so that nothing stored before it is ever found after it.

A generation is part of every chunk's hash, and of its name in a store. The first one is empty: it
follows from the identity alone, so engines share from the start. Any other has 16 bytes:

    own       8 bytes of one engine. A clear of that engine draws them at random, or makes them of a
              name that the user gives (``weights_version``); engines that are given the same name
              share again. Zeros: it has neither.
    shared    8 bytes that a clear for everybody has renewed; see `Mark`. Zeros: nobody did.

As bytes, with ``cut`` for the first bytes of a SHA-256 digest:

    own                     cut("kvferry weights v1\\0" + name), or random
    the salt of hashes      SHA-256("kvferry generation v1\\0" + generation + salt); first: the salt
    the name of a chunk     hex of the generation + ":" + hex of the hash; first: hex of the hash
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from kvferry.base.errors import UsageError

__all__ = [
    "FIRST",
    "MARK_BYTES",
    "Mark",
    "after_clear",
    "chunk_name",
    "drawn",
    "drawn_here",
    "joined",
    "named",
    "own_of",
    "read_name",
    "salted",
    "shared_of",
]

FIRST = b""
_BYTES = 16
_HALF = _BYTES // 2
_NOTHING = bytes(_HALF)
_COUNTER_MAX = 1 << 53
_TEXT_BYTES = 256
MARK_BYTES = 40  # of a mark as nodes lend it, with spaces behind
_drawn: deque[bytes] = deque(maxlen=1000)


class Mark(NamedTuple):
    """What stores, controllers and instances say of clears for everybody, for one identity.

    Attributes:
        counter: Of two marks the one with the higher counter is newer.
        half: The shared half of its generation; two clears at a time differ in it.
    """

    counter: int = 0
    half: bytes = _NOTHING

    def encode(self, line: Iterable[bytes] = ()) -> bytes:
        """As it lies in a store; `line`: halves that came before it, the last one first."""
        text = "".join(f" {half.hex()}" for half in (self.half, *line))
        return f"{self.counter}{text}"[:_TEXT_BYTES].encode()

    @classmethod
    def decode(cls, value: bytes | None) -> Mark:
        """The mark that lies in the store; the first one where there is none, or something else."""
        try:
            counter, half = (value or b"")[:_TEXT_BYTES].decode("ascii").split()[:2]
            mark = cls(int(counter), bytes.fromhex(half))
        except ValueError:
            return cls()
        return mark if mark.is_sound else cls()

    @staticmethod
    def line_of(value: bytes | None) -> tuple[bytes, ...]:
        """The halves that came before the mark that lies in the store, as far as it says them."""
        try:
            words = (value or b"")[:_TEXT_BYTES].decode("ascii").split()[2:]
            return tuple(half for word in words if len(half := bytes.fromhex(word)) == _HALF)
        except ValueError:
            return ()

    @property
    def is_sound(self) -> bool:
        """Whether a clear can have drawn it."""
        return 0 < self.counter <= _COUNTER_MAX and len(self.half) == _HALF and any(self.half)

    def renewed(self, *others: Mark) -> Mark:
        """A mark that is newer than this and `others`; nobody has stored anything under it yet."""
        return Mark(max(mark.counter for mark in (self, *others)) + 1, drawn())

    def met(self, other: Mark) -> Mark:
        """The mark that follows from two clears which did not know of each other: the same for
        whoever sees both, so that caches agree, and nobody has stored anything under it before."""
        both = b"".join(sorted((self.half, other.half)))
        half = hashlib.sha256(b"kvferry clears met v1\0" + both).digest()[:_HALF]
        return Mark(max(self.counter, other.counter) + 1, half)


def drawn() -> bytes:
    """A half that nobody has."""
    half = secrets.token_bytes(_HALF)
    _drawn.append(half)
    return half


def drawn_here(half: bytes) -> bool:
    """Whether a half is one of the last that this process has drawn, and so no name of weights."""
    return half in _drawn


def named(weights_version: str) -> bytes:
    """The own half of a name; without a name that of the first generation.

    Raises:
        UsageError: It is no text.
    """
    if not isinstance(weights_version, str):
        raise UsageError(f"weights_version={weights_version!r} is no text; name the weights")
    if not weights_version:
        return _NOTHING
    text = weights_version.encode(errors="surrogatepass")
    return hashlib.sha256(b"kvferry weights v1\0" + text).digest()[:_HALF]


def after_clear(weights_version: str | None) -> bytes:
    """The own half after a clear: of a name, or drawn where there is none.

    Raises:
        UsageError: It is no text.
    """
    half = _NOTHING if weights_version is None else named(weights_version)
    return half if any(half) else drawn()


def joined(own: bytes, shared: bytes) -> bytes:
    """The generation of two halves, each of 8 bytes."""
    both = own + shared
    return both if any(both) else FIRST


def own_of(generation: bytes) -> bytes:
    """The half of one engine."""
    return generation[:_HALF] or _NOTHING


def shared_of(generation: bytes) -> bytes:
    """The half that all engines of a store have in common."""
    return generation[_HALF:] or _NOTHING


def salted(salt: bytes, generation: bytes) -> bytes:
    """The salt that hashes of this generation begin with."""
    if not generation:
        return salt
    return hashlib.sha256(b"kvferry generation v1\0" + generation + salt).digest()


def chunk_name(digest: bytes, generation: bytes) -> str:
    """The name of a chunk in a store, behind the prefix of its identity."""
    return f"{generation.hex()}:{digest.hex()}" if generation else digest.hex()


def read_name(name: str | bytes) -> tuple[bytes, bytes] | None:
    """The hash and the generation of a chunk's name; None: it is no name of a chunk."""
    text = name if isinstance(name, str) else name.decode("ascii", "replace")
    tag, colon, rest = text.rpartition(":")
    try:
        digest, generation = bytes.fromhex(rest), bytes.fromhex(tag)
    except ValueError:
        return None
    if len(digest) != _BYTES or len(generation) != (_BYTES if colon else 0):
        return None
    return digest, generation
