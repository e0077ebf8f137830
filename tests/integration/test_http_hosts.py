"""Without a token HTTP answers who asks for this host by a name of this host: a page of elsewhere,
whose own name leads to loopback by now (DNS rebinding), reads nothing."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from kvferry.config import endpoints
from kvferry.config.server import ServerConfig
from kvferry.http.listener import HttpListener
from kvferry.sharing.controller.http.app import make_app
from support.engines import memory_store, open_engine
from support.holdings import controller
from support.views import FakeView, ask, http_of

TOKEN = "t0ken-t0ken-t0ken"

OURS = (
    *("localhost", "localhost:9000", "LocalHost:1", "127.0.0.1", "127.0.0.1:9000", "127.9.9.9"),
    *("[::1]", "[::1]:9000", "[::ffff:127.0.0.1]:80"),
)
OTHERS = (
    *("evil.example", "evil.example:9000", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("", ":9000", "10.0.0.1:9000", "0.0.0.0:9000", "[2001:db8::1]:9000", "[::1].evil.example"),
    *("evil.example#localhost", "evil@localhost", "localhost@evil.example", "a" * 10_000),
)
PATHS = {
    "controller": (
        *("/", "/health", "/metrics", "/docs", "/openapi.json", "/v1/cluster", "/v1/nodes"),
        *("/v1/lookup", "/v1/prefixes", "/v1/keys", "/v1/transfers", "/v1/jobs", "/v1/pins"),
        *("/v1/quotas", "/v1/events", "/controller/workers", "/controller/key-stats"),
        *("/page/live", "/page/view", "/nothing"),
    ),
    "server": (
        *("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/v1/status"),
        *("/v1/config", "/v1/pins", "/v1/prefetch", "/nothing"),
    ),
}


@contextmanager
def served(what: str, token: str | None = None) -> Iterator[str]:
    if what == "controller":
        with controller(http_token=token) as ctl:
            listener = HttpListener(make_app(ctl), "127.0.0.1", 0, "choose another --port")
            listener.start()
            try:
                yield listener.url
            finally:
                listener.stop()
        return
    with open_engine(memory_store("hosts")) as engine:
        config = ServerConfig(http=("127.0.0.1", 0), http_token=token)
        side = http_of(FakeView(config, engine))
        side.start()
        try:
            yield side.url
        finally:
            side.stop()


def said(url: str, path: str, *hosts: str, method: str = "GET") -> tuple[int, str]:
    """Status and code of an answer to a request with these lines of Host, none or one."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        for host in hosts or ("localhost",):
            connection.putheader("Host", host)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        answer = connection.getresponse()
        if answer.status == 200:
            return 200, ""
        raw = answer.read()
        return answer.status, json.loads(raw)["error"]["code"] if raw[:1] == b"{" else ""
    finally:
        connection.close()


@pytest.mark.parametrize("what", PATHS)
def test_a_page_whose_name_leads_to_loopback_reads_nothing(what: str) -> None:
    with served(what) as url:
        for path in PATHS[what]:
            assert said(url, path, "evil.example:9000") == (403, "host"), path
        for host in OTHERS:
            assert said(url, "/metrics", host) == (403, "host"), host
        assert said(url, "/v1/pins", "evil.example", method="POST") == (403, "host")


@pytest.mark.parametrize("what", PATHS)
def test_names_and_addresses_of_loopback_are_answered(what: str) -> None:
    with served(what) as url:
        for host in OURS:
            assert said(url, "/metrics", host) == (200, ""), host


def test_the_name_that_the_settings_give_to_a_loopback_address_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "_written", set())
    with served("controller") as url:
        assert said(url, "/metrics", "Cache-1:9000") == (403, "host")
        with monkeypatch.context() as patch:
            found = [(2, 1, 6, "", ("127.0.1.1", 0))]
            patch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            assert endpoints.address_of("host", "Cache-1") == "127.0.1.1"
        assert said(url, "/metrics", "Cache-1:9000") == (200, "")
        assert said(url, "/metrics", "cache-2:9000") == (403, "host")


@pytest.mark.parametrize("what", PATHS)
def test_with_a_token_any_name_will_do(what: str) -> None:
    with served(what, TOKEN) as url:
        health = PATHS[what][1 if what == "controller" else 0]
        assert said(url, health, "cache.example") == (200, "")
        assert said(url, "/metrics", "cache.example") == (401, "token")
        for host in ("cache.example", "localhost"):
            bearer = f"Bearer {TOKEN}"
            assert ask(f"{url}/metrics", Authorization=bearer, Host=host)[0] == 200


def test_a_refused_name_is_named_in_short_and_says_what_to_do() -> None:
    with served("controller") as url:
        status, body = ask(f"{url}/v1/cluster", Host="evil.example" + "a" * 10_000)
        assert status == 403
        assert "token" in body["error"]["text"]
        assert len(body["error"]["text"]) < 300
