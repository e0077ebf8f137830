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
from typing import NamedTuple

from kvferry.config import ClientConfig

__all__ = ["View", "view_of"]

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
    if config.presence == "off" or config.tuning.protocol != 3:
        return None
    where = (config.seeds, config.unix_path, config.db, config.sentinel_master, config.username)
    digest = hashlib.blake2b(repr((where, prefix)).encode(), digest_size=16).hexdigest()
    auto = config.presence == "auto"
    return View(
        seat=f"kvferry-presence-{os.geteuid()}-{digest}",
        keys_max=config.tuning.presence_keys_max,
        load_max=_LOAD_MAX_PER_S if auto else 0,
        optional=auto,
    )
