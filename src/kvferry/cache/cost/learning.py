"""What an engine knows of its own speed: told by the settings, kept in its stores, or learnt.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvferry.cache.cost.prefill import Coefficients, PrefillModel
from kvferry.cache.cost.speeds import Speeds
from kvferry.cache.cost.step_fit import possible
from kvferry.connectors.base import Connector

__all__ = ["Learning"]


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
