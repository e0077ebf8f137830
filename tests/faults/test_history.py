"""Many threads, random operations, random faults: a read is a value that was written for its key.

The seed is the same in each run; `KVFERRY_HISTORY_SEED=... pytest tests/faults/test_history.py`
tries another (threads make no two runs alike, so a seed finds the same kind of trouble, not the
same moment).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from support import clock
from support.proxy import FaultProxy
from support.servers import TestServer
from support.stamps import KIB, check, fetch, poisoned, stamped, store, until
from support.tuned import tuned

Connect = Callable[..., Any]
Proxied = Callable[[TestServer], FaultProxy]
Reach = Callable[[Any], dict[str, Any]]

LIMITS = {"timeout_s": 1.0, "stall_timeout_s": 0.3, "connect_timeout_s": 0.3}
LIMITS |= {"reconnect_min_s": 0.01, "reconnect_max_s": 0.1}
CALL_S_MAX = 3.0  # 1 s and what two busy cores make of it
SERVED_MIN = 100  # keys, before it is a history; a machine with other work takes its time
MORE_S_MAX = 30.0
IDENTITY = b"12345678"
SIZE = 96 * KIB
KEYS = [f"k{index}" for index in range(8)]
RAW_SIZES = {key: SIZE - 1000 * index for index, key in enumerate(KEYS)}  # no two alike
FRAMED_SIZES = dict.fromkeys(KEYS, SIZE)


class History:
    """What was written, and what came of every call."""

    def __init__(self, seed: int, sizes: dict[str, int]) -> None:
        self.seed, self.sizes = seed, sizes
        self.stop_at = 0.0
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.failures: list[BaseException] = []
        self.slowest_s = 0.0
        self._written: dict[str, set[int]] = {key: set() for key in sizes}
        self._next = 0
        self._lock = threading.Lock()

    def writes(self, key: str) -> int:
        """A new version; from now on it may be read."""
        with self._lock:
            self._next += 1
            self._written[key].add(self._next)
            return self._next

    def step(self, client: Any, rng: random.Random) -> None:
        """One random call, checked."""
        keys = rng.sample(list(self.sizes), rng.randint(1, len(self.sizes)))
        verb = rng.choices(["get", "set", "exists", "delete"], [5, 3, 1, 1])[0]
        started = clock.now_s()
        if verb == "get":
            targets = [poisoned(self.sizes[key]) for key in keys]
            result = client.batch_get(keys, targets)
            for key, target, status in zip(keys, targets, result, strict=True):
                if status is Status.OK:
                    check(key, target, self._written[key])
                target[:64] = b"\x3c" * 64  # ours again
        elif verb == "set":
            values = [bytearray(stamped(k, self.writes(k), self.sizes[k])) for k in keys]
            result = client.batch_set(keys, values)
            for value in values:
                value[:] = bytes(len(value))
        elif verb == "exists":
            result = client.batch_exists(keys)
        else:
            result = client.batch_delete(keys)
        taken_s = clock.now_s() - started
        with self._lock:
            self.slowest_s = max(self.slowest_s, taken_s)
            self.outcomes.update((verb, status.name) for status in result)

    @property
    def served(self) -> int:
        with self._lock:
            return sum(n for (_, status), n in self.outcomes.items() if status == "OK")

    def goes_on(self) -> bool:
        """For its time, and until some calls were served and some were not."""
        over_s = time.monotonic() - self.stop_at
        return over_s < 0 or (
            over_s < MORE_S_MAX and not SERVED_MIN < self.served < self.outcomes.total()
        )

    def run(self, client: Any, number: int) -> None:
        rng = random.Random(self.seed * 1000 + number)
        try:
            while self.goes_on() and not self.failures:
                self.step(client, rng)
        except BaseException as error:
            self.failures.append(error)

    def break_things(self, proxy: FaultProxy, damaging: bool) -> None:
        """Faults of the way; `damaging` ones too, which only a frame or TLS can tell."""
        rng = random.Random(self.seed)
        kinds = ["cut", "cut_now", "stall", "slow", "delay", "hole", "refuse", "deaf"]
        if is_tls(proxy):  # nobody on the way knows what a reply is
            kinds += ["flip", "flip"]
        else:
            kinds += ["garbage", *["flip", "flip", "drop", "duplicate"] * damaging]
        while self.goes_on() and not self.failures:
            _inject(proxy, rng, rng.choice(kinds))
            time.sleep(rng.uniform(0.02, 0.25))
            proxy.heal()
            time.sleep(rng.uniform(0.02, 0.3))


def is_tls(proxy: FaultProxy) -> bool:
    return proxy.url.startswith("rediss:")


def _inject(proxy: FaultProxy, rng: random.Random, kind: str) -> None:
    offset = rng.randrange(4 * SIZE)
    match kind:
        case "cut":
            proxy.cut_after(offset, rng.choice(["rst", "fin"]), times=rng.randint(1, 5))
        case "cut_now":
            proxy.cut_now(rng.choice(["rst", "fin"]))
        case "stall":
            proxy.stall_after(offset, times=rng.randint(1, 3))
        case "slow":
            rng.choice([proxy.up, proxy.down]).bandwidth_bytes_per_s = rng.uniform(1e5, 1e7)
        case "delay":
            rng.choice([proxy.up, proxy.down]).delay_s = rng.uniform(0, 0.1)
        case "hole":
            proxy.black_hole()
        case "refuse":
            proxy.refuse()
            proxy.cut_now()
        case "garbage":
            garbage = rng.choice([b"@1\r\n", rng.randbytes(9), b"$3\r\nab", b"*2\r\n:1\r\n"])
            proxy.insert_before_reply(garbage, rng.randrange(5))
        case "deaf":
            rng.choice([proxy.up, proxy.down]).reading = False
        case "flip":
            proxy.flip(offset, mask=1 << rng.randrange(8), times=rng.randint(1, 3))
        case "drop":
            proxy.drop_reply(rng.randrange(5))
        case "duplicate":
            proxy.duplicate_reply(rng.randrange(5))


def _run(runs: list[tuple[History, Any, FaultProxy, bool]], seconds: float, threads: int) -> None:
    workers = []
    for history, client, proxy, damaging in runs:
        history.stop_at = time.monotonic() + seconds
        workers += [
            threading.Thread(target=history.run, args=(client, number), daemon=True)
            for number in range(threads)
        ]
        workers.append(
            threading.Thread(target=history.break_things, args=(proxy, damaging), daemon=True)
        )
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds + MORE_S_MAX + 15)
    assert not any(worker.is_alive() for worker in workers), "a call does not come back"
    for history, client, proxy, _ in runs:
        print(f"seed {history.seed}: {dict(history.outcomes)}, slowest {history.slowest_s:.2f} s")
        if history.failures:
            raise history.failures[0]
        assert history.slowest_s < CALL_S_MAX
        # It was a history: some calls were served, some were not.
        assert SERVED_MIN < history.served < history.outcomes.total()
        proxy.heal()
        sizes = history.sizes
        until(lambda c=client, s=sizes: store(c, s, 10**9).ok, 5)
        until(lambda c=client, s=sizes: fetch(c, s, {10**9}).result.ok, 5)


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("KVFERRY_HISTORY_SEED", "1"))


def _native_runs(
    server: TestServer, proxied: Proxied, connect: Connect, seed: int
) -> list[tuple[History, Any, FaultProxy, bool]]:
    raw, framed = proxied(server), proxied(server)
    space = connect(framed, **LIMITS).namespace("ns:", IDENTITY, SIZE)
    return [
        (History(seed, RAW_SIZES), connect(raw, **LIMITS), raw, False),
        (History(seed + 1, FRAMED_SIZES), space, framed, True),
    ]


@pytest.mark.ways("tcp", "tls", soak=("unix",))
def test_native(valkey: TestServer, proxied: Proxied, connect_native: Connect, seed: int) -> None:
    _run(_native_runs(valkey, proxied, connect_native, seed), seconds=3, threads=4)


@pytest.mark.ways("tcp", soak=("tls", "unix"))
@pytest.mark.soak
def test_native_for_longer(
    redis7: TestServer, proxied: Proxied, connect_native: Connect, seed: int
) -> None:
    _run(_native_runs(redis7, proxied, connect_native, seed), seconds=20, threads=6)


@pytest.mark.ways("tcp", soak=("tls", "unix"))
def test_pure(redis7: TestServer, proxied: Proxied, reach: Reach, seed: int) -> None:
    proxy = proxied(redis7)
    with PureRedisClient(**tuned(ClientConfig, **(reach(proxy) | LIMITS))) as client:
        _run([(History(seed, RAW_SIZES), client, proxy, False)], seconds=3, threads=2)
