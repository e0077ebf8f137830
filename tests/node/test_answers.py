"""What a node answered otherwise than Valkey, as the suites of others have found it.

`make conformance` runs those; the commands here are of the same kind and written for this tree.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from kvferry.client.sync import RedisClient
from kvferry.config import ClientConfig
from kvferry.config.tuning import NodeTuning
from kvferry.sharing.node import Node, NodeSettings
from kvferry_lab.bench.server_probe import ServerProbe
from support.node_server import NodeServer
from support.resp import ReplyError
from support.servers import wait_for


def test_a_scan_does_not_stop_at_places_that_are_free(node: NodeServer) -> None:
    for index in range(500):
        node.cli("SET", f"k{index}", "v")
    node.cli("DEL", *(f"k{index}" for index in range(500) if index != 300))
    assert node.cli("SCAN", "0") == [b"0", [b"k300"]]


def test_a_client_to_kill_needs_a_number(node: NodeServer) -> None:
    for number in ("word", "-1", "0"):
        with pytest.raises(ReplyError, match="client-id should be greater than 0"):
            node.cli("CLIENT", "KILL", "ID", number)


def test_a_client_on_the_same_host_finds_the_unix_socket(node: NodeServer) -> None:
    assert node.cli("CONFIG", "GET", "unixsocket") == [b"unixsocket", node.unix_path.encode()]
    config = ClientConfig(host=node.host, port=node.port)
    with closing(RedisClient.from_config(config)) as client:
        client.batch_exists(["a"])
        wait_for("it moves", lambda: client.stats()["connections_unix"] != 0)
        assert client.stats()["same_host"] == f"unix:{node.unix_path}"


def test_a_client_of_ipv4_finds_the_socket_of_a_node_that_listens_on_ipv6(tmp_path: Path) -> None:
    listen = ("[::]:0", f"unix:{tmp_path}/s")
    settings = NodeSettings(
        listen=listen, size_gb=0.1, tuning=NodeTuning(prefault=False), password="p"
    )
    with Node(settings) as node:
        port = int(node.endpoints[0].rpartition(":")[2])
        config = ClientConfig(host="127.0.0.1", port=port, password="p")
        with closing(RedisClient.from_config(config)) as client:
            client.batch_exists(["a"])
            wait_for("it moves", lambda: client.stats()["connections_unix"] != 0)
            assert client.stats()["same_host"] == f"unix:{tmp_path}/s"


def test_patterns_with_many_stars_end(node: NodeServer) -> None:
    node.cli("SET", "a" * 500, "v")
    node.cli("SET", "ab" * 40, "v")
    assert node.cli("SCAN", "0", "MATCH", "a*" * 40 + "b") == [b"0", [b"ab" * 40]]
    assert node.cli("SCAN", "0", "MATCH", "*a" * 300 + "b") == [b"0", []]


def test_what_measures_a_server_learns_its_cpu(node: NodeServer) -> None:
    assert node.info("server")["process_id"] == str(os.getpid())
    with ServerProbe(ClientConfig(host=node.host, port=node.port)) as probe:
        before = probe.cpu_s()
        assert before is not None
        assert 0 < before <= sum(os.times()[:2]) + 0.1
