"""The cache server with stores behind it: what they get, what comes back, and whom they slow."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from kvferry import ClientConfig, StoreConfig
from kvferry.client.commands import sparing
from kvferry.server import Client
from kvferry.server.sessions.store_watch import StoreWatch
from support import clock
from support.cache_server import CacheServerProcess, running
from support.engines import CHUNK, IDENTITY, blanks, expected, prompt
from support.scripted import MiniStore, ScriptedServer, Silence
from support.servers import TestServer, free_port
from support.stamps import until

PATIENT_S = 10.0


def adapter(**fields: object) -> tuple[str, str]:
    return "--l2-adapter", json.dumps(fields)


def check(client: Client, tokens: list[int], chunks: int, tier: str) -> None:
    """All of a prompt comes from that tier, and every byte is right."""
    into = blanks(chunks)
    hit = client.retrieve(tokens, into)
    assert hit.tokens == chunks * CHUNK, hit
    assert hit.tiers.get(tier, 0) == chunks * CHUNK, hit
    for got, right in zip(into, expected(tokens), strict=True):
        assert (got == right).all()


def test_what_a_store_was_promised_it_gets_before_the_end(tmp_path: Path) -> None:
    """SIGTERM right behind a store: the next server, without a state, has it from the files."""
    file = adapter(type="file", base_path=str(tmp_path / "kv"), max_capacity_gb=0.1)
    tokens = prompt(64 * CHUNK)
    with (
        CacheServerProcess(tmp_path, *file, mib=4) as server,
        Client(IDENTITY, server.endpoint, timeout_s=PATIENT_S) as client,
    ):
        assert client.wait(PATIENT_S)
        stored = client.store(tokens, expected(tokens))
        assert (stored.chunks, sum(stored.queued.values())) == (64, 64)
        assert server.stop() == 0
        assert "were not written" not in server.log
        assert client.retrieve(tokens, blanks(64)).tokens == 0
        server.start()
        until(lambda: client.available, 5)
        check(client, tokens, 64, "file")
        check(client, tokens, 64, "l1")


def test_two_engines_and_a_redis_behind_them(valkey: TestServer, tmp_path: Path) -> None:
    resp = adapter(
        type="resp", host="localhost", port=valkey.port, num_workers=2, max_capacity_gb=0.1
    )
    tokens = prompt(16 * CHUNK)
    server = CacheServerProcess(tmp_path, *resp, mib=1)
    with (
        server,
        Client(IDENTITY, server.endpoint, timeout_s=PATIENT_S) as one,
        Client(IDENTITY, server.endpoint, timeout_s=PATIENT_S) as two,
    ):
        assert one.wait(PATIENT_S)
        assert two.wait(PATIENT_S)
        assert one.store(tokens, expected(tokens)).chunks == 16

        def is_written() -> bool:
            stores = one.stats()["server"]["stores"]
            return len(stores) == 1 and not any(each["queue_bytes"] for each in stores.values())

        for seed in range(1, 40):  # more than the pool holds
            until(is_written, 10)  # what Redis has not taken yet stays in memory
            other = prompt(16 * CHUNK, seed)
            assert one.store(other, expected(other)).chunks == 16
        until(is_written, 10)
        name = next(tier for tier in two.lookup(tokens).tiers if tier != "l1")
        assert two.lookup(tokens).tokens == 16 * CHUNK
        check(two, tokens, 16, name)
        check(one, tokens, 16, "l1")  # what one loads, the other one has
        assert one.prefetch(prompt(16 * CHUNK, 20)).result(10) == 16 * CHUNK


def test_a_store_that_is_away_is_told_at_the_start(tmp_path: Path) -> None:
    """No engine has come: a warning, a series and readiness say it. Then the store comes."""
    port = free_port()
    redis = adapter(type="resp", name="shelf", host="127.0.0.1", port=port)
    file = adapter(type="file", name="disk", base_path=str(tmp_path / "kv"), max_capacity_gb=0.1)
    with CacheServerProcess(tmp_path, *redis, *file, mib=1) as server:
        until(lambda: "shelf" in server.status()["stores"], 10)
        assert f"store shelf (redis at 127.0.0.1:{port}) cannot be asked" in server.log
        assert server.http("/readyz") == {"ready": True, "degraded": ["shelf"]}
        until(lambda: "disk" in server.status()["stores"], 10)
        series = 'kvferry_server_store_available{store="%s"} %d'
        metrics = server.http("/metrics")
        assert series % ("shelf", 0) in metrics
        assert series % ("disk", 1) in metrics
        assert server.status()["stores"]["shelf"]["reason"]
        with Client(IDENTITY, server.endpoint, timeout_s=PATIENT_S) as client:
            tokens = prompt(4 * CHUNK)
            assert client.wait(PATIENT_S)
            assert client.store(tokens, expected(tokens)).chunks == 4
            check(client, tokens, 4, "l1")
        with ScriptedServer(MiniStore(), port=port):
            until(lambda: server.http("/readyz") == {"ready": True}, 30)
            assert "store shelf can be asked again" in server.log


def test_a_store_is_asked_again_and_again_over_one_connection(
    valkey: TestServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvferry.server.sessions.store_watch._EVERY_S", 0.01)
    caplog.set_level(logging.INFO, "kvferry")

    def pings() -> int:
        found = valkey.info("commandstats").get("cmdstat_ping", "calls=0")
        return int(found.split(",")[0].removeprefix("calls="))

    opened: list[ClientConfig] = []

    def counted(config: ClientConfig) -> ClientConfig:
        opened.append(config)
        return sparing(config)

    monkeypatch.setattr("kvferry.server.sessions.store_watch.sparing", counted)
    before = pings()
    watch = StoreWatch([StoreConfig.of(type="redis", name="shelf", url=valkey.url)], lambda: ())
    watch.start()
    try:
        until(lambda: pings() >= before + 5, 20)
    finally:
        watch.stop()
    assert len(opened) == 1
    assert not [text for text in caplog.messages if "lost" in text]


@pytest.mark.parametrize("what", ["silent", "dead"])
def test_a_store_that_is_bad_slows_nobody_who_has_no_use_of_it(what: str, tmp_path: Path) -> None:
    """One engine waits for a store; another one's chunks are in memory, and it does not."""
    here, elsewhere = prompt(4 * CHUNK, 1), prompt(4 * CHUNK, 2)

    with ScriptedServer(lambda command: Silence()) as store:
        if what == "dead":
            store.close()
        resp = adapter(type="resp", host="127.0.0.1", port=store.port, max_capacity_gb=0.1)
        server = CacheServerProcess(tmp_path, *resp, mib=1)
        with server, Client(IDENTITY, server.endpoint, timeout_s=PATIENT_S) as client:
            assert client.wait(PATIENT_S)
            assert client.store(here, expected(here)).chunks == 4
            ended = threading.Event()

            def wait_for_the_store() -> None:
                while not ended.is_set():
                    assert client.retrieve(elsewhere, blanks(4), timeout_s=1.0).tokens == 0

            waiting = [threading.Thread(target=wait_for_the_store) for _ in range(4)]
            for thread in waiting:
                thread.start()
            took = []
            for _ in range(50):
                began = clock.now_s()
                assert client.retrieve(here, blanks(4)).tokens == 4 * CHUNK
                took.append(clock.now_s() - began)
            ended.set()
            for thread in waiting:
                thread.join()
            assert sorted(took)[45] < 0.1


