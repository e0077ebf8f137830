"""A loopback address and the server's own Unix socket: who moves there, who stays, who comes back.

The machine itself is tested in native/redis/same_host_test.cpp; here are real servers, their users
and their files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvferry import Credentials, RedisClient
from kvferry.client.batch import Status
from support.clients import opened
from support.programs import run_program
from support.proxy import FaultProxy
from support.servers import TestServer, wait_for
from support.stamps import MIB, fetch, store

Start = Callable[..., TestServer]

SIZES = {f"k{index}": MIB for index in range(8)}
USER = "user app on >secret ~* &* +@all"
APP: dict[str, Any] = {"username": "app", "password": "secret"}


def on_socket(client: Any) -> bool:
    """Whether all data connections are there."""
    stats = client.stats()
    return bool(stats["connections_unix"] == stats["connections_up"] == 8)


def await_socket(client: Any) -> None:
    wait_for("data goes over the socket", lambda: on_socket(client), 40)


def await_tcp(client: Any, why: str) -> None:
    """Data goes over TCP for that reason, and works."""

    def is_so() -> bool:
        stats = client.stats()
        return why in stats["same_host"] and stats["connections_up"] == 8

    wait_for(why, is_so, 40)
    assert client.stats()["connections_unix"] == 0, client.stats()
    check(client)


def check(client: Any) -> None:
    """Values go there and come back whole."""
    assert store(client, SIZES, 1).ok
    assert fetch(client, SIZES).versions == dict.fromkeys(SIZES, 1)


def at_socket(server: TestServer) -> list[bool]:
    """Of each connection of a client, as the server sees it, whether it came by the socket."""
    lines = server.cli("CLIENT", "LIST").decode().splitlines()
    rows = [dict(word.partition("=")[::2] for word in line.split()) for line in lines]
    return ["U" in row["flags"] for row in rows if row["name"] == "kvferry"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_data_goes_to_the_socket_by_itself(server: TestServer, host: str) -> None:
    with RedisClient(host, server.port) as client:
        check(client)  # at once
        await_socket(client)
        check(client)
        assert client.stats()["same_host"] == f"unix:{server.unix_path}"
        assert client.stats()["connections_lost"] == 0
        assert {row["connections_unix"] for row in client.nodes()} == {8}
        wait_for(  # the one for small commands, too; and the questions' are gone
            "all nine are at the socket",
            lambda: at_socket(server) == [True] * 9,
        )


def test_an_address_of_ipv6_is_one_of_this_host(start: Start) -> None:
    try:
        server = start("valkey", host="::1")
    except RuntimeError:
        pytest.skip("no IPv6 here")
    with RedisClient("::1", server.port) as client:
        await_socket(client)
        check(client)


def test_who_wants_tcp_stays_there(server: TestServer) -> None:
    with RedisClient.from_url(f"{server.url}?same_host=tcp") as client:
        check(client)
        stats = client.stats()
        assert (stats["same_host"], stats["connections_unix"]) == ("", 0)
        assert not any(at_socket(server))


def test_who_names_the_socket_is_counted_there(server: TestServer) -> None:
    with RedisClient(unix_path=server.unix_path, same_host="unix") as client:
        check(client)
        await_socket(client)
        assert client.stats()["same_host"] == ""


def test_a_server_without_a_socket_stays_at_tcp(start: Start) -> None:
    with RedisClient(port=start("valkey", unix=False).port) as client:
        await_tcp(client, "TCP: the server has no Unix socket")


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
@pytest.mark.parametrize("lacks", ["-config", "-info", "-client|info", "-@dangerous"])
def test_a_user_who_may_not_ask_stays_at_tcp_without_a_word(
    start: Start, kind: str, lacks: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(kind, users=[f"{USER} {lacks}"])
    with caplog.at_level(logging.INFO), RedisClient(port=server.port, **APP) as client:
        await_tcp(client, "TCP: the server may not be asked")
    assert not [line for line in caplog.messages if "asked" in line or "used over" in line]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_the_socket_asks_for_the_same_password(start: Start, kind: str) -> None:
    server = start(kind, password="open-sesame", users=[USER])
    with RedisClient(port=server.port, password="open-sesame") as client:
        await_socket(client)
        check(client)
    with RedisClient(port=server.port, **APP) as client:
        await_socket(client)
        check(client)
    asked = 0

    def provide() -> Credentials:
        nonlocal asked
        asked += 1
        return Credentials("app", "secret")

    with RedisClient(port=server.port, credentials=provide) as client:
        await_socket(client)
        check(client)
        client.close()
    assert asked <= 9  # moving asks nobody


def test_a_proxy_is_not_gone_round(valkey: TestServer) -> None:
    with (
        FaultProxy(valkey.host, valkey.port) as proxy,
        RedisClient(proxy.host, proxy.port) as client,
    ):
        await_tcp(client, "leads through a proxy")
        assert proxy.bytes_down > sum(SIZES.values())


def test_tls_that_was_asked_for_is_kept(tls_server: TestServer) -> None:
    assert tls_server.tls is not None
    assert tls_server.unix_path is not None
    settings = tls_server.tls.client_settings
    with RedisClient(tls_server.host, tls_server.tls_port, **settings) as client:
        check(client)
        assert client.stats()["same_host"] == ""
        assert client.stats()["connections_unix"] == 0


def test_another_server_at_the_path_is_left_alone(start: Start) -> None:
    """It hears nothing, least of all a password."""
    server, other = start("valkey", password="open-sesame"), start("valkey")
    assert server.unix_path is not None
    assert other.unix_path is not None
    os.unlink(server.unix_path)
    os.symlink(other.unix_path, server.unix_path)
    before = other.info("stats")["total_net_input_bytes"]
    with RedisClient(port=server.port, password="open-sesame") as client:
        await_tcp(client, "another process")
    spent = len(b"AUTH") + 1000  # of info() itself
    assert int(other.info("stats")["total_net_input_bytes"]) - int(before) < spent
    assert "AUTH" not in str(other.info("commandstats").get("cmdstat_auth", ""))


def test_a_socket_that_goes_away_and_comes_back(start: Start) -> None:
    server = start("valkey")
    assert server.unix_path is not None
    path, aside = Path(server.unix_path), Path(f"{server.unix_path}-aside")
    with RedisClient(port=server.port) as client:
        await_socket(client)
        path.rename(aside)
        check(client)  # who is connected stays so
        assert on_socket(client)
        server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await_tcp(client, f"{path}: ")
        aside.rename(path)
        await_socket(client)
        check(client)
        assert client.stats()["dials_failed"] == 0


def test_a_server_that_starts_anew_is_asked_anew(start: Start) -> None:
    server = start("valkey")
    with RedisClient(port=server.port) as client:
        for _ in range(2):
            await_socket(client)
            server.restart()
            wait_for("it is back", lambda: client.available and client.ping())
            check(client)


def test_no_operation_fails_while_clients_move(valkey: TestServer) -> None:
    for _ in range(5):
        with RedisClient(port=valkey.port) as client:
            while not on_socket(client):
                check(client)
            stats = client.stats()
            assert (stats["connections_lost"], stats["commands_retried"]) == (0, 0)


OTHER_USER = """
import os, sys
import kvferry
client = kvferry.RedisClient(port=int(sys.argv[1]), same_host="tcp")  # imports what it needs
client.close()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
with kvferry.RedisClient(port=int(sys.argv[1])) as client:
    client.set("key", b"value")
    while "yet" in client.stats()["same_host"]:
        client.set("key", b"value")
    print(client.stats()["same_host"])
    assert client.stats()["connections_unix"] == 0
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("may_open", [False, True])
def test_another_users_socket_is_left_alone(start: Start, may_open: bool) -> None:
    server = start("valkey")
    assert server.unix_path is not None
    if may_open:
        os.chmod(Path(server.unix_path).parent, 0o755)
        os.chmod(server.unix_path, 0o777)
    said = run_program(OTHER_USER, str(server.port))
    assert ("another user's" if may_open else "ermission denied") in said


