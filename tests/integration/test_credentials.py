"""Functions that provide credentials, through every client: asked anew, rotated, failing, blocking.

The pure client's own ways (it replaces a connection before its credentials expire, where the native
one authenticates it again) are in test_pure_credentials.py.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvferry import Credentials
from kvferry.base import errors
from kvferry.client.batch import Status
from support import clock
from support.clients import KINDS, NATIVE, opened, tls_port_of
from support.cluster import Cluster
from support.servers import TestServer
from support.stamps import KIB, MIB, fetch, poisoned, store, until, within

Start = Callable[..., TestServer]

USER = "user app on >token-1 ~* &* +@all"
# All that a client needs of a server, for keys with one prefix; HELLO and AUTH are always allowed.
CACHE_USER = "user app on >token-1 ~cache:* resetchannels -@all +get +set +exists +touch +del +ping"
CACHE_USER += " +client|setname"  # of protocol 2, where there is a client_name
IN_A_CLUSTER = " +cluster|slots +asking"
SIZES = {f"k{index}": 64 * KIB for index in range(16)}


class Provider:
    """Gives what `answer` says then; counts how often it is asked, and by how many at once."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = self.asking = self.asking_max = 0
        self.threads: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self) -> Credentials:
        with self._lock:
            self.asked += 1
            self.asking += 1
            self.asking_max = max(self.asking_max, self.asking)
            self.threads.add(threading.current_thread().name)
        try:
            if isinstance(self.answer, BaseException):
                raise self.answer
            answer: Credentials = self.answer() if callable(self.answer) else self.answer
            return answer
        finally:
            with self._lock:
                self.asking -= 1


@pytest.fixture
def guarded(start: Start) -> TestServer:
    return start("valkey", password="unused", users=[USER])


@pytest.fixture(autouse=True)
def _no_token_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert "token-" not in caplog.text


def client_ids(server: TestServer) -> set[bytes]:
    """Of the connections of the user "app"."""
    lines = server.cli("CLIENT", "LIST").splitlines()
    return {line.split()[0] for line in lines if b"user=app" in line}


def all_nine(client: Any, server: TestServer) -> set[bytes]:
    """Those of a client when it has them all: eight for values and one for small commands."""
    until(lambda: client.stats()["connections_up"] == 8 and len(client_ids(server)) == 9, 5)
    return client_ids(server)


# It is asked.


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_connections_that_begin_at_once_are_one_question(
    guarded: TestServer, kind: str, protocol: int
) -> None:
    def slowly() -> Credentials:
        time.sleep(0.3)
        return Credentials("app", "token-1")

    provider = Provider(slowly)
    with opened(kind, guarded, credentials=provider, protocol=protocol) as client, within(10):
        assert store(client, SIZES).ok
        assert fetch(client, SIZES).result.ok
        if kind in NATIVE:
            until(lambda: client.stats()["connections_up"] == 8, 5)
        assert 1 <= provider.asked <= 4
        assert provider.asking_max == 1
        # Another connection, another question.
        guarded.cli("ACL", "SETUSER", "app", "resetpass", ">token-2")
        provider.answer = Credentials("app", "token-2")
        asked = provider.asked
        guarded.cli("CLIENT", "KILL", "USER", "app")
        until(lambda: fetch(client, SIZES).result.ok, 5)
        assert provider.asked > asked


@pytest.mark.parametrize("kind", KINDS)
def test_over_tls_and_in_a_cluster(
    start: Start, fresh_cluster: Callable[..., Cluster], kind: str
) -> None:
    provider = Provider(Credentials("app", "token-1"))
    secured = start("redis7", tls=True, password="unused", users=[USER])
    cluster = fresh_cluster("valkey", users=[CACHE_USER + IN_A_CLUSTER])
    sizes = {f"cache:{index}": MIB for index in range(16)}
    targets = [tls_port_of(secured), *([cluster] if kind in NATIVE else [])]
    for target in targets:
        with opened(kind, target, credentials=provider) as client, within(10):
            assert store(client, sizes).ok
            assert fetch(client, sizes).result.ok
    assert sum(node.cli("DBSIZE") for node in cluster.nodes) == 16 * (kind in NATIVE)
    assert not any(node.cli("ACL", "LOG") for node in cluster.nodes)


# They expire.


