"""The client for LMCache when things break: every batch completes in time, and never with a lie."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.integrations.lmcache import KvferryClient
from support import clock, toxics
from support.lmcache_client import Caller
from support.proxy import FaultProxy
from support.pure import MIB, payload
from support.scripted import MiniStore, ScriptedServer, oom, silent
from support.servers import TestServer, free_port
from support.stamps import until

DEADLINE_S = 0.5
SLACK_S = 5.0  # the machine may be busy; without a deadline nothing would ever come
QUICK: dict[str, Any] = {
    "timeout_s": DEADLINE_S,
    "connect_timeout_s": 0.5,
    "tuning": {"reconnect_max_s": 0.1},
}

Proxied = Callable[..., FaultProxy]


def submit_each(client: KvferryClient, size: int = 100_000) -> dict[str, int]:
    keys, value = ["a", "b"], bytearray(size)
    return {
        "get": client.submit_batch_get(keys, [bytearray(size), bytearray(size)]),
        "set": client.submit_batch_set(keys, [value, value]),
        "exists": client.submit_batch_exists(keys),
        "delete": client.submit_batch_delete(keys),
    }


def all_fail_in_time(client: KvferryClient) -> None:
    caller = Caller(client)
    for name, future_id in submit_each(client).items():
        ok, error, mask = caller.wait(future_id, DEADLINE_S + SLACK_S)
        assert not ok, name
        assert "of 2 keys" in error, name
        assert mask == (None if name == "set" else [False, False]), name


def until_stored(caller: Caller, key: str, value: bytes) -> None:
    limit = clock.now_s() + 20
    while not caller.set([key], [value])[0]:
        assert clock.now_s() < limit, "the client does not come back"


def test_nobody_listens() -> None:
    client = KvferryClient("127.0.0.1", free_port(), 4, **QUICK)
    all_fail_in_time(client)
    assert not client.available
    client.close()


def test_a_server_that_never_answers() -> None:
    with ScriptedServer(silent(), MiniStore()) as deaf:
        client = KvferryClient("127.0.0.1", deaf.port, 2, **QUICK)
        all_fail_in_time(client)
        client.close()


def test_a_black_hole_and_back(valkey: TestServer, proxied: Proxied) -> None:
    way = proxied(valkey)
    client = KvferryClient(way.host, way.port, 4, **QUICK)
    caller = Caller(client)
    until_stored(caller, "k", payload(1000))
    way.black_hole()
    all_fail_in_time(client)
    way.heal()
    way.cut_now()
    until_stored(caller, "k2", payload(1000, 2))
    target = bytearray(1000)
    until(lambda: caller.get(["k"], [target])[2] == [True], 20)  # it is asked for in half a second
    assert target == payload(1000)
    client.close()


def test_a_server_that_is_killed_and_comes_back(fresh_server: TestServer) -> None:
    client = KvferryClient(fresh_server.host, fresh_server.port, 4, **QUICK)
    caller = Caller(client)
    until_stored(caller, "k", payload(1000))
    fresh_server.kill()
    all_fail_in_time(client)
    fresh_server.restart()
    until_stored(caller, "k2", payload(1000))
    targets = [bytearray(1000), bytearray(1000)]
    until(lambda: caller.get(["k", "k2"], targets)[2] == [False, True], 20)
    client.close()


def test_what_fails_in_part(valkey: TestServer) -> None:
    """LMCache's own client calls such a batch a success and hands out what was in the buffers."""
    client = KvferryClient(valkey.host, valkey.port, 2)
    caller = Caller(client)
    keys = [f"k{i}" for i in range(20)]
    caller.set(keys, [payload(5000, i) for i in range(20)])
    valkey.cli("DEL", *keys[::2])
    valkey.cli("RPUSH", keys[0], "a list")
    targets = [bytearray(b"\xee" * 5000) for _ in keys]
    ok, _, mask = caller.get(keys, targets)
    assert not ok
    assert mask == [False, True] * 10
    assert all(targets[i] == payload(5000, i) for i in range(1, 20, 2))
    assert caller.exists(keys)[2] == [True, True] + [False, True] * 9
    client.close()


