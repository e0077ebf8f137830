"""The presence view under load: every "absent" is held against what was done to the key.

Own writes are exact: after a SET of ours has returned, absent may be said only if something that
removes the key could have happened since it began. Others' writes have NEWS_S to be heard of.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvferry import RedisClient
from kvferry.client.batch import Status
from support.presence import settle_with, view_connections, watched
from support.proxy import FaultProxy
from support.servers import TestServer

NEWS_S = 3.5  # a beat, and how long its answer may take
KEYS = [f"kv:{index}" for index in range(24)]
RUN_S = 6.0
LONGER_S = 30.0  # at most, where a full machine gives few answers
ENOUGH = 100  # answers of each kind
TTL_S = 0.05


@dataclass(frozen=True)
class Event:
    """Something that stored or removed a key, at some moment between `start` and `end`."""

    stores: bool
    ours: bool
    start: float
    end: float


class History:
    """What was done, and what was said."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.absent: list[tuple[str, float, float]] = []
        self.answers = {True: 0, False: 0, None: 0}

    def goes_on(self, end: float) -> bool:
        """Until the end, and then until there are answers enough."""
        now = time.monotonic()
        return now < end or (now < end + LONGER_S and min(self.answers.values()) <= ENOUGH)

    def wrong(self) -> list[tuple[str, float, float]]:
        return [said for said in self.absent if not self._may_be_absent(*said)]

    def _may_be_absent(self, key: str, asked: float, answered: float) -> bool:
        events = self.events[key]
        known = [
            event
            for event in events
            if event.stores and event.end < (asked if event.ours else asked - NEWS_S)
        ]
        if not known:
            return True
        last = max(event.start for event in known)
        return any(
            not event.stores and event.end >= last and event.start <= answered for event in events
        )


def write(history: History, client: RedisClient, ours: bool, seed: int, end: float) -> None:
    """Sets, with and without expiry, and deletes; of keys of its own, so that order is known."""
    chance = random.Random(seed)
    keys = KEYS[seed % 3 :: 3]
    while history.goes_on(end):
        key = chance.choice(keys)
        kind = chance.choice(("set", "set", "set", "expire", "delete"))
        start = time.monotonic()
        if kind == "delete":
            status = client.batch_delete([key])[0]
            late_s = 0.0 if status in (Status.OK, Status.MISS) else NEWS_S
            event = Event(False, ours, start, time.monotonic() + late_s)
            history.events[key].append(event)
        else:
            ttl_s = TTL_S if kind == "expire" else None
            status = client.batch_set([key], [b"x" * 1000], ttl_s=ttl_s)[0]
            now = time.monotonic()
            if kind == "expire":
                history.events[key].append(Event(False, ours, start + TTL_S, now + 1.2 * TTL_S))
            if status is Status.OK:  # otherwise it may be stored, or not
                history.events[key].append(Event(True, ours, start, now))
        time.sleep(chance.choice((0, 0, 0.002, 0.02)))


def read(history: History, client: RedisClient, end: float) -> None:
    while history.goes_on(end):
        asked = time.monotonic()
        answers = client.presence(KEYS)
        answered = time.monotonic()
        for key, answer in zip(KEYS, answers, strict=True):
            history.answers[answer] += 1
            if answer is False:
                history.absent.append((key, asked, answered))
        time.sleep(0.003)


def trouble(history: History, server: TestServer, proxy: FaultProxy, seed: int, end: float) -> None:
    """Lost views, and a flush now and then."""
    chance = random.Random(seed)
    while history.goes_on(end):
        kind = chance.choice(("kill", "flush", "reset", "nothing"))
        start = time.monotonic()
        if kind == "kill":
            for connection in view_connections(server):
                server.cli("CLIENT", "KILL", "ID", connection)
        elif kind == "reset":
            proxy.cut_now()
        elif kind == "flush":
            server.cli("FLUSHALL")
            flushed = Event(False, False, start, time.monotonic())
            for key in KEYS:
                history.events[key].append(flushed)
        time.sleep(chance.uniform(0.1, 0.6))


@pytest.mark.parametrize("seed", [1, 2])
def test_absent_is_true(server: TestServer, proxied: Callable[..., FaultProxy], seed: int) -> None:
    proxy = proxied(server)
    history = History()
    with watched(proxy) as client, RedisClient(server.host, server.port) as other:
        end = time.monotonic() + RUN_S
        threads = [
            threading.Thread(target=write, args=(history, client, True, 3 * seed, end)),
            threading.Thread(target=write, args=(history, client, True, 3 * seed + 1, end)),
            threading.Thread(target=write, args=(history, other, False, 3 * seed + 2, end)),
            threading.Thread(target=read, args=(history, client, end)),
            threading.Thread(target=trouble, args=(history, server, proxy, seed, end)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(RUN_S + LONGER_S + 30)
        assert history.wrong()[:5] == []
        assert min(history.answers.values()) > ENOUGH, history.answers
        settle_with(client, server, KEYS)


def test_the_check_can_fail() -> None:
    history = History()
    history.events["a"] = [Event(True, True, 1.0, 2.0)]
    history.events["b"] = [Event(True, True, 1.0, 2.0), Event(False, False, 3.0, 4.0)]
    history.events["c"] = [Event(False, True, 0.0, 0.5), Event(True, False, 1.0, 2.0)]
    history.absent = [
        ("a", 1.5, 1.6),  # the SET has not returned
        ("a", 2.1, 2.2),  # wrong
        ("b", 2.5, 2.6),  # wrong
        ("b", 2.5, 3.1),
        ("c", 2.5, 2.6),  # not heard of yet
        ("c", 2.1 + NEWS_S, 2.2 + NEWS_S),  # wrong
    ]
    assert history.wrong() == [history.absent[1], history.absent[2], history.absent[5]]
