"""Waiting for a store that was just opened to be reached."""

from __future__ import annotations

import time

from kvferry.cache.steps import Polled, Steps, Wait
from kvferry.connectors.base import Connector

__all__ = ["reached"]


def reached(connector: Connector, until: float) -> Steps[bool]:
    """Whether a store is available; waits for that up to a moment of ``time.monotonic``."""
    left_s = until - time.monotonic()
    if left_s > 0 and not connector.available:
        yield Wait(Polled(lambda: connector.available), left_s)
    return connector.available
