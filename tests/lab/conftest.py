"""One `kvferry serve-demo` over one Valkey for the tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.serve_demo import DemoServer
from support.servers import TestServer, start_server

CHUNK = 64
PACE = ("--bytes-per-token", "2048", "--prefill-tokens-per-s", "40000")


@pytest.fixture(scope="session")
def store() -> Iterator[TestServer]:
    with start_server("valkey") as server:
        yield server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, store: TestServer) -> Iterator[DemoServer]:
    folder = tmp_path_factory.mktemp("demo")
    config = {"chunk_size": CHUNK, "recompute": "never", "remote_url": store.url}
    with DemoServer(folder, *PACE, "--decode-tokens-per-s", "500", config=config) as server:
        yield server
