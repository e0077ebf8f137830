"""The client for LMCache: its contract, on real servers. Faults: test_lmcache_faults.py.

Engines' own tests with it, and LMCache's own client beside it: tests/engines.
"""

from __future__ import annotations

import array
import ctypes
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvferry.base.errors import BadBufferError, ConfigError
from kvferry.integrations.lmcache import KvferryClient, LMCacheRedisClient
from support.cluster import Cluster
from support.lmcache_client import Caller
from support.pure import MIB, payload
from support.servers import TestServer
from support.stamps import until

KEY = "models/tiny@01000100@0@" + "ab" * 32


@pytest.fixture(params=[False, True], ids=["plain", "verified"])
def client(request: pytest.FixtureRequest, server: TestServer) -> Iterator[KvferryClient]:
    opened = LMCacheRedisClient(server.host, server.port, 4, "", "", verify=request.param)
    yield opened
    opened.close()


@pytest.fixture
def plain(valkey: TestServer) -> Iterator[KvferryClient]:
    opened = LMCacheRedisClient(valkey.host, valkey.port, 4)
    yield opened
    opened.close()


@pytest.fixture
def caller(client: KvferryClient) -> Caller:
    return Caller(client)


def ctypes_view(size: int, content: bytes = b"") -> memoryview:
    """As LMCache makes them: format "<B" over memory that somebody else owns."""
    memory = (ctypes.c_ubyte * size)()
    ctypes.memmove(memory, content, len(content))
    view = memoryview(memory)
    assert view.format == "<B"
    return view


def test_the_constructor_is_that_of_the_extension() -> None:
    names = list(inspect.signature(LMCacheRedisClient).parameters)
    assert names[:5] == ["host", "port", "num_workers", "username", "password"]


def test_round_trip(caller: Caller) -> None:
    keys = [f"{KEY}{i}" for i in range(5)]
    values = [payload(70_000, i) for i in range(5)]
    sent = [ctypes_view(70_000, value) for value in values]
    assert caller.set(keys, sent) == (True, "", None)
    assert caller.exists([*keys, "other"]) == (True, "", [True] * 5 + [False])
    targets = [ctypes_view(70_000) for _ in keys]
    assert caller.get(keys, targets) == (True, "", [True] * 5)
    assert [target.tobytes() for target in targets] == values
    assert caller.delete([keys[0], "other"]) == (True, "", [True, False])
    assert caller.exists(keys) == (True, "", [False, True, True, True, True])


def test_ids_count_from_one(caller: Caller) -> None:
    client = caller.client
    ids = [client.submit_batch_exists(["a"]) for _ in range(4)]
    assert ids == [1, 2, 3, 4]
    for each in ids:
        caller.wait(each)
    assert client.drain_completions() == []


def test_a_flag_of_a_get_is_true_to_the_bytes(caller: Caller) -> None:
    """Misses and other lengths; whatever else is in the batch arrives."""
    values = {"a": payload(100), "short": payload(99), "long": payload(5 * MIB), "z": payload(100)}
    caller.set(list(values), list(values.values()))
    keys = ["a", "missing", "short", "long", "z"]
    targets = [bytearray(100) for _ in keys]
    ok, error, mask = caller.get(keys, targets)
    assert mask == [True, False, False, False, True]
    assert not ok
    assert "keys" in error
    assert targets[0] == values["a"]
    assert targets[4] == values["z"]


@pytest.mark.parametrize("size", [1, 9, 10, 99, 100, 4096, MIB, 9 * MIB])
def test_a_miss_of_any_length_is_a_miss_and_the_next_is_right(caller: Caller, size: int) -> None:
    value, target = payload(size), bytearray(size)
    caller.set(["there"], [value])
    assert caller.get(["gone"], [bytearray(size)])[2] == [False]
    assert caller.get(["there"], [target]) == (True, "", [True])
    assert target == value


def test_lengths_may_be_mixed_in_a_batch(caller: Caller) -> None:
    sizes = [1, 4 * MIB + 1, 100, 4 * MIB + 1, 65_536, 100]
    keys = [f"k{i}" for i in range(len(sizes))]
    values = [payload(size, i) for i, size in enumerate(sizes)]
    assert caller.set(keys, values)[0]
    targets = [bytearray(size) for size in sizes]
    assert caller.get(keys, targets) == (True, "", [True] * len(sizes))
    assert targets == values
    caller.delete(keys)
    assert caller.exists(keys)[2] == [False] * len(sizes)


