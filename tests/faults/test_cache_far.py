"""A store more than a second away is a store: it is asked, read and written, and nobody waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvferry import TieredCache
from support.engines import CHUNK, check, expected, open_engine, prompt
from support.presence import await_synced, settle, watched
from support.proxy import FaultProxy
from support.servers import TestServer, wait_for

RTT_S, LIMIT_S = 1.2, 30.0


@contextmanager
def far(server: TestServer, **settings: Any) -> Iterator[tuple[TieredCache, FaultProxy]]:
    """An engine that began beside its store, which moved away then."""
    with FaultProxy(server.host, server.port) as proxy:
        stores = [{"type": "redis", "url": f"redis://{proxy.host}:{proxy.port}"}]
        with open_engine(stores=stores, retrieve_timeout_s=LIMIT_S, **settings) as engine:
            wait_for("the store", lambda: engine.tiers[0].generations.known, LIMIT_S)
            proxy.up.delay_s = proxy.down.delay_s = RTT_S / 2
            yield engine, proxy


@pytest.mark.ways("tcp")
def test_a_store_that_takes_a_second_to_answer_is_read(valkey: TestServer) -> None:
    """Its generation was asked for with a limit of a second, and without one nothing is read."""
    with far(valkey) as (engine, _):
        generations = engine.tiers[0].generations
        moved = time.monotonic()
        wait_for("answers of now", lambda: generations._asked_at > moved + 1, LIMIT_S)
        until = time.monotonic() + 3 * RTT_S
        while time.monotonic() < until:
            assert generations.known
            time.sleep(0.05)
        tokens = prompt(4 * CHUNK)
        engine.store(tokens, expected(tokens))
        assert engine.flush(LIMIT_S)
        engine.clear(stores=False)
        check(engine, tokens, want=4 * CHUNK)


@pytest.mark.ways("tcp")
def test_the_view_of_a_store_far_away_comes_back(valkey: TestServer) -> None:
    """Half a second was given to a greeting that takes a round trip."""
    with FaultProxy(valkey.host, valkey.port) as proxy, watched(proxy) as client:
        proxy.up.delay_s = proxy.down.delay_s = RTT_S / 2
        client.set("kv:a", b"x")
        proxy.cut_now()
        wait_for("its end", lambda: client.presence_stats()["nodes_synced"] == 0, LIMIT_S)
        await_synced(client)
        settle(client, {"kv:a": True, "kv:b": False})
