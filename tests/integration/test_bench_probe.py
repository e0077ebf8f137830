"""The benchmark's own view of TLS servers, clusters and Sentinels, and the lab's servers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import pytest

from benchmarks import lab_cluster
from benchmarks.lab_cluster import LabCluster
from benchmarks.tls import has_tls, lab_certificate
from kvferry.base.errors import DeadlineExceeded, StoreError, UnavailableError
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from kvferry.embedded.program import find_server
from kvferry_lab.bench.server_probe import (
    ClusterProbe,
    ServerProbe,
    open_probe,
    server_of,
    shards_of,
)
from kvferry_lab.servers.lab_server import LabServer, free_port, wait_until
from support.cluster import Cluster
from support.sentinel import SentinelGroup
from support.servers import TestServer

KEYS = [f"probe-{index}" for index in range(30)]


def test_a_probe_of_a_tls_server(tls_server: TestServer) -> None:
    assert tls_server.tls is not None
    settings = tls_server.tls.client_settings
    config = ClientConfig.from_url(tls_server.tls_url, **settings)
    value = os.urandom(1 << 20)
    with open_probe(config) as probe:
        probe.set("key", value)
        assert probe.get("key") == value
        assert tls_server.cli("GET", "key") == value
    distrustful = config.replace(tls_ca_file=None)
    with pytest.raises(UnavailableError, match="certificate is refused"):
        ServerProbe(distrustful)


def test_a_probe_of_a_cluster(cluster: Cluster) -> None:
    config = ClientConfig.from_url(cluster.url)
    assert shards_of(config) == 3
    with open_probe(config) as probe:
        assert isinstance(probe, ClusterProbe)
        for key in KEYS:
            probe.set(key, key.encode())
            node = cluster.node_of(key)
            assert probe.shard_of(key) == (node.host, node.port)
        assert [probe.get(key) for key in KEYS] == [key.encode() for key in KEYS]
        assert all(node.cli("DBSIZE") for node in cluster.nodes)
        assert probe.facts()["shards"] == "3"
        busy = probe.cpu_s()
        assert busy is not None
        assert busy > 0
        probe.delete(KEYS)
    assert sum(node.cli("DBSIZE") for node in cluster.nodes) == 0
    absent = config.replace(host="127.0.0.1", port=1, nodes=config.nodes[1:])
    assert shards_of(absent) == 3, "the next seed is asked"
    with pytest.raises(UnavailableError, match="cannot connect to cluster"):
        open_probe(absent.replace(nodes=()))


def test_the_server_that_sentinels_name(sentinels: SentinelGroup) -> None:
    config = ClientConfig.from_url(sentinels.url, **sentinels.settings)
    found = server_of(config)
    assert (found.topology, found.port) == ("standalone", sentinels.master().client_port)
    with open_probe(config) as probe:
        assert probe.info("replication")["role"] == "master"
    with pytest.raises(UnavailableError, match="knows that master"):
        server_of(config.replace(sentinel_master="nobody"))


def test_a_server_of_the_lab_comes_back_on_its_port() -> None:
    with LabServer(find_server(), ["maxmemory 100mb"]) as server:
        port, first = server.port, server.pid
        with ServerProbe(server.config) as probe:
            assert probe.command("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"104857600"]
            probe.set("key", b"value")
        server.kill()
        with pytest.raises(UnavailableError):
            ServerProbe(server.config)
        with pytest.raises(StoreError, match="not running"):
            server.suspend()
        before_s = time.perf_counter()
        listening_s = server.restart()
        assert before_s < listening_s <= time.perf_counter()
        assert (server.port, server.pid != first) == (port, True)
        with ServerProbe(server.config) as probe:
            assert probe.get("key") is None
        server.suspend()
        client = PureRedisClient(server.config.host, port, connect_timeout_s=0.2, timeout_s=0.2)
        assert not client.batch_exists(["key"]).ok, "it accepts, and answers nothing"
        client.close()
    assert_gone(server)


def assert_gone(server: LabServer) -> None:
    with pytest.raises(UnavailableError):
        ServerProbe(server.config)


def test_a_server_of_the_lab_that_does_not_start() -> None:
    with pytest.raises(StoreError, match="did not start"):
        LabServer(find_server(), ["no-such-setting 1"])


def test_a_wait_of_the_lab_ends() -> None:
    with pytest.raises(DeadlineExceeded, match=r"0\.02 s in vain for what never comes"):
        wait_until("what never comes", lambda: False, 0.02)


def test_a_cluster_of_the_lab_loses_a_primary() -> None:
    with LabCluster(find_server(), shards=3, replicas=1) as cluster:
        assert len(cluster.nodes) == 6
        primary, replica = cluster.shards[1]
        with ClusterProbe(cluster.config) as probe:
            for key in KEYS:
                probe.set(key, b"kept")
            owned = [key for key in KEYS if probe.shard_of(key)[1] == primary.port]
        assert owned
        cluster.wait_until_copied(1)
        primary.kill()
        cluster.wait_until_promoted(1)
        with ServerProbe(replica.config) as promoted:
            assert [promoted.get(key) for key in owned] == [b"kept"] * len(owned)


def test_a_cluster_of_the_lab_takes_another_port_of_its_bus_where_one_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [taken.getsockname()[1]]
        monkeypatch.setattr(lab_cluster, "free_port", lambda: ports.pop() if ports else free_port())
        with LabCluster(find_server(), shards=1) as cluster:
            assert len(cluster.nodes) == 1
    assert ports == []


def test_a_certificate_of_the_lab_is_trusted_for_this_host(
    start: Callable[..., TestServer],
) -> None:
    binary = start("redis7").binary
    if not has_tls(binary.path):
        pytest.skip(f"{binary.path} was built without TLS")
    with lab_certificate() as made:
        settings = [f"tls-cert-file {made.cert_file}", f"tls-key-file {made.key_file}"]
        settings += [f"tls-ca-cert-file {made.cert_file}", "tls-auth-clients no"]
        with LabServer(binary) as plain:
            port = plain.port
        with LabServer(binary, [*settings, f"tls-port {port}"]) as server:
            config = server.config.replace(port=port, tls=True, tls_ca_file=made.cert_file)
            with ServerProbe(config) as probe:
                assert probe.command("PING") == b"PONG"
    assert not os.path.exists(made.key_file)
