"""Calls that wait for somebody else: how many there may be, and where they do it.

HTTP has few threads, and a page, its figures and metrics need one each for a moment. So a call that
waits for an answer which comes by itself returns `AnswerLater`, and holds none. What waits inside
of a call, e.g. for a store, holds one of some that leave others over.

Threads: any for `Ended`; the loop of HTTP for the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from kvferry.http.answers import CallError, called

__all__ = ["AnswerLater", "Ended", "WaitingCalls"]

T = TypeVar("T")

_WAITING_MAX = 64  # calls that wait at a time; one more is refused
_IN_THREADS_MAX = 24  # of the 40 that Starlette has


class Ended(threading.Event):
    """Something that happens once, and that an event loop can wait for as well."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._told: set[Callable[[], object]] = set()

    def set(self) -> None:
        """The event has happened."""
        super().set()
        with self._lock:
            told = list(self._told)
        for tell in told:
            with suppress(RuntimeError):  # that loop is closed
                tell()

    async def reached(self, timeout_s: float) -> None:
        """Wait for the event, or until this time has passed; without a thread."""
        there = asyncio.Event()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, there.set)
        with self._lock:
            self._told.add(tell)
        try:
            if not self.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await there.wait()
        finally:
            with self._lock:
                self._told.discard(tell)


@dataclass(frozen=True)
class AnswerLater(Generic[T]):
    """What a call returns whose answer is to be waited for.

    Attributes:
        ended: For this.
        timeout_s: So long at most; 0: not at all.
        then: The answer, whether it has ended or not; it does not wait.
    """

    ended: Ended
    timeout_s: float
    then: Callable[[], T]


class WaitingCalls:
    """The calls that wait."""

    def __init__(self) -> None:
        self._under_way = 0
        self._threads = asyncio.Semaphore(_IN_THREADS_MAX)

    async def run(self, call: Callable[[], Any]) -> Any:
        """What a call returns in the end.

        Raises:
            CallError: Instead of every error of ours; or too many are under way.
        """
        if self._under_way >= _WAITING_MAX:
            text = f"{_WAITING_MAX} calls that wait are under way; send it again soon"
            raise CallError(429, "busy", text)
        self._under_way += 1
        try:
            async with self._threads:
                found = await run_in_threadpool(called, call)
            if not isinstance(found, AnswerLater):
                return found
            if found.timeout_s > 0:
                await found.ended.reached(found.timeout_s)
            return called(found.then)
        finally:
            self._under_way -= 1
