"""Work that waits for stores: without a thread, and with each of its ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from kvferry.cache.steps import Steps, Wait
from kvferry.connectors.memory import MemoryConnector
from kvferry.rpc.listener import Listener, ServedConnection
from kvferry.server import protocol as p
from kvferry.server.dispatch import Dispatcher, Later
from kvferry.server.sessions.shard import NotifyingConnector
from kvferry.server.wait_queue import WaitQueue
from support.engines import LAYOUT, memory_store
from support.stamps import until


class Event:
    """Something to wait for; `quiet` ones do not tell."""

    def __init__(self) -> None:
        self.done = False
        self.calls: list[Callable[[], object]] = []

    def wait(self, timeout_s: float) -> str | None:
        assert timeout_s == 0.0
        return "came" if self.done else None

    def tell(self, call: Callable[[], object]) -> None:
        self.calls.append(call)

    def set(self, done: bool = True) -> None:
        self.done = done
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Quiet:
    """Something that does not tell."""

    done = False

    def wait(self, timeout_s: float) -> None: ...


@pytest.fixture
def woken() -> list[int]:
    return []


@pytest.fixture
def waits(woken: list[int]) -> WaitQueue[str]:
    return WaitQueue(lambda: woken.append(1))


def test_what_is_told_goes_on_once(waits: WaitQueue[str], woken: list[int]) -> None:
    event, now = Event(), time.monotonic()
    waits.park("a", Wait(event, 60.0))
    waits.park("b", Wait(Event(), 60.0))
    assert waits.ready(now) == []
    event.set()
    assert waits.ready(now) == ["a"]
    assert waits.ready(now) == []
    assert len(waits) == 1
    assert not woken  # it was the loop itself


def test_another_thread_that_tells_wakes_the_loop(waits: WaitQueue[str], woken: list[int]) -> None:
    event = Event()
    waits.park("a", Wait(event, 60.0))
    thread = threading.Thread(target=event.set)
    thread.start()
    thread.join()
    assert woken
    assert waits.ready(time.monotonic()) == ["a"]


def test_what_was_done_before_goes_on(waits: WaitQueue[str]) -> None:
    event = Event()
    event.done = True
    waits.park("a", Wait(event, 60.0))
    assert waits.ready(time.monotonic()) == ["a"]


def test_who_is_told_of_something_else_waits_on(waits: WaitQueue[str]) -> None:
    event, now = Event(), time.monotonic()
    waits.park("a", Wait(event, 60.0))
    event.set(False)
    assert waits.ready(now) == []
    event.set()
    assert waits.ready(now) == ["a"]


def test_time_is_up(waits: WaitQueue[str]) -> None:
    now = time.monotonic()
    waits.park("later", Wait(Event(), 60.0))
    waits.park("soon", Wait(Event(), 20.0))
    assert waits.next_at == pytest.approx(now + 20, abs=10)
    assert waits.ready(now + 40) == ["soon"]
    assert waits.ready(now + 80) == ["later"]


def test_what_does_not_tell_is_looked_at(waits: WaitQueue[str]) -> None:
    quiet, now = Quiet(), time.monotonic()
    waits.park("a", Wait(quiet, 600.0))
    assert waits.ready(now + 60) == []
    assert waits.next_at is not None
    assert waits.next_at < now + 61
    quiet.done = True
    assert waits.ready(now + 120) == ["a"]


def test_nothing_is_left_to_wake_for(waits: WaitQueue[str]) -> None:
    """A loop that would be woken by what is over would not sleep any more."""
    event = Event()
    waits.park("a", Wait(event, 60.0))
    event.set()
    assert waits.ready(time.monotonic()) == ["a"]
    assert waits.next_at is None


# --- A loop ---


class Silent:
    """Sockets of the loop: nothing comes but what the test serves."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.came: list[tuple[ServedConnection, bytes]] = []
        self._woken = threading.Event()

    def wait(self, timeout_s: float) -> Iterator[tuple[ServedConnection, bytes]]:
        self._woken.wait(timeout_s)
        self._woken.clear()
        came, self.came = self.came, []
        yield from came

    def wake(self) -> None:
        self._woken.set()

    def send(self, route: ServedConnection, body: bytes) -> bool:
        self.sent.append(body)
        return True

    connections = refused = 0


