"""The presence view: which keys there are, without a round trip.

    client = kvferry.RedisClient(presence_prefix="kv:")
    client.presence(["kv:one", "kv:two"])  # [True, False]: probably there, certainly not

The servers announce every change of keys with the prefix; a thread of the client keeps count.
Absent is said only of a key that the server had not when it last spoke, and never of one that this
client has stored, unless it went away afterwards. Where that cannot be known the answer is None:
before the first snapshot, after a connection was lost, while a key changes. See
docs/guides/presence.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvferry.client.buffers import Key, encode_keys

if TYPE_CHECKING:
    from kvferry import _native

__all__ = ["Presence"]


class Presence:
    """What a native client knows of its keys; both clients have these methods."""

    def _handle(self) -> _native.Client:
        raise NotImplementedError

    def presence(self, keys: Sequence[Key]) -> list[bool | None]:
        """What is known of each key: True probably there, False certainly absent, None unknown.

        Asks nobody and never blocks. Keys without the `presence_prefix` are unknown; so are all
        while no such prefix is set.

        Raises:
            UsageError: The keys are none.
            ClosedError: The client is closed, in a forked child.
        """
        if isinstance(keys, str | bytes):
            encode_keys(keys)  # raises: a single key is not a batch
        return self._handle().presence(tuple(keys))

    def presence_stats(self) -> dict[str, int]:
        """Counters of the view: ``nodes`` that it watches and ``nodes_synced`` it can speak for,
        ``keys`` known to be there, ``changing`` ones, changes that servers ``announced``, keys that
        were ``asked`` about, ``snapshots``, ``forgotten`` (times that a node's keys became unknown)
        and ``memory_bytes``."""
        return self._handle().presence_stats()
