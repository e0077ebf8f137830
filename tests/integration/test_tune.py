"""`kvferry tune` on real servers: it reaches 0.95 of the best of a full sweep, and cleans up."""

from __future__ import annotations

import importlib.util
import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kvferry.base.errors import CapacityError, CorruptError, UnavailableError, UsageError
from kvferry.config import ClientConfig
from kvferry_lab.bench.programs import DelayProcess, ProgramError, find_program
from kvferry_lab.tune.points import Grid, TunePoint
from support.proxy import FaultProxy
from support.servers import TestServer

if importlib.util.find_spec("kvferry._native") is None:
    pytest.skip("tune measures the native client, which is not built", allow_module_level=True)

from kvferry_lab.tune.run import Tune
from kvferry_lab.tune.tune_meter import KEY_PREFIX, TuneMeter

MIB = 1 << 20
BAR = 0.95
# Small enough for a test, and wide enough that most of it is bad: with 5 ms of round trip, one
# connection that asks for 256 KiB ahead reads 50 MB/s.
GRID = Grid(
    connections=(1, 4, 8),
    workers=(1, 4),
    chunk_bytes=(MIB // 4, MIB),
)
WORST = TunePoint(1, 1, MIB // 4)
SIZE_BYTES = 8 * MIB
PAIRS = (9, 15, 25, 41)  # more of them only where fewer leave it open


@pytest.fixture
def distant(valkey: TestServer) -> Iterator[ClientConfig]:
    try:
        find_program("delay")
    except ProgramError as error:
        pytest.skip(str(error))
    config = ClientConfig.from_url(valkey.url)
    with DelayProcess(config, rtt_ms=5.0) as proxy:
        yield config.replace(port=proxy.port)


def keys(server: TestServer) -> list[bytes]:
    found: list[bytes] = server.cli("KEYS", "*")
    return found


class Judge:
    """Compares two points by pairs A B A in one meter, apart from the code of the search."""

    def __init__(self, meter: TuneMeter) -> None:
        self._meter = meter

    def rate(self, point: TunePoint) -> float:
        return self._meter.turn(point).mix_gbps(2)

    def falls_short(self, one: TunePoint, other: TunePoint, bar: float) -> bool:
        """Whether `one` is known to be below `bar` times `other`: sign test, 1 % either way.

        It ends at once when the median is above the bar, and goes on until it is sure when not.
        """
        ratios: list[float] = []
        before = self.rate(other)
        for count in PAIRS:
            while len(ratios) < count:
                rate, after = self.rate(one), self.rate(other)
                ratios.append(rate * 2 / (before + after))
                before = after
            if statistics.median(ratios) >= bar:
                return False
            below = sum(ratio < bar for ratio in ratios)
            if _chance_of_heads(count, below) < 0.01:
                return True
        return False  # 41 pairs cannot tell it from the bar


def _chance_of_heads(count: int, heads: int) -> float:
    """The chance of so many heads or more, of a fair coin."""
    return sum(math.comb(count, k) for k in range(heads, count + 1)) / 2.0**count


def test_the_judge_knows_a_coin() -> None:
    assert _chance_of_heads(4, 4) == 1 / 16
    assert _chance_of_heads(9, 9) < 0.01 < _chance_of_heads(9, 7)


@pytest.mark.timeout(400)
@pytest.mark.soak  # it compares speeds, which says something on a machine that is left alone
def test_what_is_chosen_reaches_the_best_of_a_full_sweep(
    distant: ClientConfig, valkey: TestServer
) -> None:
    start = distant.replace(connections=1, workers=1)
    said: list[str] = []
    result = Tune(config=start, grid=GRID, size_bytes=SIZE_BYTES, budget_s=10).run(said.append)
    assert result.before == replace(WORST, chunk_bytes=MIB)
    assert result.ratio > 1.2, f"from the worst settings there is a way up: {said}"

    with TuneMeter(distant, SIZE_BYTES) as meter:
        judge = Judge(meter)
        points = GRID.points()
        rates: dict[TunePoint, list[float]] = {point: [] for point in points}
        for turn in range(4):
            for point in random.Random(turn).sample(points, len(points)):
                rates[point].append(judge.rate(point))
        best = max(points, key=lambda point: statistics.median(rates[point]))
        assert judge.falls_short(WORST, best, BAR), "a judge that cannot say no is none"
        chosen = result.best
        assert chosen == best or not judge.falls_short(chosen, best, BAR), (chosen, best, said)
    assert keys(valkey) == []


def test_a_full_sweep_says_how_near_the_search_came(valkey: TestServer) -> None:
    grid = Grid(connections=(1, 2), workers=(1,), chunk_bytes=(MIB // 4,))
    run = Tune(
        config=ClientConfig.from_url(valkey.url),
        grid=grid,
        size_bytes=MIB,
        budget_s=1,
        full=True,
    )
    result = run.run(lambda text: None)
    assert result.sweep_best in grid.points()
    assert result.sweep_ratio is not None
    assert result.sweep_ratio > 0.3
    assert result.tuned["times_full_sweep"] == round(result.sweep_ratio, 3)
    assert result.verified_bytes >= result.turns * MIB
    assert result.server == f"valkey {valkey.version}"
    assert keys(valkey) == []


def test_keys_are_ours_expire_and_are_few(valkey: TestServer) -> None:
    valkey.cli("SET", "kvferry:tune:of-another", "stays")
    with TuneMeter(ClientConfig.from_url(valkey.url), 2 * MIB) as meter:
        for connections in (1, 4, 1):
            meter.turn(TunePoint(connections, 1, MIB // 2))
        meter.turn(TunePoint(1, 1, MIB))
        new_clients = 2  # their first turn is run twice
        assert meter.verified_bytes == (4 + new_clients) * 2 * MIB
        ours = [key for key in keys(valkey) if not key.endswith(b"of-another")]
        assert len(ours) == 4 + 2, "one set of keys for each size of value"
        for key in ours:
            assert key.startswith(KEY_PREFIX.encode())
            assert 0 < valkey.cli("TTL", key) <= 900
    assert keys(valkey) == [b"kvferry:tune:of-another"]


def test_many_settings_do_not_pile_up_connections(valkey: TestServer) -> None:
    with TuneMeter(ClientConfig.from_url(valkey.url), MIB) as meter:
        for connections in range(2, 7):  # 110 connections, if none were closed
            for workers in range(1, connections + 1):
                meter.turn(TunePoint(connections, workers, MIB // 2))
        assert int(valkey.info("clients")["connected_clients"]) < 100
    with pytest.raises(UsageError, match="lower --mib"):
        Tune(config=ClientConfig(), size_bytes=1 << 50).run(print)


def test_a_wrong_byte_ends_it(
    valkey: TestServer, proxied: Callable[[TestServer], FaultProxy]
) -> None:
    proxy = proxied(valkey)
    config = ClientConfig.from_url(proxy.url)
    fault = proxy.flip(300_000)
    with pytest.raises(CorruptError, match="wrong from byte"):
        Tune(config=config, size_bytes=MIB, budget_s=2).run(lambda text: None)
    fault.wait_fired()
    assert keys(valkey) == []


def test_a_server_that_evicts_our_values_ends_it(start: Callable[..., TestServer]) -> None:
    server = start("valkey", "--maxmemory", "12mb", "--maxmemory-policy", "allkeys-lru")
    config = ClientConfig.from_url(server.url)
    with TuneMeter(config, 24 * MIB) as meter, pytest.raises(CapacityError, match="evicted"):
        meter.turn(TunePoint(1, 1, MIB))
    run = Tune(config=config, size_bytes=24 * MIB, budget_s=1)
    with pytest.raises(CapacityError, match="maxmemory has"):
        run.run(print)
    assert keys(server) == []


def test_settings_that_the_server_refuses_are_left_out(start: Callable[..., TestServer]) -> None:
    server = start("valkey", "--maxclients", "20")
    grid = Grid(connections=(1, 24), workers=(1,), chunk_bytes=(MIB // 4,))
    config = ClientConfig.from_url(server.url).replace(connections=1, connect_timeout_s=2.0)
    result = Tune(config=config, grid=grid, size_bytes=MIB, budget_s=1).run(print)
    assert result.best.connections == 1
    (point, reason), *more = result.failed.items()
    assert (point.connections, more) == (24, [])
    assert "of 24 connections could be opened" in reason
    assert keys(server) == []


def test_a_server_that_is_away_is_said_at_once(start: Callable[..., TestServer]) -> None:
    server = start("valkey")
    config = ClientConfig.from_url(server.url)
    server.stop()
    with pytest.raises(UnavailableError):
        Tune(config=config, budget_s=1).run(print)