def test_elements_of_more_than_a_byte_count_in_bytes(caller: Caller) -> None:
    words = array.array("H", range(1000))
    assert caller.set(["k"], [memoryview(words)])[0]
    target = np.zeros((10, 100), np.uint16)
    assert caller.get(["k"], [target]) == (True, "", [True])
    assert target.ravel().tolist() == words.tolist()


def test_buffers_that_cannot_be_right_are_refused(client: KvferryClient) -> None:
    spread = memoryview(bytearray(100))[::2]
    with pytest.raises(BadBufferError):
        client.submit_batch_get(["a"], [b"immutable"])
    with pytest.raises(BadBufferError):
        client.submit_batch_get(["a"], [spread])
    with pytest.raises(BadBufferError):
        client.submit_batch_set(["a"], [spread])
    with pytest.raises(BadBufferError):
        client.submit_batch_set(["a"], ["text"])  # type: ignore[list-item]
    shared = memoryview(bytearray(100))
    with pytest.raises(BadBufferError):
        client.submit_batch_get(["a", "b"], [shared[:60], shared[40:]])
    assert Caller(client).exists(["a"]) == (True, "", [False])  # nothing was begun


def test_calls_that_cannot_be_right_are_runtime_errors(client: KvferryClient) -> None:
    for call in (client.submit_batch_exists, client.submit_batch_delete):
        with pytest.raises(RuntimeError, match="keys list is empty"):
            call([])
    for submit in (client.submit_batch_get, client.submit_batch_set):
        with pytest.raises(RuntimeError, match="keys list is empty"):
            submit([], [])
        with pytest.raises(RuntimeError, match="2 keys but 1 buffers"):
            submit(["a", "b"], [bytearray(1)])


def test_after_close(client: KvferryClient) -> None:
    caller = Caller(client)
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.submit_batch_exists(["a"])
    caller.drain()
    assert caller.done == {}


def test_values_and_keys_are_those_of_lmcache(plain: KvferryClient, valkey: TestServer) -> None:
    value = payload(300_000)
    Caller(plain).set([KEY], [value])
    assert valkey.cli("KEYS", "*") == [KEY.encode()]
    assert valkey.cli("GET", KEY) == value
    valkey.cli("SET", "theirs", value)
    target = bytearray(len(value))
    assert Caller(plain).get(["theirs"], [target])[2] == [True]
    assert target == value


def test_a_verified_value_that_was_altered_is_a_miss(valkey: TestServer) -> None:
    client = KvferryClient(valkey.host, valkey.port, verify=True, namespace="ns")
    caller = Caller(client)
    caller.set(["a", "b"], [payload(1000), payload(1000, 1)])
    stored = valkey.cli("KEYS", "*")
    assert sorted(stored) == [b"ns:a;", b"ns:b;"]
    valkey.cli("SETRANGE", "ns:a;", 500, "damage")
    valkey.cli("COPY", "ns:b;", "ns:c;")
    targets = [bytearray(1000) for _ in range(3)]
    assert caller.get(["a", "b", "c"], targets)[2] == [False, True, False]
    assert targets[1] == payload(1000, 1)
    client.close()


def test_the_deleted_stripes_of_a_verified_value(valkey: TestServer) -> None:
    client = KvferryClient(valkey.host, valkey.port, verify=True)
    caller = Caller(client)
    caller.set(["a"], [payload(9 * MIB)])
    assert valkey.cli("DBSIZE") == 3
    assert caller.delete(["a", "b"])[2] == [True, False]
    assert valkey.cli("DBSIZE") == 0
    client.close()


def test_long_and_strange_keys(caller: Caller) -> None:
    keys = ["k" * 600, "k" * 599 + "K", "ü" * 300, "path/" * 110, "a b\r\nc", "#1", "ключ"]
    values = [payload(100, i) for i in range(len(keys))]
    assert caller.set(keys, values)[0]
    targets = [bytearray(100) for _ in keys]
    assert caller.get(keys, targets)[2] == [True] * len(keys)
    assert targets == values


def test_a_big_batch_of_small_values(caller: Caller) -> None:
    keys = [f"{KEY}{i}" for i in range(5000)]
    values = [i.to_bytes(8, "little") * 16 for i in range(5000)]
    assert caller.set(keys, values)[0]
    targets = [bytearray(128) for _ in keys]
    assert caller.get(keys, targets) == (True, "", [True] * 5000)
    assert targets == values
    assert caller.exists(keys)[2] == [True] * 5000


