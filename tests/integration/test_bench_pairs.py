"""What the bars of pairs stand on: turns of clients elsewhere, system calls, interleaved rounds."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from benchmarks.bars import Lab
from benchmarks.node import node_small, node_values
from benchmarks.peers import peer_contact, peer_loads
from benchmarks.rival import ClientProcess, rival_bars
from kvferry.base.errors import CorruptError
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import InProcess
from kvferry_lab.bench.data import Chunks, Value
from kvferry_lab.bench.measure import Floor, against, measure
from kvferry_lab.bench.server_probe import ServerProbe
from support.servers import TestServer

SIZE = 1 << 16


@pytest.fixture
def config(valkey: TestServer) -> ClientConfig:
    return ClientConfig(host=valkey.host, port=valkey.port, same_host="tcp")


def test_turns_elsewhere_are_counted_there(valkey: TestServer, config: ClientConfig) -> None:
    with ClientProcess("redis-py", sys.executable, config, SIZE) as process:
        for op in ("get", "set", "get"):  # whoever reads first finds something
            turn = process.turn(op, connections=2, count=4)
            assert 0 < turn["wall_s"] < 60
            assert 0 < turn["cpu_s"] < 60
        assert valkey.cli("DBSIZE") == 4
    assert valkey.cli("DBSIZE") == 0, "its keys are gone"


def test_a_wrong_value_elsewhere_leaves_no_figure(valkey: TestServer, config: ClientConfig) -> None:
    with ClientProcess("redis-py", sys.executable, config, SIZE) as process:
        process.turn("get", connections=1, count=4)
        (key,) = valkey.cli("KEYS", "*:0000002")
        valkey.cli("SETRANGE", key, SIZE // 2, "not what was written there")
        with pytest.raises(CorruptError, match=r"redis-py: .*wrong from byte"):
            process.turn("get", connections=1, count=4)


def test_each_bar_beside_another_client_has_a_pair() -> None:
    lab = Lab(quick=True)
    found = list(rival_bars(lab, "redis-py", sys.executable))
    assert len(found) == 2 * len(lab.connections) * 2
    assert all(bar.value is not None and bar.interval is not None for bar in found), found
    assert sum(bar.name.startswith("CPU: SET") for bar in found) == len(found) // 4


class _Client(InProcess):
    """Stores through the probe, and writes down that it was its turn."""

    def __init__(self, connections: int, probe: ServerProbe, turns: list[str]) -> None:
        self.name, self.connections = f"client {connections}", connections
        self._probe, self._turns = probe, turns

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        self._turns.append(self.name)
        for key, value in zip(keys, values, strict=True):
            self._probe.set(key, bytes(value))

    def get_batch(self, keys: Sequence[str], targets: Sequence[Value]) -> Sequence[Value | None]:
        raise AssertionError

    def exists_batch(self, keys: Sequence[str]) -> int:
        raise AssertionError

    def close(self) -> None:
        """Nothing is held."""


class _Floor(Floor):
    """One with figures of its own."""

    def __init__(self, connections: int, gbps: list[float], turns: list[str]) -> None:
        super().__init__(connections, [])
        self._figures, self._turns = [*gbps], turns

    def round(self) -> None:
        self._turns.append(f"floor {self.connections}")
        self.gbps.setdefault("made", []).append(self._figures.pop(0))
        self.cpu.setdefault("made", []).append(2.0)


def test_neighbours_take_turns_and_a_ratio_is_theirs(config: ClientConfig) -> None:
    turns: list[str] = []
    chunks = Chunks(SIZE, 2, 2, warm_bytes=1)
    floor = [_Floor(2, [9.0, 1.0, 2.0], turns), _Floor(1, [9.0, 5.0, 5.0], turns)]
    with ServerProbe(config) as probe:
        clients = [_Client(1, probe, turns), _Client(2, probe, turns)]
        one, two = measure("set", clients, chunks, probe, floor=floor, rounds=2)
        probe.delete(chunks.keys)
    # The last round is forwards, the one before backwards; who follows itself is named once.
    there, back = "floor 1 client 1 floor 2 client 2", "floor 2 client 1 floor 1"
    said = [turn for turn, before in zip(turns, ["", *turns], strict=False) if turn != before]
    assert " ".join(said) == f"{there} {back} {there.removeprefix('floor 1 ')}"
    for row, rates in ((one, [5.0, 5.0]), (two, [1.0, 2.0])):
        pairs = [ours / theirs for ours, theirs in zip(row.rates, rates, strict=True)]
        assert row.floor_ratio == pytest.approx(sum(pairs) / 2)
        assert row.floor_interval is not None
        assert (row.floor_interval.low, row.floor_interval.high) == (min(pairs), max(pairs))
    best = against(two, floor)
    assert best.floor == "made, 1 connections"
    assert best.floor_ratio == pytest.approx(sum(rate / 5 for rate in two.rates) / 2)


def test_a_node_is_measured_beside_other_servers() -> None:
    lab = Lab(quick=True)
    bars = [*node_values(lab), *node_small(lab)]
    measured = [bar for bar in bars if not bar.skipped]
    assert len(bars) == 2 * 3 + 2
    assert all(bar.value and bar.interval for bar in measured), measured
    assert all(f"{name} " in bar.detail for bar in measured for name in ("node", *lab.servers()))


def test_a_peer_is_measured_beside_the_raw_client_and_when_it_is_met() -> None:
    lab = Lab(quick=True)
    pages, buffers, contact = [*peer_loads(lab), *peer_contact(lab)]
    assert all(bar.value and bar.interval for bar in (pages, buffers, contact))
    assert all("raw client" in bar.detail for bar in (pages, buffers))
    assert contact.target.unit == "ms"
