"""A listener with threads: the order of a connection's messages, and ends of connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvferry.rpc.listener import Listener, ServedConnection, greediest, origin_of
from kvferry.rpc.service import Handled, HungUp, Service
from kvferry.rpc.zmtp import GREETING, READY_CLIENT, framed
from support.stamps import until
from support.wire_peer import WirePeer

LIMIT_S = 10.0


class Echo:
    """Sends messages back; b"slow" in a thread, when it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.heard: list[bytes] = []

    def __call__(self, connection: ServedConnection, body: bytes | memoryview) -> Handled:
        text = bytes(body)
        self.heard.append(text)
        if text.startswith(b"slow"):
            return lambda: text if self.may.wait(LIMIT_S) else None
        if text == b"silent":
            return None
        if text == b"end":
            raise HungUp("it is to end", b"the last word")
        return text


@contextmanager
def served(
    tmp_path: Path, handle: Any, tick: Callable[[], object] = lambda: None, **limits: Any
) -> Iterator[tuple[Service, Listener, str]]:
    listener = Listener(**limits)
    endpoint = listener.listen(f"ipc://{tmp_path}/served")
    service = Service(listener, handle, "test", 2, tick)
    service.start()
    try:
        yield service, listener, endpoint
    finally:
        service.close()
    assert not Path(f"{tmp_path}/served").exists()


def test_messages_of_a_connection_are_answered_in_their_order(tmp_path: Path) -> None:
    echo = Echo()
    with (
        served(tmp_path, echo) as (_, _, endpoint),
        WirePeer(endpoint) as one,
        WirePeer(endpoint) as other,
    ):
        asked = [b"slow", b"silent", b"1", b"slow again", b"2"]
        one.hello().send(b"".join(map(framed, asked)))
        until(lambda: echo.heard, LIMIT_S)
        assert other.hello().ask(b"meanwhile") == b"meanwhile"
        assert echo.heard == [b"slow", b"meanwhile"]
        one.send(framed(b"3"))
        echo.may.set()
        said = [one.reply() for _ in range(5)]
        assert said == [b"slow", b"1", b"slow again", b"2", b"3"]


@pytest.mark.parametrize("end", [b"end", b"slow end"])
def test_who_is_hung_up_on_hears_why_and_is_heard_no_more(tmp_path: Path, end: bytes) -> None:
    echo = Echo()
    echo.may.set()

    def handle(connection: ServedConnection, body: bytes | memoryview) -> Handled:
        found = echo(connection, body)
        if body == b"slow end":

            def ends() -> bytes:
                raise HungUp("it is to end", b"the last word")

            return ends
        return found

    with served(tmp_path, handle) as (_, listener, endpoint), WirePeer(endpoint) as peer:
        peer.hello().send(framed(end) + framed(b"more") + framed(b"and more"))
        assert peer.reply() == b"the last word"
        peer.await_end()
        until(lambda: listener.connections == 0, LIMIT_S)
        assert echo.heard == [end]


def test_who_goes_while_work_is_under_way_costs_nothing(tmp_path: Path) -> None:
    echo = Echo()
    with served(tmp_path, echo) as (_, listener, endpoint):
        with WirePeer(endpoint) as gone:
            gone.hello().send(framed(b"slow"))
            until(lambda: echo.heard, LIMIT_S)
        until(lambda: listener.connections == 0, LIMIT_S)
        echo.may.set()
        with WirePeer(endpoint) as other:
            assert other.hello().ask(b"there") == b"there"


def test_nobody_is_late_while_we_do_not_read(tmp_path: Path) -> None:
    """Half a message lies there for longer than a peer may take."""
    echo = Echo()
    with (
        served(tmp_path, echo, message_s=0.2) as (_, _, endpoint),
        WirePeer(endpoint) as peer,
    ):
        half = framed(b"x" * 300)
        peer.hello().send(framed(b"slow") + half[:100])
        until(lambda: echo.heard, LIMIT_S)
        time.sleep(0.6)
        echo.may.set()
        assert peer.reply() == b"slow"
        peer.send(half[100:])
        assert peer.reply() == b"x" * 300


