"""Reporters and controllers over real sockets: what is held is known, whatever happens between."""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Any

import pytest

from kvferry.base.errors import UsageError
from kvferry.rpc.link import encode
from kvferry.rpc.zmtp import GREETING, MESSAGE_BYTES_MAX, READY_CLIENT, framed
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.jobs import Step
from kvferry.sharing.controller.ports import Ports
from kvferry.sharing.membership import Command, Reporter
from kvferry.sharing.membership import reporter as reporter_module
from kvferry.sharing.membership.controller_link import ControllerLink, InstanceProcess, RefusedError
from kvferry.sharing.membership.messages import (
    InstanceRegistered,
    Leave,
    Malformed,
    MemoryUsage,
    RegisterInstance,
    Update,
)
from support.holdings import (
    IDENTITY,
    OTHER,
    FakeCache,
    controller,
    hashes,
    reporting,
)
from support.proxy import FaultProxy
from support.servers import free_port
from support.stamps import until

LIMIT_S = 30.0
FULL_S = 5.0  # in which a controller that is there again knows everybody
MINE = IDENTITY.digest


def held(of: Controller, asked: bytes) -> dict[str, int]:
    return {found.member.instance: found.chunks for found in of.members.lookup(asked)}


def becomes(of: Controller, asked: bytes, expected: dict[str, int]) -> None:
    until(lambda: held(of, asked) == expected, LIMIT_S)


def test_what_an_instance_holds_is_known_and_follows_its_changes() -> None:
    cache = FakeCache()
    cache.add(hashes(4))
    with controller() as ctl, reporting(cache, ctl):
        becomes(ctl, hashes(9), {"one": 4})
        cache.add(hashes(9))
        becomes(ctl, hashes(9), {"one": 9})
        cache.remove(hashes(9)[-32:])
        becomes(ctl, hashes(9), {"one": 7})
        cache.remove(hashes(9)[:16])
        cache.add(hashes(9)[:16])  # an order that one message cannot keep
        cache.remove(hashes(9)[16:32])
        becomes(ctl, hashes(9), {"one": 1})
        member = ctl.members.living()[0]
        assert member.facts.address == "127.0.0.1:7000"
        assert member.usage.capacity_bytes == 1 << 30
    assert ctl.members.living() == []  # it said goodbye


def test_a_controller_that_comes_later_learns_all() -> None:
    """P6: nobody waits for a controller that is not there yet."""
    ports = free_ports()
    cache = FakeCache()
    with reporting(cache, ports) as reporter:
        cache.add(hashes(6))
        until(lambda: reporter.status()["failures"] > 1, LIMIT_S)
        with controller(monitor_ports=ports) as ctl:
            becomes(ctl, hashes(6), {"one": 6})
        cache.remove(hashes(6)[-16:])
        with controller(monitor_ports=ports) as again:  # P3: restarted
            becomes(again, hashes(6), {"one": 5})


