"""Fixtures of the fault suite: both clients by one name, and the ways to a server.

A test that uses `server`, `valkey`, `redis7`, `start` or `proxied` runs once for each way: "tcp"
and "tls", and over "unix" only with `pytest -m soak`. It says otherwise so:

    @pytest.mark.ways("tcp", "tls", "unix")         # these, always
    @pytest.mark.ways("tcp", soak=("tls", "unix"))  # the others only in the soak
    @pytest.mark.ways("tcp", "cluster", "sentinel") # where the server is many: deployments.py

All others run over "tcp", where they do not say. `connect` does the rest: it finds the socket, the
certificates or the seeds, and puts a TlsFront before what speaks no TLS, as a scripted server. The
servers of the way "tls" are Redis 7, whatever the test says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kvferry import RedisClient
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from support.deployments import Deployment, deployment
from support.proxy import FaultProxy
from support.servers import KINDS, TestServer
from support.tls import ServerTls
from support.tls_front import TlsFront
from support.tuned import tuned

CLIENTS: dict[str, type[RedisClient] | type[PureRedisClient]] = {
    "native": RedisClient,
    "pure": PureRedisClient,
}
Server: TypeAlias = TestServer | Deployment
# A way that has one kind of server needs no second test of another kind.
KIND_OF = {"tls": "redis7", "unix": "valkey", "cluster": "valkey", "sentinel": "redis7"}
MANY_WAYS = {"server", "valkey", "redis7", "start", "proxied"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "way" not in metafunc.fixturenames:
        return
    quick: tuple[str, ...] = ("tcp",)
    soak: tuple[str, ...] = ()
    if chosen := metafunc.definition.get_closest_marker("ways"):
        quick, soak = chosen.args, chosen.kwargs.get("soak", ())
    elif MANY_WAYS & set(metafunc.fixturenames):
        quick, soak = ("tcp", "tls"), ("unix",)
    ways = [*quick, *(pytest.param(name, marks=pytest.mark.soak) for name in soak)]
    metafunc.parametrize("way", ways, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if _is_wanted(item)]


def _is_wanted(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if params.get("connect") == "pure" and params.get("way") in ("cluster", "sentinel"):
        return False  # it speaks to one server
    kind = params.get("server", params.get("kind"))
    return kind not in KINDS or KIND_OF.get(params.get("way", ""), kind) == kind


# Where to.


@pytest.fixture
def way(request: pytest.FixtureRequest) -> str:
    """By which way the test reaches its servers."""
    return str(request.param)


def _of_session(kind: str, way: str, request: pytest.FixtureRequest) -> Server:
    name = {"cluster": "cluster", "sentinel": "sentinels", "tls": "tls"}.get(way, kind)
    found = request.getfixturevalue(f"{name}_session")
    if not isinstance(found, TestServer):
        return deployment(found)
    found.flush()
    return found


@pytest.fixture
def valkey(way: str, request: pytest.FixtureRequest) -> Server:
    return _of_session("valkey", way, request)


@pytest.fixture
def redis7(way: str, request: pytest.FixtureRequest) -> Server:
    return _of_session("redis7", way, request)


@pytest.fixture(params=KINDS)
def server(way: str, request: pytest.FixtureRequest) -> Server:
    return _of_session(request.param, way, request)


@pytest.fixture
def start(way: str, start: Callable[..., TestServer]) -> Callable[..., TestServer]:
    """As everywhere; with a TLS port where the way is that."""
    if way != "tls":
        return start
    return lambda _kind, *args, **options: start("redis7", *args, tls=True, **options)


@pytest.fixture
def proxied(way: str) -> Iterator[Callable[..., FaultProxy]]:
    """proxied(server): a FaultProxy on that way. With `sees_replies` TLS ends before it."""
    with ExitStack() as stack:

        def stand_before(server: TestServer, sees_replies: bool = False) -> FaultProxy:
            port = server.port
            options: dict[str, Any] = {}
            if way == "tls" and not sees_replies:
                port, options = server.tls_port, {"opaque": True}
            elif way == "unix":
                home = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvferry-test-"))
                path = str(Path(home, "proxy.sock"))
                options = {"unix_path": server.unix_path, "listen_path": path}
            return stack.enter_context(FaultProxy(server.host, port, **options))

        yield stand_before


# With what.


def _reach(target: Any, way: str, stack: ExitStack) -> dict[str, Any]:
    """The settings of a client of that target."""
    at = {"host": target.host, "port": target.port}
    if isinstance(target, Deployment):
        return at | target.settings
    if way == "unix":
        at_path = target.unix_path if isinstance(target, TestServer) else target.listen_path
        return {"unix_path": at_path}
    if way == "tls":
        if isinstance(target, TestServer) and target.tls:
            return {"host": target.host, "port": target.tls_port, **target.tls.client_settings}
        opaque = isinstance(target, FaultProxy) and target.url.startswith("rediss")
        if opaque or getattr(target, "speaks_tls", False):
            return at | ServerTls().client_settings
        front = stack.enter_context(TlsFront(target.host, target.port))
        return {"host": front.host, "port": front.port, **front.settings}
    return at | {"same_host": "tcp"}


@pytest.fixture
def reach(way: str) -> Iterator[Callable[[Any], dict[str, Any]]]:
    """reach(server or proxy): the settings of a client of it."""
    with ExitStack() as stack:
        yield lambda target: _reach(target, way, stack)


def _opener(kinds: dict[str, Any], kind: str, way: str) -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:

        def open_client(target: Any = None, **settings: Any) -> Any:
            if target is not None:
                settings = _reach(target, way, stack) | settings
            return stack.enter_context(kinds[kind](**tuned(ClientConfig, **settings)))

        yield open_client


@pytest.fixture(params=list(CLIENTS))
def connect(request: pytest.FixtureRequest, way: str) -> Iterator[Callable[..., Any]]:
    """connect(server or proxy, **settings): a client that is closed after the test."""
    yield from _opener(CLIENTS, request.param, way)


@pytest.fixture
def connect_native(way: str) -> Iterator[Callable[..., RedisClient]]:
    """As `connect`, the native client alone."""
    yield from _opener(CLIENTS, "native", way)
