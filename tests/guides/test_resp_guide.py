"""The published RESP guide without an inference engine, as it is typed: servers, store, benchmark.

What the guide does with vLLM is in tests/engines/test_resp_guide.py.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import resp_guide as guide
from support.own_network import OwnNetwork, Running
from support.secrets import register
from support.servers import wait_for

# An engine by hand, in that network: it stores prompts and finds each, or only finds them.
ENGINE = """
import sys
from kvferry.server import Client
from support.engines import IDENTITY, CHUNK, expected, prompt
verb, prompts = sys.argv[1], int(sys.argv[2])
with Client(IDENTITY, "tcp://localhost:6555", timeout_s=20) as client:
    assert client.wait(60), client.refused
    for tokens in (prompt(40 * CHUNK, seed=seed) for seed in range(prompts)):
        if verb == "store":
            assert client.store(tokens, expected(tokens)).chunks == 40
        with client.retrieve(tokens) as hit:
            for found, chunk in zip(hit.arrays, expected(tokens)):
                assert found.tobytes() == chunk.tobytes()
            print(hit.tokens // CHUNK, *sorted(tier for tier, some in hit.tiers.items() if some))
"""
TESTS = Path(__file__).parents[1]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[OwnNetwork]:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on PATH")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KVFERRY_", "LMCACHE_"))}
    environment = {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', os.defpath)}",
        "PYTHONPATH": str(TESTS),
        "KVFERRY_PREFAULT": "false",  # 10 GB of this machine's memory are not ours to take
    }
    (tmp_path / "engine.py").write_text(ENGINE)
    with OwnNetwork(tmp_path, environment) as network:
        yield network


def started(network: OwnNetwork, server: str, redis: str = guide.REDIS) -> tuple[Running, Running]:
    """Redis and the cache server of the guide."""
    store = network.start(redis, "redis")
    store.says("Ready to accept connections", 60)
    cache = network.start(guide.ours(server), "server")
    cache.says("ready, engines at tcp://127.0.0.1:6555", 60)
    return store, cache


def counted(network: OwnNetwork, least: int, count: str = guide.COUNT) -> None:
    """Wait until Redis has so many keys."""
    wait_for("keys in Redis", lambda: int(network.run(count)) >= least, 60)


def test_the_server_of_the_guide_stores_finds_and_is_cleared(network: OwnNetwork) -> None:
    _, cache = started(network, guide.SERVER)
    assert network.run("python engine.py store 1").split() == ["40", "l1"]
    counted(network, 40)
    # Another server has nothing in memory, and finds it in Redis.
    assert cache.end() == 0
    again = network.start(guide.ours(guide.SERVER), "server")
    again.says("ready, engines at", 60)
    assert network.run("python engine.py find 1").split() == ["40", "redis"]
    assert network.run("python engine.py find 1").split() == ["40", "l1"]
    assert network.run(guide.CLEAR) == "OK\n"
    assert network.run(guide.COUNT) == "0\n"
    assert not [line for line in again.log.splitlines() if " ERROR " in line]


def test_credentials_come_from_the_environment_and_are_shown_nowhere(network: OwnNetwork) -> None:
    register("secret-of-the-guide")
    variables = guide.CREDENTIALS.replace('"secret"', '"secret-of-the-guide"')
    count = "redis-cli --no-auth-warning -a secret-of-the-guide -p 6379 DBSIZE"
    store = f"{guide.REDIS} --requirepass secret-of-the-guide"
    _, cache = started(network, variables + guide.SERVER_EVICTION, store)
    assert network.run("python engine.py store 1").split() == ["40", "l1"]
    counted(network, 40, count)
    assert "secret-of-the-guide" not in cache.log
    shown = network.run(variables + guide.ours(guide.SERVER_EVICTION) + " --check")
    assert '"max_capacity_gb": 10' in shown
    assert '"trigger_watermark": 0.8' in shown
    assert "secret-of-the-guide" not in shown


@pytest.mark.full
def test_a_full_store_loses_chunks_as_the_guide_has_it(network: OwnNetwork) -> None:
    # The guide's 10 GB, a thousandth of them: room for half of what is stored.
    started(
        network, guide.SERVER_EVICTION.replace('"max_capacity_gb": 10', '"max_capacity_gb": 0.01')
    )
    network.run("python engine.py store 100")
    evicted = "curl -s http://localhost:8080/metrics | grep ^kvferry_evicted_chunks_total.*redis"
    wait_for("evictions", lambda: float(network.run(evicted).split()[-1]) > 100, 60)
    used = "redis-cli INFO memory | tr -d '\\r' | sed -n s/^used_memory://p"
    wait_for("room", lambda: int(network.run(used)) < 0.01 * (1 << 30), 60)
    counted(network, 400)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_sweeps_of_the_guide_print_what_its_readers_look_for(network: OwnNetwork) -> None:
    network.start(guide.REDIS, "redis").says("Ready to accept connections", 60)
    small = guide.SWEEP.replace("500", "10")  # of its 500 keys
    said = network.run(guide.ours(small), limit_s=800)
    for line in (
        r"=== (Chunk|Workers): .*",
        r"Batch SET: +[0-9.]+ GB/s +\([0-9.]+ GB written\)",
        r"Batch GET: +[0-9.]+ GB/s +\([0-9.]+ GB read\)",
        r"Batch EXISTS: +\d+ ops/s +\(10/10 hits\)",
        "All tests passed",
    ):
        assert len(re.findall(f"^{line}$", said, re.MULTILINE)) == 10, (line, said)
    assert network.run(guide.COUNT) == "0\n"


def test_the_client_of_the_notes(network: OwnNetwork) -> None:
    network.start(guide.NOTES_REDIS, "redis").says("Ready to accept connections", 60)
    program = """
import kvferry as lmcache_redis
redis_client = lmcache_redis.RedisClient(host="localhost", port=6379)
redis_client.set("key", bytes(range(256)) * 4096)
buffer = bytearray(256 * 4096)
assert redis_client.get("key", buffer) and buffer == bytes(range(256)) * 4096
redis_client.close()
"""
    network.run(f"python -W error -c '{program}'")
    assert network.run("redis-cli STRLEN key") == f"{256 * 4096}\n"
