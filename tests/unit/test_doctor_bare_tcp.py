"""Bare TCP between two ends of ours: what comes is counted, and nothing is without a bound."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from kvferry.base.errors import UnavailableError
from kvferry_lab.doctor import bare_tcp
from kvferry_lab.doctor.bare_tcp import BareServer, measure_bare
from support import clock

MIB = 1 << 20


@pytest.fixture
def server() -> Iterator[BareServer]:
    with BareServer(port=0) as server:
        thread = threading.Thread(target=server.serve, args=(60.0,))
        thread.start()
        yield server
        server.stop()
        thread.join()


def ask(server: BareServer, count: int) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", server.port), 20)
    assert link.recv(8, socket.MSG_WAITALL) == b"kvferry1"
    link.sendall(struct.pack("!Q", count))
    return link


def test_rates_and_a_round_trip(server: BareServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare_tcp, "_POINT_S", 0.2)
    said: list[str] = []
    found = measure_bare("127.0.0.1", server.port, (1, 3), 1 << 50, said.append)
    assert found.skipped == ""
    assert found.peer == f"127.0.0.1:{server.port}"
    assert found.rtt_s is not None
    assert found.rtt_s > 0
    assert list(found.by_connections) == [1, 3]
    assert all(rate > 0 for rate in found.by_connections.values())
    assert said == ["bare TCP over 1 connections", "bare TCP over 3 connections"]
    assert len(measure_bare("127.0.0.1", server.port, (1, 3), 0).by_connections) == 1


def test_it_sends_what_was_asked_for_and_ends(server: BareServer) -> None:
    with ask(server, 3 * MIB + 5) as link:
        got = 0
        while piece := link.recv(MIB):
            got += len(piece)
    assert got == 3 * MIB + 5


def test_it_is_reached_from_this_host_alone_unless_told(server: BareServer) -> None:
    assert server._listener.getsockname()[0] == "127.0.0.1"
    assert server.address == f"127.0.0.1:{server.port}"


def test_nobody_is_served_for_ever(server: BareServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare_tcp, "_EACH_S", 0.1)
    monkeypatch.setattr(bare_tcp, "_EACH_BYTES_MAX", 2 * MIB)
    with ask(server, 1 << 60) as link:  # more than one may have
        got = 0
        while piece := link.recv(MIB):
            got += len(piece)
        assert 0 < got <= 2 * MIB
    monkeypatch.setattr(bare_tcp, "_QUIET_S", 0.2)
    with socket.create_connection(("127.0.0.1", server.port), 20) as link:  # and says nothing
        assert link.recv(8, socket.MSG_WAITALL) == b"kvferry1"
        assert link.recv(1) == b""


def test_too_many_connections_are_turned_away(
    server: BareServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bare_tcp, "_CONNECTIONS_MAX", 1)
    with ask(server, 0) as first:
        first.sendall(b"?")
        assert first.recv(1) == b"?"
        with socket.create_connection(("127.0.0.1", server.port), 20) as second:
            assert second.recv(8) == b""


def test_it_ends_by_itself() -> None:
    with BareServer(port=0) as server:
        started = clock.now_s()
        server.serve(0.01)
        assert clock.now_s() - started < 10


def test_whoever_is_no_peer_of_ours_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare_tcp, "_QUIET_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        found = measure_bare("127.0.0.1", port, (1,), 1 << 30)
        assert found.skipped == f"127.0.0.1:{port} is not `kvferry doctor --serve`: no greeting"
    found = measure_bare("127.0.0.1", port, (1,), 1 << 30)
    assert found.skipped == f"cannot connect to 127.0.0.1:{port}: Connection refused"
    assert (found.rtt_s, found.by_connections) == (None, {})


def test_an_address_that_is_taken(server: BareServer) -> None:
    with pytest.raises(UnavailableError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        BareServer(port=server.port)