@pytest.mark.parametrize("kind", NATIVE)
def test_live_connections_authenticate_again(guarded: TestServer, kind: str) -> None:
    """Tokens of one second; the server forgets the old ones. Nothing fails, nothing reconnects."""
    serial = [1]

    def next_token() -> Credentials:
        number = serial[0]
        guarded.cli("ACL", "SETUSER", "app", f">token-{number}")
        if number > 2:
            guarded.cli("ACL", "SETUSER", "app", f"<token-{number - 2}")
        serial[0] += 1
        return Credentials("app", f"token-{number}", expires_in_s=1.0)

    provider = Provider(next_token)
    with opened(kind, guarded, credentials=provider, same_host="tcp") as client:
        assert store(client, SIZES).ok
        before, asked = all_nine(client, guarded), provider.asked
        lost = client.stats()["connections_lost"]
        auths = _calls(guarded, "auth")
        ends, limit = time.monotonic() + 4, clock.now_s() + 15

        def is_renewed() -> bool:
            # All nine of them: eight for values and one for small commands.
            again = _calls(guarded, "auth") >= auths + 2 * len(before)
            return again and provider.asked >= asked + 3

        while time.monotonic() < ends or not is_renewed():
            assert clock.now_s() < limit
            result = store(client, SIZES, 2)
            assert result.ok, result.error
            read = fetch(client, SIZES, {2}).result
            assert read.ok, read.error
            assert client.batch_exists(list(SIZES)).ok
        assert client.stats()["connections_lost"] == lost
        assert client_ids(guarded) == before


def _calls(server: TestServer, command: str) -> int:
    stats = server.info("commandstats").get(f"cmdstat_{command}", "calls=0")
    return int(stats.split(",")[0].split("=")[1])


@pytest.mark.parametrize("kind", NATIVE)
def test_idle_connections_authenticate_again(guarded: TestServer, kind: str) -> None:
    """Nobody asks for anything while the token is renewed; the server is told all the same."""
    tokens = iter(range(1, 100))

    def next_token() -> Credentials:
        number = next(tokens)
        guarded.cli("ACL", "SETUSER", "app", f">token-{number}")
        return Credentials("app", f"token-{number}", expires_in_s=1.0)

    with opened(kind, guarded, credentials=next_token, same_host="tcp") as client:
        assert store(client, SIZES).ok
        before, auths = all_nine(client, guarded), _calls(guarded, "auth")
        until(lambda: _calls(guarded, "auth") >= auths + len(before), 4, pause_s=0.1)
        assert client_ids(guarded) == before


@pytest.mark.parametrize("kind", NATIVE)
def test_new_credentials_that_are_wrong(guarded: TestServer, kind: str) -> None:
    """The server refuses what was renewed: UNAVAILABLE, until there are the right ones."""
    provider = Provider(Credentials("app", "token-1", expires_in_s=1.0))
    with opened(kind, guarded, credentials=provider, reconnect_max_s=0.2) as client:
        assert store(client, SIZES).ok
        provider.answer = Credentials("app", "token-9", expires_in_s=1.0)

        def is_refused() -> bool:
            try:
                client.exists("k0")
            except errors.AuthError:  # and no other kind, at any time
                return True
            return False

        until(is_refused, 5)
        assert client.batch_exists(["k0"])[0] is Status.UNAVAILABLE
        provider.answer = Credentials("app", "token-1")
        until(lambda: fetch(client, SIZES).result.ok, 5)


@pytest.mark.parametrize("kind", NATIVE)
def test_a_provider_that_fails_to_renew_costs_nothing_yet(guarded: TestServer, kind: str) -> None:
    """The server, not we, knows how long credentials are good for."""
    provider = Provider(Credentials("app", "token-1", expires_in_s=0.5))
    with opened(kind, guarded, credentials=provider) as client:
        assert store(client, SIZES).ok
        until(lambda: client.stats()["connections_up"] == 8, 5)
        lost, asked = client.stats()["connections_lost"], provider.asked
        provider.answer = OSError("no route to the vault")
        until(lambda: provider.asked > asked, 5)
        for _ in range(10):
            assert fetch(client, SIZES).result.ok
        assert client.stats()["connections_lost"] == lost


# It does not answer as it should.


