"""Questions to a store that nobody waits for any more, and whether it is silent.

A question that is not answered in time is left, and until its answer comes nobody should wait for
the store. How long a late answer took is learnt all the same. A question whose answer never comes
is given up, and another one is sent to see whether the store answers again.

Threads: any.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from kvferry.base.errors import KVFerryError
from kvferry.client.batch import BatchResult
from kvferry.connectors.base import Connector, Ticket

__all__ = ["LateAnswers"]

_log = logging.getLogger("kvferry.cache")

# What is asked of a store to see whether it answers.
_CANARY = "canary"
# A question that was left is given up after this time, and another one sent.
_GIVEN_UP_S = 10.0
# How much longer than expected an answer may take that nobody ever waited for, before the store
# counts as silent.
_UNAWAITED_GRACE_S = 0.02
_TELL_EVERY_S = 60.0


class _Late(NamedTuple):
    """A question that was left: since when, and from when on its silence counts."""

    ticket: Ticket
    began: float
    silent_at: float
    is_canary: bool


class LateAnswers:
    """The late answers of one store.

    Args:
        name: Of the store, for people.
        connector: To it.
        answered: Learns from an answer: how many seconds it took, and whether the question only
            looked whether the store answers. False: it is none.
    """

    def __init__(
        self, name: str, connector: Connector, answered: Callable[[BatchResult, float, bool], bool]
    ) -> None:
        self._name = name
        self._connector = connector
        self._answered = answered
        self._lock = threading.Lock()
        self._late: list[_Late] = []
        self._told_silent = False
        self._tell_at = -math.inf

    @property
    def silent(self) -> bool:
        """Whether a question that was left has no answer yet, so that nobody should wait."""
        if not self._late:
            return False
        now = time.monotonic()
        with self._lock:
            late, self._late = self._late, []
        kept, hung = [], False
        for each in late:
            result = each.ticket.wait(0)
            if result is None and now - each.began < _GIVEN_UP_S:
                kept.append(each)
            elif result is None or not self._answered(result, result.elapsed_s, each.is_canary):
                each.ticket.cancel()
                hung = True
        if hung and not kept and self._connector.available:
            with suppress(KVFerryError):  # else the next request asks
                kept.append(_Late(self._connector.submit_exists([_CANARY]), now, now, True))
        with self._lock:
            self._late += kept
            silent = any(each.silent_at <= now for each in self._late)
            told, self._told_silent = self._told_silent, self._told_silent and silent
        if told and not silent:
            _log.info("%s answers again", self._name)
        return silent

    def leave(self, ticket: Ticket, began: float, limit_s: float, question_s: float) -> None:
        """Nobody waits for this answer any more.

        Args:
            limit_s: How long somebody did; 0: nobody, and it has its time.
            question_s: What a question is expected to take.
        """
        now, waited = time.monotonic(), limit_s > 0
        with self._lock:
            silent_at = now if waited else now + 2 * question_s + _UNAWAITED_GRACE_S
            self._late.append(_Late(ticket, began, silent_at, False))
            if not waited or self._told_silent or now < self._tell_at:
                return
            self._told_silent, self._tell_at = True, now + _TELL_EVERY_S
        _log.warning(
            "%s did not answer in %.0f ms, which is as long as waiting for it may pay; nobody "
            "waits for it until it does",
            self._name,
            limit_s * 1e3,
        )
