"""Nodes that requests name (`kv_transfer_params.remote_kv_source`), asked by vLLM's tier."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import ConfigError
from kvferry.chunks.prompt import node_in
from kvferry.config.remote_sources import AllowedHosts
from kvferry.integrations.vllm.tier.sources import NODES_MAX
from kvferry.integrations.vllm.tier.tier_options import read_options
from support import clock
from support.node_server import NodeServer
from support.proxy import FaultProxy
from support.servers import free_port
from support.vllm_offload_shapes import Request, VllmShape
from support.vllm_tiers import KEYS, ROW, ROWS, Tier, tiny_model

HOSTS = ["127.0.0.1", "::1"]
Open = Callable[..., Tier]


@pytest.fixture(params=["0.22.1", "0.32.0"])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> VllmShape:
    made = VllmShape(request.param)
    made.install(monkeypatch)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path)


@pytest.fixture
def nodes() -> Iterator[list[NodeServer]]:
    """Where this tier stores, and where another one has stored."""
    with NodeServer() as own, NodeServer() as theirs:
        yield [own, theirs]


@pytest.fixture
def open_tier(
    shape: VllmShape, nodes: list[NodeServer], model: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Open]:
    # A node keeps no descriptions of identities, and a record of that error would keep our memory.
    caplog.set_level("WARNING", "kvferry.connectors")
    with ExitStack() as stack:

        def opened(of: NodeServer, **options: Any) -> Tier:
            return stack.enter_context(Tier(shape, of.url, model, **options))

        yield opened


def naming(port: object, host: object = "127.0.0.1", request: str = "r") -> Request:
    source = {"kv_request_id": "x", "remote_host": host, "remote_port": port}
    return Request(request, {"remote_kv_source": source})


def fill(tier: Tier, shape: VllmShape, keys: list[bytes], job: int = 90) -> bytes:
    """Store chunks of noise; all of its rows."""
    tier.memory[:] = os.urandom(ROW * ROWS)
    tier.tier.submit_store(shape.job(job, keys, [KEYS.index(key) for key in keys]))
    assert tier.finished().success
    return bytes(tier.memory[:])


def test_what_the_store_has_not_comes_from_the_node_that_the_request_names(
    shape: VllmShape, nodes: list[NodeServer], open_tier: Open
) -> None:
    own, theirs = nodes
    here = open_tier(own, remote_kv_sources=HOSTS)
    mine = fill(open_tier(own), shape, KEYS[:2])
    others = fill(open_tier(theirs), shape, KEYS[1:5])
    request = naming(theirs.port)
    assert here.look(KEYS[:6], request) == [shape.hit] * 5 + [shape.miss]
    here.tier.submit_load(shape.job(7, KEYS[:5], [0, 1, 2, 3, 4]))  # of both: one job
    done = here.finished()
    assert (done.job_id, done.success) == (7, True)
    assert bytes(here.memory[: 2 * ROW]) == mine[: 2 * ROW]  # the store comes first
    assert bytes(here.memory[2 * ROW : 5 * ROW]) == others[2 * ROW : 5 * ROW]
    assert here.tier.stats()["source_load_ok"] == 3
    assert not here.tier.has_pending_work()
    here.tier.on_request_finished(request)
    # Another request names nobody, and another one the same node as a text.
    assert here.look(KEYS[2:4], Request("s")) == [shape.miss] * 2
    assert here.look(KEYS[2:4], naming(str(theirs.port), request="t")) == [shape.hit] * 2
    assert here.tier.stats()["sources"] == 1


def test_a_wrong_address_costs_a_recompute_and_never_a_stall(
    shape: VllmShape, nodes: list[NodeServer], open_tier: Open
) -> None:
    own, theirs = nodes
    fill(open_tier(own), shape, KEYS[:2])
    fill(open_tier(theirs), shape, KEYS[:5])
    here = open_tier(own, remote_kv_sources=HOSTS, lookup_timeout_ms=1000)
    with socket.create_server(("127.0.0.1", 0)) as mute, FaultProxy(own.host, own.port) as hole:
        hole.black_hole()
        for number, port in enumerate((free_port(), mute.getsockname()[1], hole.port)):
            for turn in range(3):
                began = clock.now_s()
                request = naming(port, request=f"{number} {turn}")
                assert here.look(KEYS[:4], request) == [shape.hit] * 2 + [shape.miss] * 2
                assert clock.now_s() - began < 3
    assert here.look(KEYS[:4], naming(theirs.port)) == [shape.hit] * 4


def test_a_node_that_goes_away_in_a_load_is_a_load_that_fails(
    shape: VllmShape, nodes: list[NodeServer], open_tier: Open
) -> None:
    own, theirs = nodes
    fill(open_tier(own), shape, KEYS[:1])
    fill(open_tier(theirs), shape, KEYS[1:4])
    here = open_tier(
        own, remote_kv_sources=HOSTS, tuning={"load_timeout_s": 5, "load_stall_s": 1.5}
    )
    with FaultProxy(theirs.host, theirs.port) as way:
        assert here.look(KEYS[:4], naming(way.port)) == [shape.hit] * 4
        way.black_hole()
        here.tier.submit_load(shape.job(7, KEYS[:4], [0, 1, 2, 3]))
        done = here.finished()
        assert (done.job_id, done.success) == (7, False)
        if shape.version == "0.32.0":
            assert done.successful_keys == (KEYS[0],)
        assert here.look(KEYS[:4], naming(way.port)) == [shape.hit] + [shape.miss] * 3


def test_nobody_is_asked_whom_the_operator_has_not_allowed(
    shape: VllmShape, nodes: list[NodeServer], open_tier: Open
) -> None:
    own, theirs = nodes
    fill(open_tier(theirs), shape, KEYS[:2])
    with FaultProxy(theirs.host, theirs.port) as way:
        for hosts in ((), ("10.0.0.0/8", "localhost")):
            here = open_tier(own, remote_kv_sources=hosts)
            assert here.look(KEYS[:2], naming(way.port)) == [shape.miss] * 2
        assert way.connections == 0


def test_after_a_reset_nothing_of_before_is_found_anywhere(
    shape: VllmShape, nodes: list[NodeServer], open_tier: Open
) -> None:
    own, theirs = nodes
    fill(open_tier(theirs), shape, KEYS[:2])
    here, late = (open_tier(own, remote_kv_sources=HOSTS) for _ in range(2))
    assert here.look(KEYS[:2], naming(theirs.port)) == [shape.hit] * 2
    for tier in (here, late):
        tier.tier.drain_jobs()
        assert tier.look(KEYS[:2], naming(theirs.port, request="s")) == [shape.miss] * 2


def test_there_is_a_limit_on_nodes_and_the_one_named_longest_ago_goes(
    shape: VllmShape, nodes: list[NodeServer], open_tier: Open
) -> None:
    own, theirs = nodes
    fill(open_tier(theirs), shape, KEYS[:2])
    here = open_tier(own, remote_kv_sources=HOSTS, lookup_timeout_ms=2000)
    with ExitStack() as stack:
        for number in range(NODES_MAX + 2):
            way = stack.enter_context(FaultProxy(theirs.host, theirs.port))
            request = naming(way.port, request=str(number))
            assert here.look(KEYS[:2], request) == [shape.hit] * 2
        assert here.tier.stats()["sources"] == NODES_MAX + 2
        assert here.tier._sources is not None
        assert len(here.tier._sources._nodes) == NODES_MAX


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"remote_kv_source": {"remote_host": "10.1.2.3", "remote_port": 1}}, ("10.1.2.3", 1)),
        (
            {"remote_kv_source": {"remote_host": "NODE-1", "remote_port": "65535"}},
            ("node-1", 65535),
        ),
        ({"remote_kv_source": {"remote_host": "11.1.2.3", "remote_port": 1}}, None),
        ({"remote_kv_source": {"remote_host": "node-2", "remote_port": 1}}, None),
        ({"remote_kv_source": {"remote_host": "10.1.2.3", "remote_port": 0}}, None),
        ({"remote_kv_source": {"remote_host": "10.1.2.3", "remote_port": 65536}}, None),
        ({"remote_kv_source": {"remote_host": "10.1.2.3", "remote_port": "1e3"}}, None),
        ({"remote_kv_source": {"remote_host": ["10.1.2.3"], "remote_port": 1}}, None),
        ({"remote_kv_source": {"remote_host": "10.1.2.3"}}, None),
        ({"remote_kv_source": "10.1.2.3:1"}, None),
        ({"do_remote_prefill": True}, None),
        (None, None),
        ("remote_kv_source", None),
    ],
)
def test_what_a_request_names(params: object, named: object) -> None:
    node, hosts = node_in(params), AllowedHosts(["10.0.0.0/8", "Node-1"])
    assert (node if node and hosts.allows(node[0]) else None) == named


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"remote_kv_sources: .*10\.0\.0\.1/8"):
        read_options({"remote_kv_sources": ["10.0.0.1/8"]}, 1 << 20)
    given = {"url": "file:///kv", "capacity_gb": 1, "remote_kv_sources": ["10.0.0.0/8"]}
    with pytest.raises(ConfigError, match="needs a url of a server"):
        read_options(given, 1 << 20)
