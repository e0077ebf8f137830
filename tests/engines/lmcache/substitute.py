"""A pytest plug-in for LMCache's own tests: our classes stand where theirs, or their mocks, stood.

    KVFERRY_TEST_SERVER=127.0.0.1:6400 pytest -p substitute tests/v1/distributed/test_...py

It runs in LMCache's environment. Nothing of a test is changed but the class that it makes; what it
made has a real server behind it, empty at the start of each test. upstream.py says which files are
run, and which tests cannot apply.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import kvferry.integrations.lmcache as ours

HOST, _, _PORT = os.environ["KVFERRY_TEST_SERVER"].partition(":")
PORT = int(_PORT)
VERIFY = os.environ.get("KVFERRY_TEST_VERIFY") == "1"
MADE: list[str] = []  # what of ours this run has made, for the report


def _noted(what: str) -> None:
    MADE.append(what)


class NativeConnector(ours.KvferryClient):
    """For a mock that is made without arguments."""

    def __init__(self) -> None:
        super().__init__(HOST, PORT, 4, verify=VERIFY)
        _noted("client")


class PluginClient(ours.KvferryClient):
    """For a fake that a factory makes with ``adapter_params``."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        _noted("client of a factory")


class RedisExtension(ours.LMCacheRedisClient):
    """For the class of LMCache's extension."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, verify=VERIFY)
        _noted("client for the extension's")


def l2_adapter(config: Any) -> Any:
    """For ``MockL2Adapter(config)``."""
    _noted("L2 adapter")
    params = {"host": HOST, "port": PORT, "verify": VERIFY, "max_capacity_gb": config.max_size_gb}
    return ours.KvferryL2Adapter(params)


def _of_native_connector(module: ModuleType) -> None:
    recording: Any = module.RecordingNativeConnector
    recording.__bases__ = (NativeConnector,)
    _put(module, "MockNativeConnector", NativeConnector)


def _of_mock_adapter(module: ModuleType) -> None:
    _put(module, "MockL2Adapter", l2_adapter)


def _of_factory(module: ModuleType) -> None:
    _put(module, "_FakeNativeConnector", PluginClient)


def _of_plugin(module: ModuleType) -> None:

    class MockTestRemoteConnector(ours.KvferryConnector):  # type: ignore[misc]
        pass

    class MockTestConnectorAdapter(ours.KvferryAdapter):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.schema = "mockplugin://"
            _noted("adapter")

        def can_parse(self, url: str) -> bool:
            return url.startswith(self.schema)

        def create_connector(self, context: Any) -> Any:
            made = super().create_connector(context)
            made.__class__ = MockTestRemoteConnector
            _noted("connector")
            return made

    _put(module, "MockTestRemoteConnector", MockTestRemoteConnector)
    _put(module, "MockTestConnectorAdapter", MockTestConnectorAdapter)


def _of_resp_connector(module: ModuleType) -> None:
    """Their wrapper around our client, and then our connector in place of both: see upstream.py."""
    if os.environ.get("KVFERRY_TEST_CONNECTOR") == "1":
        _put(module, "CreateConnector", _create_ours)
        return
    from lmcache.v1.storage_backend.native_clients import resp_client

    class Client(resp_client.RESPClient):  # type: ignore[misc]
        def __init__(self, host: str, port: int, *args: Any) -> None:
            super().__init__(HOST, PORT, *args)

    _put(module, "MockRESPClient", Client)


def _create_ours(url: str, loop: Any, backend: Any, config: Any = None) -> Any:
    from lmcache.v1.storage_backend.connector.instrumented_connector import (
        InstrumentedRemoteConnector,
    )

    from kvferry.config.integrations import LmcacheSettings

    _noted("connector")
    settings = LmcacheSettings.read({"host": HOST, "port": PORT, "verify": VERIFY})
    return InstrumentedRemoteConnector(
        ours.KvferryConnector(loop, backend, config, settings=settings)
    )


_BY_FILE: dict[str, Callable[[ModuleType], None]] = {
    "test_native_connector_l2_adapter": _of_native_connector,
    "test_mock_l2_adapter": _of_mock_adapter,
    "test_l2_adapter_factory": _of_factory,
    "test_remote_storage_plugin": _of_plugin,
    "test_resp_connector": _of_resp_connector,
}


def _put(module: ModuleType, name: str, thing: object) -> None:
    assert hasattr(module, name), f"{module.__name__} has no {name} any more"
    setattr(module, name, thing)


def pytest_configure(config: pytest.Config) -> None:
    import lmcache.lmcache_redis as extension
    from lmcache.v1.storage_backend.native_clients import resp_client

    extension.LMCacheRedisClient = RedisExtension
    resp_client.LMCacheRedisClient = RedisExtension


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    modules = {item.module for item in items if isinstance(item, pytest.Function)}
    for module in modules:
        place = _BY_FILE.get(module.__name__.rpartition(".")[2])
        if place is not None:
            place(module)


@pytest.fixture(autouse=True)
def _an_empty_server() -> None:
    with socket.create_connection((HOST, PORT), 5) as talk:
        talk.sendall(b"FLUSHALL\r\n")
        assert talk.recv(64).startswith(b"+OK")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = {what: MADE.count(what) for what in dict.fromkeys(MADE)}
    terminalreporter.write_line(f"OURS {counts}")
