"""Pytest fixtures for real servers and proxies; loaded by tests/conftest.py.

valkey, redis7   one server each per session, empty at the start of every test
server           both, one after the other
fresh_server     a Valkey of the test's own, to kill, pause and fill
tls_server       one Redis 7 with a TLS port per session, empty at the start of every test
certs            the certificates that it and others may use
tls_cluster      three Redis 7 primaries with TLS, as `cluster`
cluster          three Valkey primaries per session, empty at the start; to be left as they are
proxied_cluster  the same behind a FaultProxy for each node, healed at the start
fresh_cluster    start_cluster() whose clusters are stopped after the test
sentinels        primary, replica and three Sentinels per session, as `cluster`
fresh_sentinels  start_sentinels() whose groups are stopped after the test
start            start_server() whose servers are stopped after the test
proxied          FaultProxy in front of a server or of its TLS port; closed after the test
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest

from kvferry.config import ClientConfig
from support.certificates import Certificates, certificates
from support.cluster import Cluster, start_cluster
from support.proxy import FaultProxy
from support.sentinel import SentinelGroup, start_sentinels
from support.servers import KINDS, TestServer, start_server

T = TypeVar("T")


def _session_server(kind: str, **options: Any) -> Iterator[TestServer]:
    with _or_skip(start_server, kind, **options) as server:
        yield server


def _or_skip(make: Callable[..., T], *args: Any, **options: Any) -> T:
    """A host without what the test needs is not an error."""
    try:
        return make(*args, **options)
    except LookupError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def valkey_session() -> Iterator[TestServer]:
    yield from _session_server("valkey")


@pytest.fixture(scope="session")
def redis7_session() -> Iterator[TestServer]:
    yield from _session_server("redis7")


@pytest.fixture(scope="session")
def tls_session() -> Iterator[TestServer]:
    yield from _session_server("redis7", tls=True)


@pytest.fixture(scope="session")
def certs() -> Certificates:
    return _or_skip(certificates)


@pytest.fixture
def tls_server(tls_session: TestServer) -> TestServer:
    tls_session.flush()
    return tls_session


@pytest.fixture
def valkey(valkey_session: TestServer) -> TestServer:
    valkey_session.flush()
    return valkey_session


@pytest.fixture
def redis7(redis7_session: TestServer) -> TestServer:
    redis7_session.flush()
    return redis7_session


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> TestServer:
    chosen: TestServer = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def fresh_server() -> Iterator[TestServer]:
    with start_server("valkey") as server:
        yield server


@pytest.fixture
def start() -> Iterator[Callable[..., TestServer]]:
    with ExitStack() as stack:

        def start_and_stop_later(kind: str, *extra_args: str, **options: Any) -> TestServer:
            return stack.enter_context(_or_skip(start_server, kind, *extra_args, **options))

        yield start_and_stop_later


@pytest.fixture(scope="session")
def cluster_session() -> Iterator[Cluster]:
    with _or_skip(start_cluster, "valkey") as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_session: Cluster) -> Cluster:
    cluster_session.flush()
    return cluster_session


@pytest.fixture(scope="session")
def tls_cluster_session() -> Iterator[Cluster]:
    with _or_skip(start_cluster, "redis7", tls=True) as cluster:
        yield cluster


@pytest.fixture
def tls_cluster(tls_cluster_session: Cluster) -> Cluster:
    tls_cluster_session.flush()
    return tls_cluster_session


@pytest.fixture(scope="session")
def proxied_cluster_session() -> Iterator[Cluster]:
    with _or_skip(start_cluster, "valkey", proxied=True) as cluster:
        yield cluster


@pytest.fixture
def proxied_cluster(proxied_cluster_session: Cluster) -> Cluster:
    proxied_cluster_session.flush()
    return proxied_cluster_session


@pytest.fixture
def fresh_cluster() -> Iterator[Callable[..., Cluster]]:
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(
            _or_skip(start_cluster, *args, **options)
        )


@pytest.fixture(scope="session")
def sentinels_session() -> Iterator[SentinelGroup]:
    with _or_skip(start_sentinels, "redis7", down_after_ms=5000) as group:
        yield group


@pytest.fixture
def sentinels(sentinels_session: SentinelGroup) -> SentinelGroup:
    sentinels_session.flush()
    return sentinels_session


@pytest.fixture
def fresh_sentinels() -> Iterator[Callable[..., SentinelGroup]]:
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(
            _or_skip(start_sentinels, *args, **options)
        )


@pytest.fixture
def proxied() -> Iterator[Callable[..., FaultProxy]]:
    with ExitStack() as stack:

        def stand_before(server: TestServer, **options: Any) -> FaultProxy:
            port, opaque = server.tls_port or server.port, bool(server.tls)
            proxy = FaultProxy(server.host, port, opaque=opaque, **options)
            return stack.enter_context(proxy)

        yield stand_before


@pytest.fixture(autouse=True)
def _without_presence_view(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view hears a moment later of what others wrote; few tests mean to show that.

    The default becomes another one; a test that asks for "auto" has the mark.
    """
    check = ClientConfig._check

    def checked(config: ClientConfig) -> None:
        if config.presence == "auto":
            config._set("presence", "off")
        check(config)

    if request.node.get_closest_marker("presence") is None:
        monkeypatch.setattr(ClientConfig, "_check", checked)
