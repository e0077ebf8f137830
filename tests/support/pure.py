"""What the tests of the pure-Python client share."""

from __future__ import annotations

import random
from typing import Any

from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from support.tuned import tuned

MIB = 1 << 20


def payload(size: int, seed: int = 0) -> bytes:
    """Random bytes that differ by size and seed."""
    return random.Random(seed * 7919 + size).randbytes(size)


def connect(target: Any, **settings: Any) -> PureRedisClient:
    """A client of a server or proxy fixture."""
    return PureRedisClient(target.host, target.port, **tuned(ClientConfig, **settings))
