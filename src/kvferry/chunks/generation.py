"""Generations: what a clear renews, so that nothing stored before it is ever found after it.

A generation is part of every chunk's hash, and of its name in a store. The first one is empty: it
follows from the identity alone, so engines share from the start. Any other has 16 bytes:

    own       8 bytes of one engine. A clear of that engine draws them at random, or makes them of a
              name that the user gives (``weights_version``); engines that are given the same name
              share again. Zeros: it has neither.
    shared    8 bytes that a clear for everybody has renewed in a store; see
              `kvferry.cache.generations`. Zeros: nobody did.

As bytes, with ``cut`` for the first bytes of a SHA-256 digest:

    own                     cut("kvferry weights v1\\0" + name), or random
    the salt of hashes      SHA-256("kvferry generation v1\\0" + generation + salt); first: the salt
    the name of a chunk     hex of the generation + ":" + hex of the hash; first: hex of the hash
"""

from __future__ import annotations

import hashlib
import secrets

from kvferry.errors import UsageError

__all__ = [
    "FIRST",
    "after_clear",
    "chunk_name",
    "drawn",
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


def drawn() -> bytes:
    """A half that nobody has."""
    return secrets.token_bytes(_HALF)


def named(weights_version: str) -> bytes:
    """The own half of a name; that of no name is the first one's.

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
    """The own half behind a clear: of a name, or without one, or with an empty one, drawn.

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
    """The hash and the generation of a chunk's name; None: it is none."""
    text = name if isinstance(name, str) else name.decode("ascii", "replace")
    tag, colon, rest = text.rpartition(":")
    try:
        digest, generation = bytes.fromhex(rest), bytes.fromhex(tag)
    except ValueError:
        return None
    if len(digest) != _BYTES or len(generation) != (_BYTES if colon else 0):
        return None
    return digest, generation
