"""Ids of requests, and the replies that come to them."""

from __future__ import annotations

import itertools
import os

import msgspec

from kvferry.server.client.counters import Counters
from kvferry.server.protocol import Reply, decode_reply

__all__ = ["new_id", "read_reply"]

_ids = itertools.count(int.from_bytes(os.urandom(4), "little"))


def new_id() -> int:
    """An id for a request; no other request of this process has it."""
    return next(_ids)


def read_reply(frame: bytes, counters: Counters) -> Reply | None:
    """A reply as it came, counted; None: it is none."""
    counters.exchanged(0, len(frame))
    try:
        reply: Reply = decode_reply(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        counters.add("nonsense")
        return None
    return reply
