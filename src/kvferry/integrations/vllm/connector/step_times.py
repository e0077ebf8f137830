"""What the steps of an engine take: from the connector's first call in a step to its last one.

    clock.begin()                      before anything of the step
    clock.end(totals, copied_s)        when all is computed, or was told to the device
    for totals, took_s in clock.taken(): ...

On a CPU that is the time between the two, less what was spent on our own copies. On a GPU the host
runs ahead of the device, so two events are recorded, and asked in later steps whether they have
passed. Nobody waits for them.

Threads: the engine's one. Nothing of CUDA is touched by importing this.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

__all__ = ["CudaSteps", "HostSteps", "Steps", "Totals", "step_clock"]

# Tokens of prompts, pairs, and sequences that went on; see `kvferry.cache.cost.prefill`.
Totals = tuple[int, int, int]

# Steps that may wait for their events; a step beyond these is not measured.
_OUTSTANDING_MAX = 32


class Steps(Protocol):
    """See the module."""

    def begin(self) -> None: ...

    def end(self, totals: Totals, copied_s: float) -> None: ...

    def taken(self) -> Iterator[tuple[Totals, float]]: ...


class HostSteps:
    """Steps of an engine whose calls return when they are done.

    Args:
        clock: For tests; as ``time.monotonic``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._taken: deque[tuple[Totals, float]] = deque()

    def begin(self) -> None:
        """A step begins."""
        self._began = self._clock()

    def end(self, totals: Totals, copied_s: float) -> None:
        """It has computed so much, and we have copied for so long meanwhile."""
        began, self._began = self._began, None
        if began is not None:
            self._taken.append((totals, self._clock() - began - copied_s))

    def taken(self) -> Iterator[tuple[Totals, float]]:
        """What is known now, each step once."""
        while self._taken:
            yield self._taken.popleft()


class CudaSteps:
    """Steps of an engine that tells a GPU what to do.

    Args:
        event: Makes an event that takes the time, with ``record``, ``query`` and ``elapsed_time``.
    """

    def __init__(self, event: Callable[[], Any]) -> None:
        self._event = event
        self._began: Any = None
        self._free: list[Any] = []
        self._outstanding: deque[tuple[Totals, Any, Any]] = deque()

    def begin(self) -> None:
        """A step begins."""
        if self._began is None and len(self._outstanding) < _OUTSTANDING_MAX:
            self._began = self._new()
        if self._began is not None:
            self._began.record()

    def end(self, totals: Totals, copied_s: float) -> None:
        """Everything of it was told to the device; our copies have streams of their own."""
        began, self._began = self._began, None
        if began is not None:
            ended = self._new()
            ended.record()
            self._outstanding.append((totals, began, ended))

    def taken(self) -> Iterator[tuple[Totals, float]]:
        """The steps that the device has done by now, each once."""
        while self._outstanding and self._outstanding[0][2].query():
            totals, began, ended = self._outstanding.popleft()
            took_s = began.elapsed_time(ended) / 1e3
            self._free += (began, ended)
            yield totals, took_s

    def _new(self) -> Any:
        return self._free.pop() if self._free else self._event()


def step_clock(device: Any) -> Steps:
    """For steps on a ``torch.device``."""
    if device.type != "cuda":
        return HostSteps()
    import torch

    return CudaSteps(lambda: torch.cuda.Event(enable_timing=True))
