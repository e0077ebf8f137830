"""Waiting for a store that was just opened to be reached."""

from __future__ import annotations

import time

from kvferry.cache.steps import Steps, Wait
from kvferry.connectors.base import Connector

__all__ = ["reached"]

_LOOK_S = 0.002


class _Contact:
    """That a store is reached, as what a step waits for."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    def wait(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while not self.done and time.monotonic() < until:
            time.sleep(_LOOK_S)

    @property
    def done(self) -> bool:
        return self._connector.available


def reached(connector: Connector, until: float) -> Steps[bool]:
    """Whether a store is available; waits for that up to a moment of ``time.monotonic``."""
    left_s = until - time.monotonic()
    if left_s > 0 and not connector.available:
        yield Wait(_Contact(connector), left_s)
    return connector.available
