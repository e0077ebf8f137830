"""LMCache's keys and values as they lie on the server.

Plain: its own key, its own bytes, as its RESP client writes them; both can use one server, one
after the other or together. With a namespace: ``<namespace>:<key>``. Verified: the value is framed
(docs/formats/frame.md) under ``<namespace>:<key>;``. LMCache says the length of a value when it
reads or writes it and not when it asks or deletes, so a question is about the first stripe, which
is written last.

A key that is too long for us keeps its beginning and becomes unique by a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import methodcaller

from kvferry.chunks.keys import describe_identity, identity_digest
from kvferry.client.batch import ValueFrame
from kvferry.client.buffers import KEY_SIZE_BYTES_MAX, Key
from kvferry.config.integrations import LmcacheSettings
from kvferry.connectors.serde import CODECS

__all__ = ["ChunkNames"]

_STRIPE_BYTES = 4 << 20  # native/codec/stripe.hpp
_SUFFIX_BYTES = 16  # of stripes that follow: "#" and their number
_HEAD_BYTES = 256  # what a shortened key keeps of its beginning, for people
_is_ascii = methodcaller("isascii")


class ChunkNames:
    """Makes names of keys, and frames for lengths. Any thread."""

    def __init__(self, settings: LmcacheSettings) -> None:
        self.verify = settings.verify
        self.prefix = f"{settings.namespace}:" if settings.namespace else ""
        # Never "#" and digits at the end: that is how the other stripes of a value are named.
        self.suffix = ";" if settings.verify else ""
        description = describe_identity(
            engine="lmcache", format=1, namespace=settings.namespace or "none"
        )
        self._identity = identity_digest(description)
        self._codec = CODECS[settings.remote_serde]
        self._stripes_max = 1  # of any value seen so far

    def of(self, keys: Sequence[Key]) -> Sequence[Key]:
        """The names of these keys, in order."""
        if self.prefix:
            keys = [self._named(key) for key in keys]
        limit = KEY_SIZE_BYTES_MAX - _SUFFIX_BYTES
        longest = max(map(len, keys))
        if longest <= limit and (longest * 4 <= limit or all(map(_is_ascii, keys))):
            return keys
        return [_shortened(key, limit) for key in keys]

    def _named(self, key: Key) -> Key:
        if isinstance(key, str):
            return f"{self.prefix}{key}{self.suffix}"
        return self.prefix.encode() + key + self.suffix.encode()

    def key_of(self, name: bytes) -> str | None:
        """LMCache's key of a name; None for what is none, such as a stripe that follows."""
        prefix, suffix = self.prefix.encode(), self.suffix.encode()
        if not name.startswith(prefix) or not name.endswith(suffix):
            return None
        return name[len(prefix) : len(name) - len(suffix)].decode(errors="replace")

    def frame(self, size_bytes: int) -> ValueFrame:
        """The frame of values of this length."""
        self._stripes_max = max(self._stripes_max, -(-size_bytes // _STRIPE_BYTES))
        return ValueFrame(self._identity, size_bytes, self._codec)

    def to_delete(self, names: Sequence[Key]) -> list[Key]:
        """The names, then those of all stripes that values of the lengths seen so far may have."""
        more = [
            f"{name}#{stripe}" if isinstance(name, str) else b"%s#%d" % (name, stripe)
            for stripe in range(1, self._stripes_max)
            for name in names
        ]
        return [*names, *more]


def _shortened(key: Key, limit: int) -> Key:
    whole = key.encode(errors="surrogatepass") if isinstance(key, str) else key
    if len(whole) <= limit:
        return key
    return whole[:_HEAD_BYTES] + b"~" + hashlib.sha256(whole).hexdigest().encode()
