"""The troubles themselves: what they break is whole again when they end."""

from __future__ import annotations

import random
import time

import pytest

from chaos.calls import Shape
from chaos.groups import sentinel_troubles
from chaos.lanes import Lane
from chaos.troubles import PAUSE_MS, server_troubles
from kvferry.client.batch import Status
from support import clock
from support.history import Violation
from support.sentinel import start_sentinels
from support.servers import TestServer

pytestmark = pytest.mark.full  # tests of the harness itself


class Everything(random.Random):
    """Chooses what comes first, so a pause of ALL."""

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return seq[0]


def test_a_pause_of_everything_ends_by_itself(server: TestServer) -> None:
    """It holds up UNPAUSE as well, which must not wait as long as the tests' own patience."""
    begun = clock.now_s()
    with server_troubles(lambda rng: server, ())["client_pause"](Everything()):
        pass
    assert server.cli("PING") == b"PONG"
    assert clock.now_s() - begun < PAUSE_MS / 1e3 + 1.5


def write_then_read_the_one_before(lane: Lane, at_s: float) -> None:
    """Two values are stored, one after the other; then the first is read. Begun at `at_s`."""
    history, key = lane.history, lane.keys[0]
    versions = []
    for step in (0.0, 0.1):
        write = history.begins(key, "set", at_s + step)
        history.ends(write, at_s + step + 0.01, Status.OK, clean=True)
        versions.append(write.version)
    read = history.begins(key, "get", at_s + 0.2)
    history.ends(read, at_s + 0.21, Status.OK, version=versions[0])


def test_a_pause_of_everything_may_have_the_replica_promoted() -> None:
    """The Sentinels are paused with all others, so what the replica lacks may come back old."""
    lane = Lane("raw", Shape((1024,)), lambda: pytest.fail("no call is made"))
    with start_sentinels("redis7") as group:
        with pytest.raises(Violation, match="stale"):
            write_then_read_the_one_before(lane, time.monotonic())
        with sentinel_troubles(group, [lane])["client_pause"](Everything()):
            write_then_read_the_one_before(lane, time.monotonic())