@pytest.mark.parametrize("heartbeat", ["at the same port", "at another port"])
def test_a_controller_that_was_away_for_long_knows_everybody_within_seconds(
    heartbeat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took 23 s: each try came after the longest wait, and a refusal of before the registration
    ended the session behind it. Where heartbeats cannot tell, the wait itself is short."""
    monkeypatch.setattr(reporter_module, "_BACKOFF_S", reporter_module._BACKOFF_MAX_S)
    monkeypatch.setattr("kvferry.sharing.membership.reporter.random.uniform", lambda _, most: most)
    cache, ports = FakeCache(), free_ports()
    cache.add(hashes(6))
    with reporting(cache, ports) as reporter:
        with controller(monitor_ports=ports) as ctl:
            becomes(ctl, hashes(6), {"one": 6})
        failures = reporter.status()["failures"]
        until(lambda: reporter.status()["failures"] > failures, LIMIT_S)
        if heartbeat == "at another port":
            ports["heartbeat"] = free_port()
        with controller(monitor_ports=ports) as again:
            until(lambda: held(again, hashes(6)) == {"one": 6}, FULL_S)
            sent = reporter.status()["snapshots"]
            until(lambda: again.members.living()[0].beats > 3, LIMIT_S)
            assert reporter.status()["snapshots"] == sent, "one registration is enough"


def test_a_host_that_does_not_answer_costs_no_more_than_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each try took 5 s, and the next began up to 7.5 s later."""
    tries: list[float] = []

    def silent(*args: object) -> socket.socket:
        tries.append(args[-1] - time.monotonic())  # type: ignore[operator]
        raise TimeoutError("timed out")

    monkeypatch.setattr("kvferry.rpc.channel._dialled", silent)
    with reporting(FakeCache(), free_ports()):
        until(lambda: tries, LIMIT_S)
    assert max(tries) + 1.5 * reporter_module._BACKOFF_MAX_S < FULL_S


def test_what_was_lost_on_the_way_is_known_again_when_the_way_is() -> None:
    cache = FakeCache()
    cache.add(hashes(3))
    with (
        controller(secret="word") as ctl,
        FaultProxy("127.0.0.1", ctl.ports["pull"], opaque=True) as way,
        reporting(cache, {**ctl.ports, "pull": way.port}, secret="word") as reporter,
    ):
        becomes(ctl, hashes(3), {"one": 3})
        seq = reporter.status()["seq"]
        way.black_hole()  # what is sent now is lost
        cache.add(hashes(5))
        until(lambda: reporter.status()["seq"] > seq, LIMIT_S)
        way.heal()
        becomes(ctl, hashes(5), {"one": 5})  # although nothing else changes
        way.cut_now()
        cache.add(hashes(7))
        becomes(ctl, hashes(7), {"one": 7})
        assert ctl.members.living()[0].state == "alive"


def test_a_controller_with_much_to_do_gets_more_time_with_each_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """256 instances began their snapshots again and again, and none of them ended."""
    monkeypatch.setattr(reporter_module, "_STUCK_S", 0.1)
    monkeypatch.setattr(reporter_module, "_BEATS_STUCK", 1)
    monkeypatch.setattr(reporter_module, "_PIECE", 16)
    monkeypatch.setattr(reporter_module, "_BACKOFF_MAX_S", 0.1)
    pull = Ports._pull

    def slow(self: Ports, *message: Any) -> Any:
        def work() -> Any:
            time.sleep(0.3)
            said = pull(self, *message)
            return said() if callable(said) else said

        return work

    monkeypatch.setattr(Ports, "_pull", slow)
    cache = FakeCache()
    cache.add(hashes(9))
    with controller(heartbeat_s=0.1) as ctl, reporting(cache, ctl) as reporter:
        until(lambda: reporter.status()["failures"] > 0, LIMIT_S)
        becomes(ctl, hashes(9), {"one": 9})
        until(lambda: not reporter.status()["problem"], LIMIT_S)


def test_too_much_news_becomes_a_snapshot_and_the_caller_never_waits() -> None:
    ports = free_ports()
    cache = FakeCache()
    with reporting(cache, ports, backlog_bytes=1000) as reporter:
        for n in range(50):
            cache.add(hashes(8, seed=n))
        cache.remove(hashes(8, seed=7))
        with controller(monitor_ports=ports) as ctl:
            becomes(ctl, hashes(8, seed=49), {"one": 8})
            until(lambda: reporter.status()["resync"] is False, LIMIT_S)
            assert held(ctl, hashes(8, seed=7)) == {}
            for n in range(50, 100):
                cache.add(hashes(8, seed=n))
            for n in range(100):
                becomes(ctl, hashes(8, seed=n), {} if n == 7 else {"one": 8})


def test_an_identity_that_comes_later_is_registered() -> None:
    cache = FakeCache()
    with controller() as ctl, reporting(cache, ctl):
        until(lambda: len(ctl.members.living()) == 1, LIMIT_S)
        cache.chunks[OTHER.digest] = set()
        cache.known.append(OTHER)
        cache.add(hashes(2, seed=3), OTHER.digest)
        becomes(ctl, hashes(2, seed=3), {"one": 2})
        until(lambda: OTHER.digest in ctl.members.living()[0].identities, LIMIT_S)


def test_commands_come_with_heartbeats_and_so_do_results() -> None:
    cache = FakeCache()
    cache.add(hashes(4))
    with controller() as ctl, reporting(cache, ctl):
        becomes(ctl, hashes(4), {"one": 4})
        command = Command("-", "delete", MINE, hashes(4)[32:])
        job = ctl.jobs.start("delete", [Step(command, [("one", 0)])])
        assert job.ended.wait(LIMIT_S)
        assert (job.state, job.chunks) == ("done", 2)
        becomes(ctl, hashes(4), {"one": 2})
        job = ctl.jobs.start("dance", [Step(Command("-", "dance"), [("one", 0)])])
        assert job.ended.wait(LIMIT_S)
        assert job.state == "failed"
        assert "dance" in job.text


# --- Who may speak ---


def test_a_secret_keeps_strangers_out_and_reporters_away_from_strangers() -> None:
    cache = FakeCache()
    cache.add(hashes(3))
    with controller(secret="s3cret-word") as ctl:
        where = f"127.0.0.1:{ctl.ports['reply']}"
        for wrong in ("", "other"):
            with pytest.raises(RefusedError, match="secret"):
                ControllerLink.open(where, "reply", InstanceProcess("x", 0), wrong, 10)
        with reporting(cache, ctl, secret="s3cret-word"):
            becomes(ctl, hashes(3), {"one": 3})
        assert ctl.counts["refused"] >= 2
    with controller() as open_to_all:
        where = f"127.0.0.1:{open_to_all.ports['reply']}"
        with pytest.raises((RefusedError, Malformed)):
            ControllerLink.open(where, "reply", InstanceProcess("x", 0), "s3cret-word", 10)


def test_hostile_bytes_end_their_connection_and_nothing_else() -> None:
    cache = FakeCache()
    cache.add(hashes(3))
    with controller() as ctl, reporting(cache, ctl):
        becomes(ctl, hashes(3), {"one": 3})
        for name, port in ctl.ports.items():
            for noise in (
                b"GET / HTTP/1.1\r\n\r\n" * 10,
                b"\xff\xff\xff\xff",
                b"\x00\x00\x00\x05hello",
                b"\x00\x00\x10\x01" + b"x" * 5000,
                b"\x00\x00\x00\x01\xc1",
                GREETING + READY_CLIENT + framed(b"\xc1"),
                GREETING + READY_CLIENT + framed(b"x" * 5000),
                GREETING + READY_CLIENT + b"\x01\x01x",
                GREETING + READY_CLIENT + framed(encode(Leave())),
                READY_CLIENT,
            ):
                with socket.create_connection(("127.0.0.1", port), 10) as stream:
                    stream.sendall(noise)
                    stream.settimeout(20)
                    while stream.recv(65536):
                        pass  # until it is ended
            with pytest.raises((RefusedError, Malformed)):
                ControllerLink.open(
                    f"127.0.0.1:{port}", "pull" if name == "reply" else "reply", *ME
                )
        assert held(ctl, hashes(3)) == {"one": 3}
        assert ctl.members.living()[0].state == "alive"


ME = (InstanceProcess("stranger", 0), "", 10.0)


def test_a_stranger_with_the_name_of_an_instance_changes_nothing() -> None:
    cache = FakeCache()
    cache.add(hashes(3))
    with controller() as ctl, reporting(cache, ctl):
        becomes(ctl, hashes(3), {"one": 3})
        for port in ("pull", "heartbeat"):  # another incarnation: it is not registered
            with pytest.raises(RefusedError, match="not registered"):
                ControllerLink.open(
                    f"127.0.0.1:{ctl.ports[port]}", port, InstanceProcess("one", 0), "", 10
                )
        link, _ = ControllerLink.open(
            f"127.0.0.1:{ctl.ports['reply']}", "reply", InstanceProcess("one", 0), "", 10
        )
        with pytest.raises(RefusedError, match="younger"):
            link.ask(
                RegisterInstance(1.0, "evil:1", (IDENTITY,), MemoryUsage()), InstanceRegistered
            )
        with pytest.raises((RefusedError, OSError)):
            link.ask(Update(99, MINE, hashes(9)), InstanceRegistered)
        link.close()
        assert held(ctl, hashes(9)) == {"one": 3}


def test_a_message_that_is_too_long_is_refused_before_it_is_read() -> None:
    with controller() as ctl:
        me = InstanceProcess("one", 0)
        reply, _ = ControllerLink.open(f"127.0.0.1:{ctl.ports['reply']}", "reply", me, "", 10)
        reply.ask(RegisterInstance(1.0, "", (IDENTITY,), MemoryUsage()), InstanceRegistered)
        reply.close()
        link, _ = ControllerLink.open(f"127.0.0.1:{ctl.ports['pull']}", "pull", me, "", 10)
        refused = ctl.counts["refused"]
        link._channel._socket.sendall(struct.pack(">BQ", 2, MESSAGE_BYTES_MAX + 1))
        with pytest.raises(OSError, match="has ended"):
            link.receive(InstanceRegistered)
        assert ctl.counts["refused"] == refused + 1
        link.close()
        link, _ = ControllerLink.open(f"127.0.0.1:{ctl.ports['pull']}", "pull", me, "", 10)
        link.send(Update(1, MINE, hashes(1)[:5]))
        with pytest.raises(RefusedError, match="16 bytes"):
            link.receive(InstanceRegistered)
        link.close()


def test_there_is_a_limit_on_connections() -> None:
    with controller(connections_max=3) as ctl:
        streams = [socket.create_connection(("127.0.0.1", ctl.ports["pull"]), 10) for _ in range(3)]
        until(lambda: ctl.counts["connections"] == 3, LIMIT_S)
        with pytest.raises(ConnectionError):
            ControllerLink.open(f"127.0.0.1:{ctl.ports['reply']}", "reply", *ME)
        for stream in streams:
            stream.close()
        until(lambda: ctl.counts["connections"] == 0, LIMIT_S)
        link, _ = ControllerLink.open(f"127.0.0.1:{ctl.ports['reply']}", "reply", *ME)
        link.close()


@pytest.mark.parametrize("name", ["", "x" * 129, "two\nlines", "a\0b"])
def test_a_name_that_would_break_a_log_is_no_name(name: str) -> None:
    with pytest.raises(UsageError, match="one line"):
        Reporter(FakeCache(), instance=name, pull="127.0.0.1:1", reply="127.0.0.1:1")
    with controller() as ctl, pytest.raises(RefusedError, match="no message"):
        ControllerLink.open(
            f"127.0.0.1:{ctl.ports['reply']}", "reply", InstanceProcess(name, 0), "", 10
        )


def test_no_thread_is_left_behind() -> None:
    def ours() -> list[str]:
        names = (
            "kvferry-service-controller",
            "kvferry-reporter",
            "kvferry-heartbeat",
            "kvferry-commands",
        )
        return [t.name for t in threading.enumerate() if t.name in names]

    with controller() as ctl, reporting(FakeCache(), ctl):
        until(lambda: len(ctl.members.living()) == 1, LIMIT_S)
        assert len(ours()) == 3
    until(lambda: not ours(), LIMIT_S)


# --- What tests need ---


def free_ports() -> dict[str, int]:
    """Ports that nobody listens on."""
    return {name: free_port() for name in ("pull", "reply", "heartbeat")}
