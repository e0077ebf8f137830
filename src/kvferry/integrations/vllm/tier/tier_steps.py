"""What computing takes, as a tier sees it: in the scheduler, between the ends of two steps.

    steps.ended(now, new)           the step that was planned begins to run; `new` are its requests
    steps.stored(request, 0, 512)   tokens of a prompt that were computed some steps ago
    steps.finished(request)

A tier is not told what a step computes. But the first chunks of a request that are offered to it
are those of its first step, so a step that began one request, alone, is measured when these come.
vLLM may plan a step before the one before it has ended: the longer of two intervals is that of the
prompt, since the other one made a token more. Where that cannot be told, nothing is learnt.

Threads: the scheduler's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kvferry.cache.cost.prefill import PrefillModel

__all__ = ["TierSteps"]


@dataclass(slots=True)
class _First:
    """The first step of a request."""

    request: str
    decodes: int
    took_s: float = 0.0  # until the next step was planned; 0: it was not yet
    is_measured: bool = False
    tokens: int = 0  # that were computed in it; 0: not known yet


class TierSteps:
    """See the module.

    Args:
        prefill: What learns.
    """

    def __init__(self, prefill: PrefillModel) -> None:
        self._prefill = prefill
        self._at = 0.0
        self._active: set[str] = set()
        self._first: _First | None = None

    def ended(self, now: float, new: Collection[str]) -> None:
        """A step was planned, with these requests for the first time."""
        first, gone_s = self._first, now - self._at
        self._at = now
        self._active.update(new)
        if new:
            self._first = None  # of two that may overlap, neither is measured
            if len(new) == 1 and (first is None or first.is_measured):
                self._first = _First(next(iter(new)), len(self._active) - 1)
        elif first is not None and not first.is_measured:
            if not first.took_s:
                first.took_s = gone_s
                first.is_measured = first.request not in self._active
            elif first.request in self._active:
                first.took_s, first.is_measured = max(first.took_s, gone_s), True
            else:
                self._first = None

    def stored(self, request: str, start: int, end: int) -> None:
        """Tokens from `start` to `end` of a prompt were computed in one step."""
        first = self._first
        if first is None:
            return
        if first.request != request or not first.is_measured:
            self._first = None
        elif first.tokens:  # the prompt took another step
            self._prefill.step_tokens = max(self._prefill.step_tokens, first.tokens)
            self._first = None
        else:
            first.tokens = end - start
            pairs = end * end - start * start
            self._prefill.observe_step(first.tokens, pairs, first.decodes, first.took_s)

    def finished(self, request: str) -> None:
        """A request is over."""
        self._active.discard(request)
