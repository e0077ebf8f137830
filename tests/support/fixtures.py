"""Pytest fixtures for real servers and proxies; loaded by tests/conftest.py.

valkey, redis7   one server each per session, empty at the start of every test
server           both, one after the other
fresh_server     a Valkey of the test's own, to kill, pause and fill
start            start_server() whose servers are stopped after the test
proxied          FaultProxy in front of a server; closed after the test
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from support.proxy import FaultProxy
from support.servers import KINDS, TestServer, find_kind, start_server


def _session_server(kind: str) -> Iterator[TestServer]:
    try:
        find_kind(kind)
    except LookupError as reason:
        pytest.skip(str(reason))
    with start_server(kind) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_session() -> Iterator[TestServer]:
    yield from _session_server("valkey")


@pytest.fixture(scope="session")
def redis7_session() -> Iterator[TestServer]:
    yield from _session_server("redis7")


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
            try:
                find_kind(kind)
            except LookupError as reason:
                pytest.skip(str(reason))
            return stack.enter_context(start_server(kind, *extra_args, **options))

        yield start_and_stop_later


@pytest.fixture
def proxied() -> Iterator[Callable[[TestServer], FaultProxy]]:
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(FaultProxy(server.host, server.port))
