"""What an engine knows of its own speed: told by the settings, kept in its stores, or learnt.

`Learning` guards the model of prefill (`kvferry.cache.cost.prefill`), which learns from the
engine's steps. `Speeds` keeps the learnt coefficients in the stores, beside the description of the
identity, under the name of the device. An engine begins with the coefficients of its device, and
writes its own when it has learnt something else.

Threads: any; one of its own waits for stores.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence

from kvferry.base.errors import KVFerryError
from kvferry.base.threads import Guarded, noticed
from kvferry.cache.cost.prefill import Coefficients, PrefillModel
from kvferry.cache.cost.step_fit import possible
from kvferry.connectors.base import Connector

__all__ = ["Learning", "Speeds"]

_log = logging.getLogger("kvferry.cache")

_KEEP_EVERY_S = 30.0  # how often it is seen whether there is something new to keep
_KEPT_STEPS_MIN = 8  # from so many steps on, coefficients are kept
_NEWS_SHARE = 0.1  # by which a prompt's time must differ from what the store has


class Learning:
    """Guards the model of prefill.

    Args:
        known: The coefficients a, c and d, from the settings; None: they are learnt.
        connectors: Says the stores that are open.
        predicted: Told what a prompt was expected to take, and what it took.

    Attributes:
        prefill: The model.
    """

    def __init__(
        self,
        known: tuple[float, float, float] | None,
        connectors: Callable[[], Sequence[Connector]],
        predicted: Callable[[float, float], None],
    ) -> None:
        self.prefill = PrefillModel() if known is None else PrefillModel(*known, fixed=True)
        self._connectors = connectors
        self._predicted = predicted
        self._speeds: Speeds | None = None

    def observe(self, new_tokens: int, pairs: int, decodes: int, took_s: float) -> None:
        """A step took so long, by its totals; see `PrefillModel.observe_step`."""
        if not possible(new_tokens, pairs, decodes, took_s):
            return
        model = self.prefill
        alone = not decodes and model.known
        predicted_s = model.total_s(new_tokens, pairs) if alone else 0.0
        model.observe_step(new_tokens, pairs, decodes, took_s)
        if predicted_s > 0:
            self._predicted(predicted_s, took_s)

    def expect(self, coefficients: Coefficients, step_tokens: int | None = None) -> None:
        """What computing is thought to take until steps say otherwise; see `PrefillModel`."""
        if step_tokens is not None:
            self.prefill.step_tokens = step_tokens
        self.prefill.expect(coefficients)

    def know_device(self, name: str) -> None:
        """Begin with what engines on such a device have learnt, and keep what this one learns.

        Args:
            name: The same for all devices that are equally fast, and for no others.
        """
        connectors = list(self._connectors())
        if self._speeds is None and not self.prefill.fixed and connectors:
            self._speeds = Speeds(connectors, name, self.expect, self._learnt)

    def close(self, timeout_s: float) -> None:
        """Keep what was learnt, within the limit."""
        if self._speeds is not None:
            self._speeds.close(timeout_s)

    def _learnt(self) -> tuple[int, Coefficients]:
        return self.prefill.samples, self.prefill.coefficients


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
        while not self._closing.wait(_KEEP_EVERY_S):
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
        if steps < _KEPT_STEPS_MIN or (self._kept is not None and not _differs(learnt, self._kept)):
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
        if abs(took[0] - took[1]) > _NEWS_SHARE * min(took):
            return True
    return False
