"""The benchmark's own view of TLS servers, clusters and Sentinels, and the lab's servers."""

from __future__ import annotations

import os

import pytest

from kvferry.base.errors import DeadlineExceeded, StoreError, UnavailableError
from kvferry.config import ClientConfig
from kvferry.embedded.program import find_server
from kvferry_lab.bench.server_probe import (
    ClusterProbe,
    ServerProbe,
    open_probe,
    server_of,
    shards_of,
)
from kvferry_lab.servers.lab_server import LabServer, wait_until
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


def test_a_server_of_the_lab_has_the_settings_that_it_is_given_and_ends() -> None:
    with (
        LabServer(find_server(), ["maxmemory 100mb"]) as server,
        ServerProbe(server.config) as probe,
    ):
        assert probe.command("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"104857600"]
        assert probe.info("server")["process_id"] == str(server.pid)
    with pytest.raises(UnavailableError):
        ServerProbe(server.config)


def test_a_server_of_the_lab_that_does_not_start() -> None:
    with pytest.raises(StoreError, match="did not start"):
        LabServer(find_server(), ["no-such-setting 1"])


def test_a_wait_of_the_lab_ends() -> None:
    with pytest.raises(DeadlineExceeded, match=r"0\.02 s in vain for what never comes"):
        wait_until("what never comes", lambda: False, 0.02)
