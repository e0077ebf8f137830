"""The redis driver on clusters, over TLS, and while its server is away."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry import RedisClient, Status
from kvferry.base import errors
from kvferry.connectors import load_connector
from support import clock
from support.cluster import Cluster
from support.connectors import space_of, value_of
from support.servers import TestServer
from support.stamps import until

SIZE = 5 << 20


def test_a_cluster_is_one_store(cluster: Cluster) -> None:
    space = space_of(SIZE)
    spec = {"type": "redis", "url": cluster.url}
    with load_connector(spec, space) as store:
        keys = [f"k{i}" for i in range(12)]
        assert store.batch_set(keys, [value_of(SIZE, i) for i in range(12)]).ok
        targets = [bytearray(SIZE) for _ in keys]
        assert store.batch_get(keys, targets).ok
        assert targets == [value_of(SIZE, i) for i in range(12)]
        # What a server says of its clients' buffers, which are taken off, lags behind them.
        until(lambda: store.usage(timeout_s=20).used_bytes > 12 * SIZE, 10)
        usage = store.usage(timeout_s=20)
        assert usage.keys is not None
        assert usage.keys >= 24, "stripes count"
        found = {key for batch in store.scan(5) for key, _ in batch}
        assert found == set(keys)
        assert store.descriptions()[space.identity] == space.description


def test_the_control_connection_speaks_tls_and_has_the_password(start: Any, certs: Any) -> None:
    server = start("redis7", tls=True, password="hush")
    space = space_of(1000)
    spec = {
        "type": "redis",
        "url": f"rediss://{server.host}:{server.tls_port}",
        "username": "default",
        "password": "hush",
        "tls_ca_file": certs.ca_file,
    }
    with load_connector(spec, space) as store:
        assert store.batch_set(["a"], [value_of(1000)]).ok
        assert store.usage(timeout_s=20).keys == 2  # and the descriptions
        assert "hush" not in repr(store)
        assert store.descriptions()[space.identity] == space.description


def test_notes_about_a_space_are_kept_and_go_with_its_description(start: Any) -> None:
    server: TestServer = start("valkey")
    space, other = space_of(1000), space_of(1000, weights="others")
    spec = {"type": "valkey", "host": server.host, "port": server.port}
    with load_connector(spec, space) as store, load_connector(spec, other) as beside:
        assert store.notes() == {}
        store.note("device x 2", "text")
        store.note("device x 2", "newer")
        assert store.notes() == {"device x 2": "newer"}
        assert beside.notes() == {}
        assert store.descriptions()[space.identity] == space.description, "no note is one"
        store.undescribe()
        assert store.notes() == {}
        assert store.usage(timeout_s=20).keys == 1  # the description of the other one
        server.stop()
        store.note("device x 2", "lost")
        with pytest.raises((errors.UnavailableError, errors.DeadlineExceeded)):
            store.notes()


def test_a_server_that_is_away(start: Any) -> None:
    server: TestServer = start("valkey")
    space = space_of(1000)
    spec = {"type": "valkey", "host": server.host, "port": server.port}
    with load_connector(spec, space) as store:
        assert store.batch_set(["a"], [value_of(1000)]).ok
        server.stop()
        deadline = clock.now_s() + 20
        while store.available:
            assert store.batch_get(["a"], [bytearray(1000)], timeout_s=1)[0] in (
                Status.UNAVAILABLE,
                Status.TIMEOUT,
            )
            assert clock.now_s() < deadline
        started = clock.now_s()
        with pytest.raises((errors.UnavailableError, errors.DeadlineExceeded)):
            store.usage(timeout_s=1)
        with pytest.raises((errors.UnavailableError, errors.DeadlineExceeded)):
            list(store.scan())
        assert clock.now_s() - started < 10
    with load_connector(spec, space) as store:  # opening needs no server
        assert store.batch_exists(["a"], timeout_s=1)[0] in (Status.UNAVAILABLE, Status.TIMEOUT)


def test_namespaces_see_the_same_values(valkey: TestServer) -> None:
    space = space_of(SIZE)
    spec = {"type": "redis", "host": valkey.host, "port": valkey.port}
    with (
        load_connector(spec, space) as store,
        RedisClient(valkey.host, valkey.port) as client,
    ):
        namespace = client.namespace(space.prefix, space.identity, SIZE)
        assert store.batch_set(["a"], [value_of(SIZE, 1)]).ok
        target = bytearray(SIZE)
        assert namespace.get("a", target)
        assert target == value_of(SIZE, 1)
        namespace.set("b", value_of(SIZE, 2))
        assert store.batch_get(["b"], [target]).ok
        assert target == value_of(SIZE, 2)