@pytest.mark.skipif(os.getuid() == 0, reason="root may open any socket")
def test_a_socket_that_may_not_be_opened_is_left_alone(start: Start) -> None:
    server = start("valkey")
    assert server.unix_path is not None
    os.chmod(server.unix_path, 0)
    with RedisClient(port=server.port) as client:
        await_tcp(client, "ermission denied")


AFTER_FORK = """
import os, sys, time
import kvferry
def await_socket(client):
    until = time.monotonic() + 20
    while client.stats()["connections_unix"] < 8:
        assert time.monotonic() < until, client.stats()
        time.sleep(0.01)
    target = bytearray(1 << 20)
    client.set("key", target)
    assert client.get("key", target)
client = kvferry.RedisClient(port=int(sys.argv[1]))
await_socket(client)
pid = os.fork()
await_socket(client)
if pid == 0:
    client.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
await_socket(client)
"""


def test_a_forked_child_finds_the_way_itself(valkey: TestServer) -> None:
    run_program(AFTER_FORK, str(valkey.port))


# --- same_host="unix" ---


def test_who_insists_is_at_the_socket_from_the_first_byte(server: TestServer) -> None:
    for _ in range(3):
        with RedisClient(port=server.port, same_host="unix") as client:
            check(client)
            stats = client.stats()
            assert stats["connections_unix"] == stats["connections_up"]
            assert stats["dials_failed"] == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_who_insists_in_vain_is_told_why(start: Start, host: str) -> None:
    server = start("valkey", users=[f"{USER} -config"])
    with opened("native", server, same_host="unix", **APP) as client:
        result = client.batch_exists(["a"])
        assert result.statuses[0] == Status.UNAVAILABLE
        assert "same_host='unix' is set, but the server may not be asked" in str(result.error)
        assert "CONFIG GET unixsocket" in str(result.error)
        server.cli("ACL", "SETUSER", "app", "+config")
        wait_for("it may be asked now", lambda: client.batch_exists(["a"]).error is None)
        check(client)


def test_who_insists_waits_for_the_socket_alone(start: Start) -> None:
    server = start("valkey")
    assert server.unix_path is not None
    path, aside = Path(server.unix_path), Path(f"{server.unix_path}-aside")
    with RedisClient(port=server.port, same_host="unix") as client:
        check(client)
        path.rename(aside)
        server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        wait_for("it is missed", lambda: not client.available, 20)
        assert "No such file" in str(client.batch_exists(["a"]).error)
        aside.rename(path)
        wait_for("it is back", lambda: client.available and client.ping(), 20)
        check(client)
        await_socket(client)
