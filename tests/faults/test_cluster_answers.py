"""Nodes of a cluster that answer nonsense, in circles, or not for now: the native client gives
every command a status, in time and within its limits.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kvferry.client.batch import Status
from support.clients import completions, opened
from support.cluster import key_slot
from support.pure import payload
from support.scripted import Action, Command, MiniStore, ScriptedServer, answer
from support.scripted_cluster import lying
from support.stamps import MIB, until, within

IDENTITY = bytes(range(16))
REDIRECTS_MAX = 16  # of one command: native/redis/router.hpp


def client_of(server: ScriptedServer, **settings: Any) -> Any:
    return opened("native", server, topology="cluster", **settings)


def test_redirections_in_a_circle_end() -> None:
    told = {b"GET": b"-MOVED 1 127.0.0.1:%d\r\n", b"SET": b"-ASK 1 :%d\r\n"}
    server: ScriptedServer

    def circle(command: Command) -> Action | None:
        text = told.get(command.name)
        return text % server.port if text else None

    with lying(circle) as server, client_of(server) as client, within(10):
        read = client.batch_get(["a", "b"], [bytearray(1), bytearray(1)])
        assert list(read) == [Status.UNAVAILABLE] * 2
        assert "without end" in read.error
        assert client.batch_set(["a"], [b"1"])[0] is Status.UNAVAILABLE
        assert server.names().count(b"GET") <= 2 * (REDIRECTS_MAX + 1)
        assert server.names().count(b"SET") <= REDIRECTS_MAX + 1
        assert client.batch_exists(["a"])[0] is Status.MISS  # the connection is in step


@pytest.mark.parametrize(
    ("said", "statuses"),
    [
        (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", {Status.UNAVAILABLE}),
        (b"-CLUSTERDOWN The cluster is down\r\n", {Status.UNAVAILABLE}),
        (b"-MOVED 1 ?:7000\r\n", {Status.UNAVAILABLE}),
        (b"-MOVED\r\n", {Status.SERVER_ERROR}),
        (b"-MOVED 1 h:99999\r\n", {Status.SERVER_ERROR}),
        (b"-MOVED 99999 127.0.0.1:1\r\n", {Status.SERVER_ERROR}),
        (b"-ASK 1 127.0.0.1:1\r\n", {Status.UNAVAILABLE}),
        (b"-MOVED 1 127.0.0.1:1\r\n", {Status.UNAVAILABLE}),
        (b"-LOADING not yet\r\n", {Status.UNAVAILABLE}),
    ],
)
def test_what_a_node_may_say(said: bytes, statuses: set[Status]) -> None:
    with lying(answer(said, b"GET")) as server, client_of(server) as client, within(15):
        result = client.batch_get(["a", "b"], [bytearray(1), bytearray(1)], timeout_s=5)
        assert set(result) == statuses
        assert result.error
        until(lambda: client.batch_set(["a"], [b"1"]).ok, 5)


@pytest.mark.parametrize("times", [1, 3])
def test_try_again_is_tried_again(times: int) -> None:
    handler = answer(b"-TRYAGAIN later\r\n", b"GET", times=times)
    with lying(handler) as server, client_of(server) as client, within(5):
        client.set("a", b"1")
        assert client.get("a", bytearray(1))
        assert server.names().count(b"GET") == times + 1


def test_a_command_that_waits_to_be_tried_again_can_be_withdrawn() -> None:
    with lying(answer(b"-TRYAGAIN later\r\n", b"GET")) as server, client_of(server) as client:
        client.set("a", b"1")
        batch = client.submit_batch_get(["a"], [bytearray(1)])
        client.cancel(batch)
        assert completions(client, 1, 2)[batch][0] in (Status.CANCELLED, Status.UNAVAILABLE)
        with within(2):
            result = client.batch_get(["a"], [bytearray(1)], timeout_s=0.1)
        assert result[0] is Status.TIMEOUT


def test_redirects_to_ever_new_nodes_are_bounded() -> None:
    """A node that invents another one for each command costs no more than its limits."""
    ports = iter(range(20_000, 60_000))

    def inventive(command: Command) -> Action | None:
        if command.name != b"EXISTS":
            return None
        # An address of its own: on 127.0.0.1, a server of another test may have the port.
        return b"-MOVED 1 127.77.0.1:%d\r\n" % next(ports)

    with lying(inventive) as server, client_of(server, connections=1) as client, within(60):
        result = client.batch_exists([f"k{index}" for index in range(300)], timeout_s=10)
        assert set(result) <= {Status.UNAVAILABLE, Status.TIMEOUT}
        assert client.stats()["nodes"] <= 301
        assert threading.active_count() < 50


@pytest.mark.parametrize(
    "reply",
    [
        b"+OK\r\n",
        b"*0\r\n",
        b"*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\nh\r\n:1\r\n",
        b"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\n?\r\n:7000\r\n",
        b"-ERR unknown command 'CLUSTER'\r\n",
        b"*1000000000\r\n",
        b"$16000000000\r\n",
        b":1\r\n",
        b"@\r\n",
    ],
)
def test_maps_that_are_none(reply: bytes) -> None:
    with (
        ScriptedServer(answer(reply, b"CLUSTER"), MiniStore()) as server,
        client_of(server) as client,
        within(10),
    ):
        until(lambda: not client.available, 6)
        result = client.batch_exists(["k"])
        assert result[0] is Status.UNAVAILABLE
        assert result.error


def test_slots_without_a_node_are_unavailable() -> None:
    owner = b"*2\r\n$0\r\n\r\n:%d\r\n"
    server: ScriptedServer
    served = key_slot("here")

    def some(command: Command) -> Action | None:
        if command.name != b"CLUSTER":
            return None
        return b"*1\r\n*3\r\n:%d\r\n:%d\r\n%b" % (served, served, owner % server.port)

    with ScriptedServer(some, MiniStore()) as server, client_of(server) as client:
        result = client.batch_set(["here", "there"], [b"1", b"2"])
        assert list(result) == [Status.OK, Status.UNAVAILABLE]
        assert "no node of the cluster serves" in result.error


def test_the_stripe_of_a_set_that_is_redirected_without_end() -> None:
    """Stripe 0 waits for the others; when one of them fails, it must not be written, nor wait."""
    server: ScriptedServer

    def circle(command: Command) -> Action | None:
        if command.name == b"SET" and command[1].endswith(b"#1"):
            return b"-MOVED 1 :%d\r\n" % server.port
        return None

    with lying(circle) as server, client_of(server) as client, within(15):
        here = client.namespace("kv:", identity=IDENTITY, value_size_bytes=9 * MIB)
        result = here.batch_set(["v"], [payload(9 * MIB)])
        assert result[0] is Status.UNAVAILABLE
        assert here.exists("v") is False