def test_a_clock_that_raises_stops_nothing_and_work_needs_no_connection(tmp_path: Path) -> None:
    ticks: list[int] = []
    done = threading.Event()

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 1:
            raise ValueError("of ours")

    with served(tmp_path, Echo(), tick) as (service, _, endpoint), WirePeer(endpoint) as peer:
        until(lambda: len(ticks) > 1, LIMIT_S)
        service.background(done.set)
        service.background(lambda: 1 / 0)
        assert done.wait(LIMIT_S)
        assert peer.hello().ask(b"there") == b"there"


def test_what_was_never_started_ends(tmp_path: Path) -> None:
    listener = Listener()
    listener.listen(f"ipc://{tmp_path}/served")
    service = Service(listener, Echo(), "test", 1)
    service.close()
    service.close()
    assert not Path(f"{tmp_path}/served").exists()


# --- Who is let in ---


def test_a_peer_that_is_greeted_has_to_answer(tmp_path: Path) -> None:
    listener: Listener

    def handle(connection: ServedConnection, body: bytes | memoryview) -> Handled:
        if bytes(body) == b"well met":
            listener.met(connection)
        return bytes(body)

    limits: dict[str, Any] = {"handshake_s": 0.5, "greets": lambda _: b"who are you?"}
    with (
        served(tmp_path, handle, **limits) as (_, listener, endpoint),
        WirePeer(endpoint) as friend,
        WirePeer(endpoint) as other,
    ):
        for peer in (friend, other):
            assert peer.hello().reply() == b"who are you?"
        assert friend.ask(b"well met") == b"well met"
        assert other.ask(b"who are you?") == b"who are you?"
        other.await_end()
        assert friend.ask(b"still here") == b"still here"
        assert (listener.connections, listener.refused) == (1, 1)


def test_of_those_that_say_nothing_the_oldest_makes_room(tmp_path: Path) -> None:
    with (
        served(tmp_path, Echo(), unmet_max=3) as (_, listener, endpoint),
        ExitStack() as stack,
    ):
        friends = [stack.enter_context(WirePeer(endpoint)).hello() for _ in range(8)]
        silent = [stack.enter_context(WirePeer(endpoint)) for _ in range(5)]
        for one in silent[:2]:
            one.await_end()
        until(lambda: listener.connections == 8 + 3, 10)
        assert [friend.ask(b"x") for friend in friends] == [b"x"] * 8
        silent[-1].send(GREETING + READY_CLIENT)
        assert silent[-1].ask(b"y") == b"y"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "20010db800010002"),
        ("fe80::1%eth0", "fe80000000000000"),
        ("", ""),
    ],
)
def test_the_origin_of_an_address(host: str, origin: str) -> None:
    assert origin_of(host) == origin


@pytest.mark.parametrize(
    ("held", "newcomer", "gives"),
    [("aaab", "b", "a"), ("aaab", "c", "a"), ("aab", "b", None), ("aaa", "a", None)],
)
def test_who_has_most_makes_room(held: str, newcomer: str, gives: str | None) -> None:
    assert greediest(held, newcomer) == gives


def test_one_host_cannot_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(connections_max=4)
    endpoint = listener.listen("tcp://127.0.0.1:0")
    service = Service(listener, Echo(), "test", 1)
    service.start()
    with ExitStack() as stack:
        stack.callback(service.close)
        crowd = [stack.enter_context(WirePeer(endpoint)).hello() for _ in range(4)]
        with WirePeer(endpoint) as one_more:
            one_more.await_end()
        connect = partial(socket.create_connection, source_address=("127.0.0.2", 0))
        monkeypatch.setattr("support.wire_peer.socket.create_connection", connect)
        elsewhere = stack.enter_context(WirePeer(endpoint)).hello()
        crowd.pop().await_end()
        assert [peer.ask(b"x") for peer in (*crowd, elsewhere)] == [b"x"] * 4