@pytest.mark.parametrize("kind", KINDS)
def test_a_provider_that_raises(
    guarded: TestServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Provider(LookupError("the vault has no token-1 today"))
    with opened(kind, guarded, credentials=provider, reconnect_max_s=0.2) as client:
        began = time.monotonic()
        while (took_s := time.monotonic() - began) < 1.0:
            with within(2):
                result = client.batch_exists(["k"])
            assert result[0] is Status.UNAVAILABLE
            assert "LookupError" in str(result.error)
            assert "vault" not in str(result.error)
            time.sleep(0.01)
        assert provider.asked <= 40 * took_s  # with pauses
        provider.answer = Credentials("app", "token-1")
        until(lambda: store(client, SIZES).ok, 5)
    assert "LookupError" in caplog.text
    assert "vault" not in caplog.text


@pytest.mark.parametrize("kind", NATIVE)
def test_a_provider_that_exits_is_asked_again(guarded: TestServer, kind: str) -> None:
    provider = Provider(SystemExit("token-1"))
    with opened(kind, guarded, credentials=provider, reconnect_max_s=0.2) as client:
        with within(2):
            result = client.batch_exists(["k"])
        assert result[0] is Status.UNAVAILABLE
        assert "SystemExit" in str(result.error)
        assert "token-1" not in str(result.error)
        provider.answer = Credentials("app", "token-1")
        until(lambda: store(client, SIZES).ok, 5)


@pytest.mark.parametrize(
    "nonsense", [None, "token-1", ("app", "token-1"), {"password": "token-1"}, 7], ids=type
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_provider_that_returns_nonsense(guarded: TestServer, kind: str, nonsense: object) -> None:
    provider = Provider(nonsense)
    with opened(kind, guarded, credentials=provider, reconnect_max_s=0.2) as client:
        with within(2):
            result = client.batch_exists(["k"])
        assert result[0] is Status.UNAVAILABLE
        assert type(nonsense).__name__ in str(result.error)
        assert "token-1" not in str(result.error)
        provider.answer = Credentials("app", "token-1")
        until(lambda: store(client, SIZES).ok, 5)


@pytest.mark.parametrize("kind", NATIVE)
def test_a_provider_that_never_answers(guarded: TestServer, kind: str) -> None:
    """It costs the attempts, each for connect_timeout_s; not the calls, and not close()."""
    release = threading.Event()

    def stuck() -> Credentials:
        release.wait(30)
        return Credentials("app", "token-1")

    provider = Provider(stuck)
    settings = {"credentials": provider, "connect_timeout_s": 0.3, "reconnect_max_s": 0.2}
    try:
        with opened(kind, guarded, **settings) as client:
            with within(1.5):
                result = client.batch_get(["k"], [poisoned(KIB)])
            assert result[0] is Status.UNAVAILABLE
            until(lambda: "credentials" in str(client.batch_exists(["k"]).error), 5)
            with within(1):
                assert all(not client.batch_exists(["k"]).ok for _ in range(20))
            assert provider.asked == 1
            release.set()
            until(lambda: store(client, SIZES).ok, 5)
            release.clear()
            guarded.cli("CLIENT", "KILL", "USER", "app")
            with within(3):
                client.batch_exists(["k"])
            closing = clock.now_s()
        assert clock.now_s() - closing < 2
    finally:
        release.set()


# What the server knows changes.


@pytest.mark.parametrize("kind", KINDS)
def test_a_password_that_is_flipped_and_back(start: Start, kind: str) -> None:
    server = start("valkey", password="right")
    with opened(kind, server, password="right", reconnect_max_s=0.2) as client:
        assert store(client, SIZES).ok
        server.cli("CONFIG", "SET", "requirepass", "another")
        server.cli("CLIENT", "KILL", "USER", "default")
        until(lambda: "WRONGPASS" in str(client.batch_exists(["k0"]).error), 5)
        dialled = int(server.info("stats")["total_connections_received"])
        began, asked = time.monotonic(), 0
        with within(3):
            while (took_s := time.monotonic() - began) < 1 or asked <= 50:
                assert client.batch_get(["k0"], [poisoned(64 * KIB)])[0] is Status.UNAVAILABLE
                asked += 1
                time.sleep(0.001)
        assert int(server.info("stats")["total_connections_received"]) < dialled + 60 * took_s
        server.cli("CONFIG", "SET", "requirepass", "right")
        until(lambda: fetch(client, SIZES).result.ok, 5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server_kind", ["valkey", "redis7"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_user_of_one_prefix_with_no_more_than_it_needs(
    start: Start, kind: str, server_kind: str, protocol: int
) -> None:
    server = start(server_kind, users=[CACHE_USER])
    given = {"credentials": lambda: Credentials("app", "token-1"), "protocol": protocol}
    given["same_host"] = "tcp"  # else it asks for the Unix socket, and is refused
    sizes = {"cache:a": MIB, "theirs": MIB, "cache:b": 9 * MIB}
    expected = [Status.OK, Status.SERVER_ERROR, Status.OK]
    with opened(kind, server, **given) as client, within(20):
        stored = store(client, sizes, ttl_s=60)
        assert list(stored) == expected, stored.error
        assert "NOPERM" in str(stored.error)
        read = fetch(client, sizes).result
        assert list(read) == expected, read.error
        for touch in (False, True):
            assert list(client.batch_exists(list(sizes), touch=touch)) == expected
        assert list(client.batch_delete(list(sizes))) == expected
        assert client.batch_exists(["cache:a"])[0] is Status.MISS
    denied = server.cli("ACL", "LOG", 20)
    assert all(b"theirs" in entry for entry in denied), denied
    assert server.cli("EXISTS", "theirs") == 0


@pytest.mark.parametrize("kind", KINDS)
def test_ping_needs_no_key(start: Start, kind: str) -> None:
    server = start("valkey", users=[CACHE_USER])
    with opened(kind, server, username="app", password="token-1") as client, within(5):
        began = time.monotonic()
        assert 0 < client.ping() <= time.monotonic() - began
