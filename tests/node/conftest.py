"""In this folder the real server of the fixtures is a node, so that tests of others run on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.node_server import NodeServer


@pytest.fixture(scope="session")
def node_session() -> Iterator[NodeServer]:
    with NodeServer() as server:
        yield server


@pytest.fixture
def node(node_session: NodeServer) -> NodeServer:
    node_session.flush()
    return node_session


@pytest.fixture
def valkey(node: NodeServer) -> NodeServer:
    return node


@pytest.fixture
def server() -> Iterator[NodeServer]:
    """A node of the test's own: its counters begin at 0."""
    with NodeServer() as server:
        yield server
