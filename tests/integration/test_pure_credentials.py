"""The pure-Python client and functions that provide credentials: asked anew, expiring, failing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from kvferry import Credentials
from kvferry.base import errors
from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from support.pure import connect
from support.servers import TestServer
from support.stamps import within

Start = Callable[..., TestServer]


class Provider:
    """Hands out one after the other, the last one for ever; counts how often it was asked."""

    def __init__(self, *answers: Credentials | Exception) -> None:
        self.asked = 0
        self._answers = answers

    def __call__(self) -> Credentials:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def guarded(start: Start) -> TestServer:
    return start("valkey", password="unused", users=["user app on >token-1 ~* &* +@all"])


@pytest.mark.parametrize("protocol", [2, 3])
def test_it_is_asked_for_every_connection(guarded: TestServer, protocol: int) -> None:
    provider = Provider(Credentials("app", "token-1"), Credentials("app", "token-2"))
    with connect(guarded, credentials=provider, protocol=protocol) as client:
        client.set("k", b"1")
        client.set("k", b"2")
        assert provider.asked == 1
        guarded.cli("ACL", "SETUSER", "app", "resetpass", ">token-2")
        guarded.cli("CLIENT", "KILL", "USER", "app")
        client.set("k", b"3")
        assert provider.asked == 2


def test_a_connection_ends_before_its_credentials_do(guarded: TestServer) -> None:
    short = Credentials("app", "token-1", expires_in_s=2.0)  # enough for one connection
    provider = Provider(short, Credentials("app", "token-2", expires_in_s=900))
    with connect(guarded, credentials=provider) as client:
        client.set("k", b"1")
        guarded.cli("ACL", "SETUSER", "app", ">token-2")
        time.sleep(2.0)
        client.set("k", b"2")
        client.set("k", b"3")
        assert provider.asked == 2
        assert client.stats()["connects"] == 2


def test_the_default_user_needs_no_name(start: Start) -> None:
    server = start("valkey", password="p w")
    with connect(server, credentials=lambda: Credentials(None, "p w")) as client:
        client.set("k", b"1")


def test_a_provider_that_fails_costs_the_attempt(
    guarded: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    provider = Provider(LookupError("no token-1 today"), Credentials("app", "token-1"))
    pause = {"reconnect_min_s": 2.0, "reconnect_max_s": 2.0}  # a quarter of a second at least
    with connect(guarded, credentials=provider, **pause) as client, within(5):
        for _ in range(20):  # it is not asked without a pause
            result = client.batch_set(["k"], [b"1"])
        assert provider.asked <= 3
        while (result := client.batch_set(["k"], [b"1"]))[0] is not Status.OK:
            assert "LookupError" in str(result.error)
            time.sleep(0.02)
    assert "LookupError" in caplog.text
    assert "token-1" not in caplog.text


def test_refused_credentials_are_told_without_them(
    guarded: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with connect(guarded, credentials=lambda: Credentials("app", "token-9")) as client:
        with pytest.raises(errors.AuthError, match="WRONGPASS") as caught:
            client.exists("k")
        assert "token-9" not in f"{caught.value}{client!r}{client.config!r}{caplog.text}"


def test_a_user_of_one_prefix(start: Start) -> None:
    server = start("valkey", users=["user app on >token ~cache:* +@read +@write +@connection"])
    with PureRedisClient(server.host, server.port, username="app", password="token") as client:
        client.set("cache:k", b"1")
        result = client.batch_exists(["cache:k", "other"])
        assert list(result) == [Status.OK, Status.SERVER_ERROR]
        assert "NOPERM" in str(result.error)
