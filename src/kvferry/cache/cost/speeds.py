"""What engines have learnt of their speed, kept in their stores for those that come after them.

Beside the description of an identity a store keeps, for each device by name, the coefficients of
`kvferry.cache.cost.prefill`. An engine begins with those of its device, and writes its own when it
has learnt something else.

Threads: one of its own, which waits for stores; `learnt` and `close` may be called from any.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence

from kvferry.base.errors import KVFerryError
from kvferry.base.threads import Guarded, noticed
from kvferry.cache.cost.prefill import Coefficients
from kvferry.connectors.base import Connector

__all__ = ["Speeds"]

_log = logging.getLogger("kvferry.cache")

# How often what was learnt is looked at, from how many steps on it counts, and when it is news.
_LOOK_EVERY_S = 30.0
_STEPS_MIN = 8
_NEWS = 0.1


class Speeds:
    """Keeps the coefficients of one device.

    Args:
        connectors: Of the stores.
        device: Its name.
        told: Called with what a store had, at the beginning.
        now: Says how many steps were observed, and the coefficients.
    """

    def __init__(
        self,
        connectors: Sequence[Connector],
        device: str,
        told: Callable[[Coefficients], None],
        now: Callable[[], tuple[int, Coefficients]],
    ) -> None:
        self._connectors = list(connectors)
        self._device = device
        self._told = told
        self._now = now
        self._kept: Coefficients | None = None
        self._closing = threading.Event()
        self._thread = Guarded(self._run, "speeds")
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Keep what was learnt, within the limit."""
        self._closing.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        self._recall()
        while not self._closing.wait(_LOOK_EVERY_S):
            self._keep()
        self._keep()

    def _recall(self) -> None:
        for connector in self._connectors:
            try:
                found = _read(connector.notes().get(self._device, ""))
            except Exception as error:  # of a plug-in it may be any
                if not isinstance(error, KVFerryError):
                    noticed("speeds", error)
                _log.info("what computing takes here is not known from the store: %s", error)
                continue
            if found is not None:
                self._kept = found
                self._told(found)
                return

    def _keep(self) -> None:
        steps, learnt = self._now()
        if steps < _STEPS_MIN or (self._kept is not None and not _differs(learnt, self._kept)):
            return
        text = json.dumps({"prefill": [float(f"{value:.6g}") for value in learnt], "steps": steps})
        for connector in self._connectors:
            try:
                if connector.available:
                    connector.note(self._device, text)
            except Exception as error:
                noticed("speeds", error)
        self._kept = learnt


def _read(text: str) -> Coefficients | None:
    """The coefficients in a note; None: there are none that can be."""
    try:
        a, c, d, e = (float(value) for value in json.loads(text)["prefill"])
    except (ValueError, TypeError, KeyError):
        return None
    return (a, c, d, e)


def _differs(one: Coefficients, other: Coefficients) -> bool:
    """Whether a prompt of ordinary length takes another time with these."""
    for tokens in (256, 4096):
        took = [a + c * tokens + d * tokens**2 for a, c, d, _ in (one, other)]
        if abs(took[0] - took[1]) > _NEWS * min(took):
            return True
    return False
