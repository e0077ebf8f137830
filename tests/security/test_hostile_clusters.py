"""No map and no redirect makes a client open sockets, ask for names or keep nodes without limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from security.crowd import Crowd, loopback, slots_reply
from security.hostile import MIB
from security.test_hostile_replies import LATE_S
from security.victim import Victim

CONNECTIONS = 2
DESCRIPTORS_MAX = (
    600  # of a client with two connections to a node, however many nodes it is told of
)
SETTINGS: dict[str, Any] = {
    "topology": "cluster",
    "connections": CONNECTIONS,
    "timeout_s": 0.5,
    "connect_timeout_s": 0.5,
    "stall_timeout_s": 0.5,
    "reconnect_max_s": 0.1,
}


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with Victim() as victim:
        yield victim


def attack(victim: Victim, crowd: Crowd, **settings: Any) -> list[str]:
    """What the calls came to, after looking at what they cost."""
    cost = victim.suffer("native", crowd.host, crowd.port, **SETTINGS, **settings)
    print(cost, crowd.connections)
    assert cost.descriptors < DESCRIPTORS_MAX
    assert cost.growth_bytes < 64 * MIB
    assert max(cost.seconds) < SETTINGS["timeout_s"] + LATE_S
    assert cost.close_s < LATE_S
    assert cost.said_bytes < 256 << 10
    return cost.statuses


@pytest.mark.parametrize("nodes", [1000, 5000])
def test_a_map_of_too_many_nodes(victim: Victim, nodes: int) -> None:
    with Crowd(nodes) as crowd:
        attack(victim, crowd, wait_s=1.0)


@pytest.mark.parametrize("word", [b"MOVED", b"ASK"])
def test_redirects_to_ever_new_nodes(victim: Victim, word: bytes) -> None:
    def elsewhere(turn: int) -> bytes:
        address = loopback(turn).encode(), crowd.port
        return b"-%b %d %b:%d\r\n" % (word, turn % 16384, *address)

    with Crowd(redirect=elsewhere) as crowd:
        statuses = attack(victim, crowd, calls=("get",) * 2, keys=1000, wait_s=0.5)
    assert "OK" not in statuses


@pytest.mark.parametrize("word", [b"MOVED", b"ASK"])
def test_redirects_in_a_circle(victim: Victim, word: bytes) -> None:
    with Crowd(redirect=lambda _: b"-%b 5 127.0.0.1:%d\r\n" % (word, crowd.port)) as crowd:
        attack(victim, crowd, keys=50)
        assert crowd.connections < 50


HOSTS = {
    "a shell's": b"-MOVED 5 $(reboot):6379\r\n",
    "a terminal's": b"-MOVED 5 \x1b[2J\x07:6379\r\n",
    "with a NUL": b"-MOVED 5 127.0.0.1\x00.evil:6379\r\n",
    "with a path": b"-MOVED 5 /etc/passwd:6379\r\n",
    "with a user": b"-MOVED 5 user@127.0.0.1:6379\r\n",
    "long": b"-MOVED 5 " + b"a" * 4000 + b":6379\r\n",
    "of no port": b"-MOVED 5 127.0.0.1:0\r\n",
    "of a large port": b"-MOVED 5 127.0.0.1:99999\r\n",
    "of a port with letters": b"-MOVED 5 127.0.0.1:6379x\r\n",
    "of a slot beyond the last": b"-MOVED 16384 127.0.0.1:6379\r\n",
    "of a negative slot": b"-MOVED -1 127.0.0.1:6379\r\n",
    "of a large slot": b"-MOVED 99999999999999999999 127.0.0.1:6379\r\n",
    "of nothing": b"-MOVED\r\n",
    "of nowhere": b"-MOVED 5 ?:6379\r\n",
    "of no name": b"-MOVED 5 a..b:6379\r\n",
    "of only dots": b"-MOVED 5 ...:6379\r\n",
}


@pytest.mark.parametrize("host", HOSTS)
def test_redirects_to_what_is_no_host(victim: Victim, host: str) -> None:
    with Crowd(redirect=lambda _: HOSTS[host]) as crowd:
        statuses = attack(victim, crowd, calls=("get",))
    assert statuses[0] in ("SERVER_ERROR", "UNAVAILABLE", "TIMEOUT")


def test_redirects_to_names_that_must_be_looked_up(victim: Victim) -> None:
    with Crowd(redirect=lambda turn: b"-MOVED 5 n%d.invalid:6379\r\n" % turn) as crowd:
        attack(victim, crowd, keys=200)


MAPS = {
    "a million entries": slots_reply((0, 1, b"127.0.0.1", 1) for _ in range(150_000)),
    "the whole range, again and again": slots_reply(
        (0, 16384, loopback(index).encode(), 1) for index in range(16384)
    ),
    "hosts without end": slots_reply((i, 1, b"h" * 5000, 1) for i in range(800)),
    "slots that do not exist": slots_reply([(16000, 16384, b"127.0.0.1", 1)]),
    "a negative slot": slots_reply([(-5, 10, b"127.0.0.1", 1)]),
    "ports that are none": slots_reply([(0, 16384, b"127.0.0.1", 65536)]),
    "hosts that are none": slots_reply([(0, 16384, b"a b\x1b[2J", 6379)]),
    "no slots": b"*0\r\n",
    "a replica a thousand times": b"*1\r\n*3002\r\n:0\r\n:16383\r\n"
    + b"*2\r\n$9\r\n127.0.0.1\r\n:1\r\n" * 3000,
}


@pytest.mark.parametrize("read_from", ["primary", "replica"])
@pytest.mark.parametrize("name", MAPS)
def test_maps_that_no_cluster_has(victim: Victim, name: str, read_from: str) -> None:
    with Crowd(slots=MAPS[name]) as crowd:
        statuses = attack(victim, crowd, calls=("get",), read_from=read_from)
    assert statuses[0] in ("UNAVAILABLE", "TIMEOUT")