def test_hundreds_wait_for_a_store_and_no_thread_with_them() -> None:
    """Each begins at once, whatever the others wait for; those who are done are answered."""
    count, events = 500, [Event() for _ in range(500)]
    ended: list[int] = []
    listener = Silent()

    def handle(request: p.Request) -> p.Reply | Later:
        def steps() -> Steps[int]:
            try:
                found = yield Wait(events[request.id], 60.0)
                assert found == "came"
                found = yield Wait(Event(), 0.0)
                assert found is None
            finally:
                ended.append(request.id)
            return request.id

        def reply(found: int | None) -> p.Reply:
            return p.Count(request.id, -1 if found is None else found)

        return Later(steps, reply, lambda: None, "somebody", 60.0)

    loop = Dispatcher(cast(Listener, listener), handle, lambda: None)
    before = set(threading.enumerate())
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        ping = [p.encode(p.Ping(number, 0, 0)) for number in range(count)]
        listener.came = [(cast(ServedConnection, None), body) for body in ping]
        listener.wake()
        until(lambda: loop.status()["parked"] == count, 30)
        threads = [one for one in threading.enumerate() if one not in before and one is not thread]
        assert 0 < len(threads) <= 16
        assert not listener.sent
        for event in events[100:200]:
            event.set()
        until(lambda: len(listener.sent) == 100, 30)
        counts = [p.decode_reply(body) for body in listener.sent]
        assert sorted(one.count for one in counts if isinstance(one, p.Count)) == [*range(100, 200)]
        assert loop.status()["waiting"] == loop.status()["parked"] == count - 100
    finally:
        loop.stop()
        thread.join(30)
    loop.close()  # what waits still lets go of what it holds
    assert sorted(ended) == [*range(count)]


def test_what_nobody_waits_for_is_done_as_well() -> None:
    """Also where it fails: the loop goes on."""
    came, listener = Event(), Silent()
    loop = Dispatcher(cast(Listener, listener), lambda request: p.Done(1), lambda: None)
    done: list[str] = []

    def steps() -> Steps[None]:
        done.append((yield Wait(came, 60.0)))
        raise ValueError

    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        loop.in_background(steps())
        until(lambda: loop.status()["parked"] == 1, 30)
        came.set()
        until(lambda: loop.status()["waiting"] == 0, 30)
        assert done == ["came"]
        loop.in_background(steps())
        until(lambda: done == ["came", "came"], 30)
        assert not listener.sent
    finally:
        loop.stop()
        thread.join(30)


# --- Tickets that tell ---


@pytest.fixture
def store() -> Iterator[MemoryConnector]:
    with memory_store("notifying") as connector:
        yield connector


def test_a_ticket_tells_when_it_is_done(store: MemoryConnector) -> None:
    notifying, told = NotifyingConnector(store), list[str]()
    value, into = bytes(LAYOUT.chunk_bytes), bytearray(b"x" * LAYOUT.chunk_bytes)
    store.batch_set(["a"], [value])
    ticket = notifying.submit_get(["a"], [into], prefix=True, timeout_s=10.0)
    ticket.tell(lambda: told.append("a"))

    def is_told() -> bool:
        notifying.drain()
        return bool(told)

    until(is_told, 10)
    result = ticket.wait(0.0)
    assert result is not None
    assert (ticket.done, ticket.prefix_len, bytes(into)) == (True, 1, value)
    ticket.tell(lambda: told.append("at once"))
    assert told == ["a", "at once"]


def test_a_ticket_can_be_waited_for_where_nobody_drains(store: MemoryConnector) -> None:
    notifying = NotifyingConnector(store)
    result = notifying.submit_exists(["a"], prefix=True, touch=True).wait(10.0)
    assert result is not None
    assert result.prefix_len == 0
    assert cast(Any, notifying).space == store.space  # all else is the connector's own


def test_a_ticket_that_nobody_has_is_no_ones(store: MemoryConnector) -> None:
    """It is drained all the same: its buffers are free."""
    notifying = NotifyingConnector(store)
    notifying.submit_exists(["a"])
    kept = notifying.submit_exists(["b"])
    assert kept.wait(10.0) is not None
    assert not list(notifying._tickets)
