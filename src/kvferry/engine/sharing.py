"""What an instance shares: a node lends its chunks, a controller is told, and peers are read.

    sharing = join(engine)      # by the engine itself, where its settings say so
    sharing.leave(engine)

A process is one instance, or one rank of one: it has one node and one reporter, whatever the number
of its engines. The node lends what is in memory, under the names that stores have; the reporter
tells the controller what came and went, and is told who else is there; of those, each engine reads
from the ones that hold chunks of its identity. A controller that is away changes nothing but that:
who is known is read on.

Threads: any; one of its own passes on what changed in memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kvferry._host import host_and_port_of
from kvferry.config import ClientConfig, PeerSettings
from kvferry.config.url import parse_endpoint, show_endpoint
from kvferry.engine.peers import Peers, open_peer
from kvferry.engine.store_tiers import StoreTier, space_of
from kvferry.errors import ConfigError, KVFerryError
from kvferry.keys import DIGEST_BYTES
from kvferry.membership import Command, HeldIdentity, Member, Reporter, Result, Usage
from kvferry.node import Node

if TYPE_CHECKING:
    from kvferry.engine.engine import Engine

__all__ = ["Sharing", "join"]

_log = logging.getLogger("kvferry.engine")

_KEPT = 1 << 16  # changes of memory that wait to be told
_TOLD = 4096  # at a time
_LOOK_S = 0.05
_SLOTS = 8192  # of a snapshot, in one piece
_USER = "peer"
_PREFETCH_S = 30.0
