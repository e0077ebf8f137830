"""Clients and tools of others on a node: redis-py, go-redis, redis-cli and two that measure."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from kvferry.config.tuning import NodeTuning
from kvferry.sharing.node import Node, NodeSettings
from support.node_server import NodeServer
from support.secrets import secret

PASSWORD = secret("node")


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(node: NodeServer, protocol: int) -> None:
    with redis.Redis(port=node.port, protocol=protocol) as client:
        talk: Any = client
        assert talk.ping() is True
        assert talk.set("a", b"\0\r\n", ex=100) is True
        assert talk.set("a", b"x", nx=True) is None
        assert talk.get("a") == b"\0\r\n"
        assert 98 <= talk.ttl("a") <= 100
        assert 98_000 <= talk.pttl("a") <= 100_000
        assert talk.set("b", b"x") is True
        assert talk.ttl("b") == -1
        assert talk.exists("a", "b", "c") == 2
        assert talk.strlen("a") == 3
        assert talk.type("a") == b"string"
        for index in range(100):
            talk.set(f"many:{index}", index)
        assert len(set(talk.scan_iter(match="many:*", count=7))) == 100
        found = sorted(talk.scan_iter("many:1?", count=1000))
        assert found == [b"many:%d" % index for index in range(10, 20)]
        assert talk.dbsize() == 102
        assert talk.config_get("max*")["maxmemory"] == str(node.node.stats()["size_bytes"])
        assert talk.info()["role"] == "master"
        assert talk.client_setname("me") is True
        mine = [each for each in talk.client_list() if int(each["id"]) == talk.client_id()]
        assert [each["name"] for each in mine] == ["me"]
        assert talk.client_kill_filter(_id=999_999) == 0
        assert talk.unlink("a", "many:0") == 2
        with pytest.raises(redis.ResponseError, match="unknown command 'LPUSH'"):
            talk.lpush("list", "x")
        assert talk.flushall() is True
        assert talk.dbsize() == 0


def test_redis_py_pipelines_and_large_values(node: NodeServer) -> None:
    values = [bytes([index]) * (1 << 20) for index in range(40)]
    with redis.Redis(port=node.port) as client:
        pipeline: Any = client.pipeline(transaction=False)
        for index, value in enumerate(values):
            pipeline.set(f"k{index}", value)
        assert pipeline.execute() == [True] * 40
        for index in range(40):
            pipeline.get(f"k{index}")
        assert pipeline.execute() == values


def run(*words: str, **options: Any) -> str:
    """Run a tool of the host; skip without it. What it says."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} on this host")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, **options)
    said: str = done.stdout
    assert done.returncode == 0, said + done.stderr
    return said


def test_redis_cli_and_redis_benchmark(node: NodeServer) -> None:
    port = str(node.port)
    assert run("redis-cli", "-p", port, "-3", "SET", "k", "value", "PX", "100000") == "OK\n"
    assert run("redis-cli", "-s", node.unix_path, "GET", "k") == "value\n"
    assert run("redis-cli", "-p", port, "--scan", "--pattern", "k*") == "k\n"
    assert "db0:keys=1" in run("redis-cli", "-p", port, "INFO", "keyspace")
    said = run("redis-benchmark", "-p", port, "-t", "set,get", "-n", "2000", "-P", "16", "-q")
    assert "SET: " in said
    assert "GET: " in said


@pytest.mark.parametrize("protocol", ["resp2", "resp3"])
def test_memtier_benchmark(node: NodeServer, protocol: str) -> None:
    words = ["--port", str(node.port), "--protocol", protocol, "--hide-histogram"]
    words += ["--threads=2", "--clients=2", "--requests=100", "--ratio=1:1", "--data-size=300000"]
    said = run("memtier_benchmark", *words, "--key-maximum=20")
    assert "Totals" in said
    assert int(node.info("stats")["keyspace_hits"]) > 0


@pytest.mark.full
@pytest.mark.timeout(900)  # it fetches and compiles
def test_go_redis(node: NodeServer, tmp_path: Path) -> None:
    program = shutil.copytree(Path(__file__).parent / "go_redis", tmp_path / "go_redis")
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    if shutil.which("go") is None:
        pytest.skip("no go on this host")
    fetch = ("timeout", "120", "go", "mod", "download")
    if subprocess.run(fetch, cwd=program, env=environment, capture_output=True).returncode != 0:
        pytest.skip("go-redis cannot be fetched, or this Go is older than it wants")
    assert run("go", "run", ".", node.address, cwd=program, env=environment) == "well\n"


def test_users_have_their_prefixes(tmp_path: Any) -> None:
    users = tmp_path / "users.yaml"
    users.write_text(
        f"- {{name: default, password: {PASSWORD}, read: [''], write: [''], admin: true}}\n"
        f"- {{name: reader, password: {PASSWORD}x, read: ['a:']}}\n"
    )
    users.chmod(0o600)
    settings = NodeSettings(
        listen=("127.0.0.1:0",),
        size_gb=1 / 64,
        tuning=NodeTuning(prefault=False),
        users_file=str(users),
    )
    with Node(settings) as node:
        port = int(node.endpoints[0].rpartition(":")[2])
        with redis.Redis(port=port) as nobody, pytest.raises(redis.AuthenticationError):
            nobody.get("a:1")
        with redis.Redis(port=port, password=PASSWORD) as admin:
            assert admin.set("a:1", "x")
            assert admin.set("b:1", "x")
        reader: Any = redis.Redis(port=port, username="reader", password=f"{PASSWORD}x")
        with reader:
            assert reader.get("a:1") == b"x"
            assert list(reader.scan_iter()) == [b"a:1"]
            for words in (("GET", "b:1"), ("SET", "a:1", b"y" * 100_000)):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    reader.execute_command(*words)