def test_a_full_server_poisons_nothing() -> None:
    """One -OOM puts LMCache's own client out of step with its replies."""
    with ScriptedServer(oom(times=3), MiniStore()) as server:
        client = KvferryClient("127.0.0.1", server.port, 1)
        caller = Caller(client)
        keys = [f"k{i}" for i in range(6)]
        ok, error, _ = caller.set(keys, [payload(900, i) for i in range(6)])
        assert not ok
        assert "OOM" in error
        assert caller.set(keys, [payload(900, i) for i in range(6)])[0]
        for index, key in enumerate(keys):
            target = bytearray(900)
            assert caller.get([key], [target])[2] == [True]
            assert target == payload(900, index)
        client.close()


@pytest.mark.parametrize("name", toxics.names("slows", "breaks"))
@pytest.mark.parametrize("verify", [False, True], ids=["plain", "verified"])
def test_no_flag_lies_whatever_breaks(
    name: str, verify: bool, valkey: TestServer, proxied: Proxied
) -> None:
    way = proxied(valkey)
    keys = [f"k{i}" for i in range(12)]
    values = [payload(200_000, i) for i in range(12)]
    near = KvferryClient(valkey.host, valkey.port, 2, verify=verify)
    Caller(near).set(keys, values)
    near.close()
    client = KvferryClient(way.host, way.port, 2, verify=verify, **QUICK)
    caller = Caller(client)
    toxics.apply(name, way, seed=7)
    for _ in range(3):
        targets = [bytearray(200_000) for _ in keys]
        future_id = client.submit_batch_get(keys, targets)
        ok, _, mask = caller.wait(future_id, DEADLINE_S + SLACK_S)
        assert mask is not None
        assert ok == all(mask)
        for index, arrived in enumerate(mask):
            assert not arrived or targets[index] == values[index], keys[index]
    way.heal()
    client.close()


def test_close_with_work_in_flight(valkey: TestServer, proxied: Proxied) -> None:
    way = proxied(valkey)
    client = KvferryClient(way.host, way.port, 2)  # deadlines of many seconds
    caller = Caller(client)
    until_stored(caller, "k", payload(10))
    way.black_hole()
    futures = submit_each(client)
    start = clock.now_s()
    client.close()
    assert clock.now_s() - start < SLACK_S
    for future_id in futures.values():
        ok, error, _ = caller.wait(future_id, SLACK_S)
        assert not ok
        assert "CANCELLED" in error


def test_close_while_others_submit_and_drain(valkey: TestServer) -> None:
    """All that were accepted complete; the rest are told that it is closed."""
    client = KvferryClient(valkey.host, valkey.port, 2)
    accepted: list[int] = []
    refused = threading.Event()

    def submit() -> None:
        value = payload(50_000)
        while not refused.is_set():
            try:
                accepted.append(client.submit_batch_set(["k"], [value]))
            except RuntimeError:
                refused.set()

    workers = [threading.Thread(target=submit) for _ in range(4)]
    for worker in workers:
        worker.start()
    caller = Caller(client)
    limit = clock.now_s() + 20
    while len(accepted) < 200 and clock.now_s() < limit:
        caller.drain()
    client.close()
    for worker in workers:
        worker.join(4 * SLACK_S)
        assert not worker.is_alive()
    for future_id in accepted:
        caller.wait(future_id, SLACK_S)


def test_a_forked_child_has_batches_of_its_own(valkey: TestServer) -> None:
    client = KvferryClient(valkey.host, valkey.port, 2)
    caller = Caller(client)
    until_stored(caller, "k", payload(1000))
    in_flight = client.submit_batch_get(["k"], [bytearray(1000)])
    child = os.fork()
    if child == 0:
        target = bytearray(1000)
        own = client.submit_batch_get(["k"], [target])
        ok, _, mask = Caller(client).wait(own)
        os._exit(7 if (own, ok, mask, bytes(target)) == (1, True, [True], payload(1000)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert caller.wait(in_flight)[2] == [True]
    client.close()


def test_a_big_value_over_a_slow_way_has_the_time_it_needs(
    valkey: TestServer, proxied: Proxied
) -> None:
    """Without a fixed deadline the limit grows with the bytes."""
    way = proxied(valkey)
    way.up.bandwidth_bytes_per_s = 20e6
    slow = {"floor_rate_bytes_s": 1e6}
    client = KvferryClient(way.host, way.port, 2, timeout_s=0.4, tuning=slow)
    caller = Caller(client)
    value = payload(12 * MIB)
    assert caller.set(["k"], [value])[0]
    assert valkey.cli("STRLEN", "k") == len(value)
    client.close()
