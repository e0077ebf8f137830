"""Fixtures of the fault suite: the two clients by one name, and the marker `slow`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kvferry import RedisClient
from kvferry.client.pure import PureRedisClient

CLIENTS: dict[str, type[RedisClient] | type[PureRedisClient]] = {
    "native": RedisClient,
    "pure": PureRedisClient,
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than 15 s; a short version runs beside it")


def _opener(kinds: dict[str, Any], kind: str) -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:

        def open_client(target: Any = None, **settings: Any) -> Any:
            if target is not None:
                settings = {"host": target.host, "port": target.port, **settings}
            return stack.enter_context(kinds[kind](**settings))

        yield open_client


@pytest.fixture(params=list(CLIENTS))
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """connect(server or proxy, **settings): a client that is closed after the test."""
    yield from _opener(CLIENTS, request.param)


@pytest.fixture
def connect_native() -> Iterator[Callable[..., RedisClient]]:
    """As `connect`, the native client alone."""
    yield from _opener(CLIENTS, "native")
