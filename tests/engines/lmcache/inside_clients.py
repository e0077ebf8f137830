"""Run by LMCache's interpreter: its own native client beside ours, on one server.

    python -m pytest inside_clients.py      one contract, two clients
    python inside_clients.py [ROUNDS [SOCKETS]]      their speed, in turn

Both forms want KVFERRY_TEST_SERVER=host:port, and src/ and tests/ on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch  # noqa: F401  (the extension needs its libraries)
from lmcache.lmcache_redis import LMCacheRedisClient as Theirs

from kvferry.integrations.lmcache import LMCacheRedisClient as Ours
from support.lmcache_client import Caller

HOST, _, PORT = os.environ["KVFERRY_TEST_SERVER"].partition(":")
MIB = 1 << 20
BOTH: dict[str, Callable[..., Any]] = {"theirs": Theirs, "ours": Ours}


@pytest.fixture(params=BOTH)
def caller(request: pytest.FixtureRequest) -> Iterator[Caller]:
    with socket.create_connection((HOST, int(PORT)), 5) as talk:
        talk.sendall(b"FLUSHALL\r\n")
        assert talk.recv(64).startswith(b"+OK")
    client = BOTH[request.param](HOST, int(PORT), 4, "", "")
    yield Caller(client)
    client.close()


def views(count: int, size: int) -> list[memoryview]:
    return [memoryview(bytearray([i % 251 + 1]) * size) for i in range(count)]


def test_what_both_promise(caller: Caller) -> None:
    """Ids, shapes of completions, masks, errors: as LMCache's callers rely on them."""
    keys, values = [f"k{i}" for i in range(10)], views(10, 5000)
    client = caller.client
    assert client.submit_batch_set(keys, values) == 1
    assert caller.wait(1) == (True, "", None)
    assert caller.exists([*keys, "none"]) == (True, "", [True] * 10 + [False])
    targets = [memoryview(bytearray(5000)) for _ in keys]
    assert caller.get(keys, targets) == (True, "", [True] * 10)
    assert targets == values
    assert caller.delete([keys[0], "none"])[2] == [True, False]
    assert client.drain_completions() == []
    for call in (client.submit_batch_exists, client.submit_batch_delete):
        with pytest.raises(RuntimeError, match="keys list is empty"):
            call([])
    for call in (client.submit_batch_get, client.submit_batch_set):
        with pytest.raises(RuntimeError):
            call(["a", "b"], views(1, 10))


def test_each_reads_what_the_other_wrote() -> None:
    clients = {name: Caller(make(HOST, int(PORT), 2)) for name, make in BOTH.items()}
    for writer, reader in (("ours", "theirs"), ("theirs", "ours")):
        keys = [f"{writer} {i}" for i in range(5)]
        assert clients[writer].set(keys, views(5, 70_000))[0]
        targets = [memoryview(bytearray(70_000)) for _ in keys]
        assert clients[reader].get(keys, targets)[2] == [True] * 5
        assert targets == views(5, 70_000)
    for each in clients.values():
        each.client.close()


# --- Their speed ---


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    assert call()[0]
    return time.perf_counter() - start


def beside(caller: Caller, keys: list[str], values: list[memoryview]) -> float:
    """The time of a question that was asked while values are on their way."""
    store = caller.client.submit_batch_set(keys, values)
    start = time.perf_counter()
    caller.wait(caller.client.submit_batch_exists([keys[0]]), 60)
    seconds = time.perf_counter() - start
    caller.wait(store, 60)
    return seconds


def measure(rounds: int, workers: int) -> dict[str, dict[str, float]]:
    """Medians of rounds in which the clients take turns: GiB/s, and seconds of a question."""
    callers = {name: Caller(make(HOST, int(PORT), workers)) for name, make in BOTH.items()}
    keys, many = [f"value {i}" for i in range(64)], [f"value {i}" for i in range(1000)]
    values = views(64, 4 * MIB)
    targets = [memoryview(bytearray(4 * MIB)) for _ in keys]
    gib = 64 * 4 / 1024
    taken: dict[str, dict[str, list[float]]] = {
        name: {"set_gib_s": [], "get_gib_s": [], "exists_1000_s": [], "exists_beside_set_s": []}
        for name in callers
    }
    for turn in range(rounds + 1):
        for name in list(callers)[:: 1 if turn % 2 else -1]:
            caller, row = callers[name], taken[name]
            # default arguments: each lambda has its own caller
            set_s = timed(lambda c=caller: c.set(keys, values))  # type: ignore[misc]
            get_s = timed(lambda c=caller: c.get(keys, targets))  # type: ignore[misc]
            exists_s = timed(lambda c=caller: c.exists(many))  # type: ignore[misc]
            beside_s = beside(caller, keys, values)
            if turn:  # the first one warms up
                row["set_gib_s"].append(gib / set_s)
                row["get_gib_s"].append(gib / get_s)
                row["exists_1000_s"].append(exists_s)
                row["exists_beside_set_s"].append(beside_s)
    for caller in callers.values():
        caller.client.close()
    return {
        name: {what: statistics.median(each) for what, each in row.items()}
        for name, row in taken.items()
    }


if __name__ == "__main__":
    arguments = [int(each) for each in sys.argv[1:]] or [7, 4]
    print(json.dumps(measure(*arguments), indent=1))
