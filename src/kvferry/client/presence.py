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

import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvferry.client.buffers import Key, encode_keys
from kvferry.config import ClientConfig

if TYPE_CHECKING:
    from kvferry import _native

__all__ = ["Presence", "View", "view_of"]

# Questions for each second that all views together may cost a server.
_LOAD_MAX_PER_S = 5000


class View(NamedTuple):
    """The view that a cache keeps of its keys.

    Attributes:
        seat: The same for all of this host who would keep the same one: of this user, store and
            prefix. One of them does.
        keys_max: How many keys it may hold.
        load_max: It is off while changes x views pass this in a second; 0: never.
        optional: Nobody asked for it, so a server that refuses is no warning.
    """

    seat: str
    keys_max: int
    load_max: int
    optional: bool


def view_of(config: ClientConfig, prefix: str) -> View | None:
    """What the setting `presence` says of keys with this prefix; None: no view is to be kept."""
    if config.presence == "off" or config.protocol != 3:
        return None
    where = (config.seeds, config.unix_path, config.db, config.sentinel_master, config.username)
    digest = hashlib.blake2b(repr((where, prefix)).encode(), digest_size=16).hexdigest()
    auto = config.presence == "auto"
    return View(
        seat=f"kvferry-presence-{os.geteuid()}-{digest}",
        keys_max=config.presence_keys_max,
        load_max=_LOAD_MAX_PER_S if auto else 0,
        optional=auto,
    )


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

    def _watch(self, config: ClientConfig, prefix: str) -> None:
        """Keep the view that the settings say, unless they name another one."""
        view = view_of(config, prefix)
        if view is not None and config.presence_prefix is None:
            self._handle().watch(prefix, *view)

    def _leading(self, keys: Sequence[Key]) -> int:
        """How many keys are before the first that is certainly absent."""
        known = self.presence(keys)
        return known.index(False) if False in known else len(known)