def test_many_threads_submit_while_one_drains(client: KvferryClient) -> None:
    """Each completes once, under its own id, with its own bytes."""
    threads, rounds = 8, 40
    wrong: list[str] = []
    submitted: dict[int, tuple[bytearray, bytes]] = {}
    lock = threading.Lock()

    def submit(who: int) -> None:
        for turn in range(rounds):
            value = payload(3000, who * rounds + turn)
            with lock:  # of the test's book alone
                future_id = client.submit_batch_set([f"{who} {turn}"], [value])
                submitted[future_id] = (bytearray(), value)

    workers = [threading.Thread(target=submit, args=(who,)) for who in range(threads)]
    for worker in workers:
        worker.start()
    caller = Caller(client)
    for worker in workers:
        worker.join()
    assert sorted(submitted) == list(range(1, threads * rounds + 1))
    for future_id in submitted:
        if caller.wait(future_id) != (True, "", None):
            wrong.append(str(future_id))
    assert wrong == []
    for who in range(threads):
        keys = [f"{who} {turn}" for turn in range(rounds)]
        targets = [bytearray(3000) for _ in keys]
        assert caller.get(keys, targets)[2] == [True] * rounds
        assert targets == [payload(3000, who * rounds + turn) for turn in range(rounds)]


def test_a_question_does_not_wait_behind_values(plain: KvferryClient) -> None:
    """What LMCache's own client does; order is what is tested, not time."""
    value = bytearray(4 * MIB)
    caller = Caller(plain)
    store = plain.submit_batch_set([f"v{i}" for i in range(100)], [value] * 100)
    question = plain.submit_batch_exists(["v0"])

    def both() -> bool:
        caller.drain()  # the oldest first
        return len(caller.done) == 2

    until(both, 60)
    assert list(caller.done) == [question, store]
    assert caller.done[store][0]


def test_buffers_live_until_the_batch_was_drained(plain: KvferryClient) -> None:
    memory = bytearray(1000)
    future_id = plain.submit_batch_set(["k"], [memoryview(memory)])
    with pytest.raises(BufferError):
        memory.extend(b"more")
    Caller(plain).wait(future_id)
    memory.extend(b"more")


def test_cluster_by_its_seeds(cluster: Cluster) -> None:
    client = KvferryClient(url=cluster.url, num_workers=2)
    caller = Caller(client)
    keys = [f"{KEY}{i}" for i in range(50)]
    values = [payload(5000, i) for i in range(50)]
    assert caller.set(keys, values) == (True, "", None)
    targets = [bytearray(5000) for _ in keys]
    assert caller.get(keys, targets)[2] == [True] * 50
    assert targets == values
    assert caller.exists([*keys, "none"])[2] == [True] * 50 + [False]
    client.close()


def test_tls(tls_server: TestServer) -> None:
    assert tls_server.tls is not None
    client = KvferryClient(url=tls_server.tls_url, **tls_server.tls.client_settings)
    caller = Caller(client)
    assert caller.set(["k"], [payload(MIB)])[0]
    target = bytearray(MIB)
    assert caller.get(["k"], [target])[2] == [True]
    client.close()


def test_user_password_and_environment(
    start: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    secret = "a word of this test"
    server = start("valkey", password=secret)
    given = LMCacheRedisClient(server.host, server.port, 2, "", secret)
    assert Caller(given).set(["k"], [b"v"])[0]
    monkeypatch.setenv("LMCACHE_RESP_PASSWORD", secret)
    unnamed = KvferryClient(server.host, server.port)
    assert Caller(unnamed).exists(["k"])[2] == [True]
    assert secret not in caplog.text + repr(given) + repr(unnamed)
    given.close()
    unnamed.close()


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"conections": 4}, "'conections'; did you mean 'connections'"),
        ({"num_workers": 0}, "num_workers=0"),
        ({"deadline_s": 1}, "deadline_s is gone: set timeout_s"),
        ({"verify": "yes"}, "verify='yes'"),
        ({"namespace": "a\nb"}, "namespace"),
        ({"namespace": "x" * 200}, "namespace"),
        ({"port": "6379"}, "port"),
        ({"url": "http://a word of this test"}, "URL"),
        ({"url": 7}, "url"),
        ({"url": "redis://a", "host": "b"}, "url and host"),
        ({"tls_ca_file": "ca.pem"}, "tls_ca_file"),
        ({"config_file": "no such file"}, "no such file"),
    ],
)
def test_an_error_names_the_key(params: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=r"^adapter_params: ") as caught:
        KvferryClient(**params)
    assert names in str(caught.value)
    assert "a word of this test" not in str(caught.value)