def test_what_redis_loses_the_pool_writes_again(valkey: TestServer, tmp_path: Path) -> None:
    resp = adapter(type="resp", host="localhost", port=valkey.port)
    tokens = prompt(16 * CHUNK)
    with (
        CacheServerProcess(tmp_path, *resp, mib=4) as server,
        Client(IDENTITY, server.endpoint, timeout_s=PATIENT_S) as client,
    ):
        assert client.wait(PATIENT_S)
        assert client.store(tokens, expected(tokens)).chunks == 16
        until(lambda: valkey.cli("DBSIZE") == 17, 10)  # and what they are in words
        valkey.cli("FLUSHALL")

        def is_back() -> bool:
            assert client.lookup(tokens).tokens == 16 * CHUNK
            return bool(valkey.cli("DBSIZE") == 17)

        until(is_back, 15)


def test_stores_are_asked_as_long_as_that_pays_by_what_the_engine_said_of_itself(
    valkey: TestServer, tmp_path: Path
) -> None:
    """An engine that computes quicker than any store is not told of one; a slow one is."""
    store = StoreConfig.of(type="redis", url=valkey.url)
    tokens = prompt(16 * CHUNK, 77)
    with (
        running(tmp_path, cache={"stores": (store,)}) as server,
        Client(IDENTITY, server.config.endpoints[0], timeout_s=PATIENT_S) as client,
    ):
        assert client.wait(PATIENT_S)
        client.store(tokens, expected(tokens))

        def stored() -> bool:
            client.clear(stores=False)
            return client.lookup(tokens, timeout_s=PATIENT_S).tokens == 16 * CHUNK

        until(stored, PATIENT_S)
        client.expect_prefill((0.0, 1e-12, 0.0, 0.0))
        until(lambda: client.lookup(tokens, lease=True).tokens == 0, PATIENT_S)
        assert client.lookup(tokens, timeout_s=PATIENT_S).tokens == 16 * CHUNK, "as was asked"
        client.expect_prefill((0.0, 1.0, 0.0, 0.0), 512)
        until(lambda: client.lookup(tokens, lease=True).tokens == 16 * CHUNK, PATIENT_S)
        assert client.retrieve(tokens, blanks(16)).tokens == 16 * CHUNK
