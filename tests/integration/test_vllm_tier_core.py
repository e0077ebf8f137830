"""The core of vLLM's tier against real servers: it never waits, never lies, and never fails."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvferry.base.errors import DeadlineExceeded
from kvferry.config.tuning import TierLimits
from kvferry.connectors import load_connector
from kvferry.integrations.vllm.tier.core import TierCore
from kvferry.integrations.vllm.tier.lookups import chunk_name
from kvferry.integrations.vllm.tier.transfers import FinishedTransfer
from support import clock
from support.connectors import space_of
from support.corrupt import ServerBytes
from support.proxy import FaultProxy
from support.servers import TestServer
from support.stamps import until, within

ROW = 64 << 10
ROWS = 64
LIMIT_S = 20.0
PATIENT = {"lookup_timeout_s": 10.0, "load_stall_s": 10.0, "load_timeout_s": 10.0}


def key(number: int, group: int = 0) -> bytes:
    return number.to_bytes(32, "big")[::-1] + group.to_bytes(4, "big")


KEYS = [key(number) for number in range(1, 17)]


class Primary:
    """A tier with memory of its own, driven as a scheduler drives it."""

    def __init__(
        self, url: str, size: int = ROW, model: str = "tiny", presence: str = "off", **limits: Any
    ) -> None:
        space = space_of(size, prefix="kvf:", weights=model)
        self.memory = mmap.mmap(-1, size * ROWS)
        self.size = size
        spec = {"type": "redis", "url": url, "presence": presence}
        connector = load_connector(spec, space)
        self.core = TierCore(
            connector, memoryview(self.memory), TierLimits(**{**PATIENT, **limits})
        )
        self._job = 0

    def row(self, index: int) -> bytes:
        return self.memory[index * self.size : (index + 1) * self.size]

    def fill(self, count: int) -> list[bytes]:
        """Random bytes in the first rows."""
        self.memory[: count * self.size] = os.urandom(count * self.size)
        return [self.row(index) for index in range(count)]

    def begin(self, what: Callable[..., None], keys: list[bytes]) -> int:
        self._job += 1
        what(self._job, keys, list(range(len(keys))))
        return self._job

    def await_jobs(self, count: int = 1) -> list[FinishedTransfer]:
        done: list[FinishedTransfer] = []
        until = clock.now_s() + LIMIT_S
        while len(done) < count:
            assert clock.now_s() < until, "a job hangs"
            done += self.core.finished()
        return done

    def store(self, keys: list[bytes]) -> FinishedTransfer:
        self.begin(self.core.store, keys)
        return self.await_jobs()[0]

    def load(self, keys: list[bytes]) -> FinishedTransfer:
        self.begin(self.core.load, keys)
        return self.await_jobs()[0]

    def look(self, keys: list[bytes], request: str = "r") -> list[bool | None]:
        """Steps until everything is answered."""
        until = clock.now_s() + LIMIT_S
        while True:
            self.core.finished()
            answers = [self.core.lookup(request, name) for name in keys]
            self.core.end_step()
            if None not in answers:
                return answers
            assert clock.now_s() < until, "a question hangs"


Open = Callable[..., Primary]


@pytest.fixture
def open_tier() -> Iterator[Open]:
    opened: list[Primary] = []

    def open_one(url: str, **settings: Any) -> Primary:
        opened.append(Primary(url, **settings))
        return opened[-1]

    yield open_one
    for primary in opened:
        primary.core.close()
        primary.memory.close()  # BufferError if somebody still has a view


@pytest.fixture
def store(start: Any) -> TestServer:
    server: TestServer = start("valkey")
    return server


def test_what_one_stored_another_finds(store: TestServer, open_tier: Open) -> None:
    one, two = open_tier(store.url), open_tier(store.url)
    stored = one.fill(16)
    done = one.store(KEYS)
    assert done.success
    assert done.done == KEYS
    assert done.size_bytes == 16 * ROW
    assert two.look([*KEYS, key(99)]) == [True] * 16 + [False]
    loaded = two.load(KEYS)
    assert loaded.success
    assert [two.row(index) for index in range(16)] == stored
    assert two.core.counts["lookup_hit"] == 16
    assert two.core.counts["load_bytes"] == 16 * ROW


def test_one_question_for_each_request(store: TestServer, open_tier: Open) -> None:
    tier = open_tier(store.url)
    for request in ("a", "b"):
        assert [tier.core.lookup(request, name) for name in KEYS] == [None] * 16
    assert tier.core.counts["batches"] == 0
    tier.core.end_step()
    assert tier.core.counts["batches"] == 2
    assert tier.look(KEYS, "a") == tier.look(KEYS, "b") == [False] * 16
    assert tier.core.counts["batches"] == 2
    assert not tier.core.busy
    tier.core.forget("a")
    assert tier.core.lookup("a", KEYS[0]) is None, "a new request asks again"


def test_a_step_that_nobody_ended(store: TestServer, open_tier: Open) -> None:
    """Who asks again for what was not sent makes it go out."""
    tier = open_tier(store.url)
    until = clock.now_s() + LIMIT_S
    while (found := tier.core.lookup("r", KEYS[0])) is None:
        assert clock.now_s() < until
    assert found is False


def test_part_of_a_load(store: TestServer, open_tier: Open) -> None:
    one, two = open_tier(store.url), open_tier(store.url)
    stored = one.fill(16)
    one.store(KEYS)
    assert two.look(KEYS) == [True] * 16
    one.core._channel.connector.batch_delete([chunk_name(KEYS[3]), chunk_name(KEYS[9])])
    loaded = two.load(KEYS)
    assert not loaded.success
    there = [name for name in KEYS if name not in (KEYS[3], KEYS[9])]
    assert list(loaded.done) == there
    assert all(two.row(index) == stored[index] for index in range(16) if index not in (3, 9))
    assert two.look(KEYS) == [index not in (3, 9) for index in range(16)], "no endless retries"
    assert two.core.counts["load_miss"] == 2


def test_a_flipped_byte_is_a_miss(store: TestServer, open_tier: Open) -> None:
    one, two = open_tier(store.url), open_tier(store.url)
    one.fill(2)
    one.store(KEYS[:2])
    server = ServerBytes(store.url)
    name = f"kvf:{chunk_name(KEYS[0])}"
    value = bytearray(server.read([name], ROW)[0])
    value[ROW // 2] ^= 1
    server.write({name: bytes(value)})
    assert two.look(KEYS[:2]) == [True, True]
    loaded = two.load(KEYS[:2])
    assert list(loaded.done) == [KEYS[1]]
    assert two.core.counts["load_corrupt"] == 1
    assert two.look(KEYS[:2]) == [False, True]
    assert two.look(KEYS[:2], "another request") == [False, True], "it was deleted"
    server.close()


def test_another_identity_loads_nothing(store: TestServer, open_tier: Open) -> None:
    """The prefix of these keys is the same on purpose: the frame alone has to refuse."""
    one, two = open_tier(store.url), open_tier(store.url, model="other")
    one.fill(1)
    one.store(KEYS[:1])
    loaded = two.load(KEYS[:1])
    assert not loaded.success
    assert loaded.done == []


def test_nothing_is_stored_twice(store: TestServer, open_tier: Open) -> None:
    one, two = open_tier(store.url), open_tier(store.url)
    one.fill(4)
    one.store(KEYS[:2])
    again = one.store(KEYS[:4])
    assert again.success
    assert again.done == KEYS[2:4]
    assert one.core.counts["store_skipped"] == 2
    two.look(KEYS[:4])
    assert two.store(KEYS[:4]).done == (), "it heard that they are there"
    store.cli("FLUSHALL")
    assert two.look(KEYS[:4], "later") == [False] * 4
    two.fill(4)
    assert two.store(KEYS[:4]).done == KEYS[:4], "and that they are gone"


def test_groups_of_layers_are_apart(store: TestServer, open_tier: Open) -> None:
    assert len({chunk_name(key(n, group)) for n in range(50) for group in range(4)}) == 200
    tier = open_tier(store.url)
    tier.fill(2)
    tier.store([key(1, 0)])
    assert tier.look([key(1, 0), key(1, 1)]) == [True, False]


def test_striped_rows(store: TestServer, open_tier: Open) -> None:
    one, two = open_tier(store.url, size=5 << 20), open_tier(store.url, size=5 << 20)
    stored = one.fill(3)
    assert one.store(KEYS[:3]).success
    assert two.look(KEYS[:3]) == [True] * 3
    assert two.load(KEYS[:3]).success
    assert [two.row(index) for index in range(3)] == stored


def test_a_store_that_is_down(store: TestServer, open_tier: Open) -> None:
    """Everything is a miss at once, jobs end, and it is used again when it is back."""
    tier = open_tier(store.url)
    tier.fill(2)
    store.kill()
    assert tier.look(KEYS) == [False] * 16
    until = clock.now_s() + LIMIT_S
    while tier.core.available:
        tier.look(KEYS, f"{time.monotonic()}")
        assert clock.now_s() < until
    assert tier.core.lookup("next", KEYS[0]) is False, "not even a step"
    assert not tier.store(KEYS[:2]).success
    assert not tier.load(KEYS[:2]).success
    store.restart()
    until = clock.now_s() + LIMIT_S
    while not tier.core.available:
        tier.core.finished()
        assert clock.now_s() < until
    assert tier.store(KEYS[:2]).success


def test_a_black_hole_costs_one_deadline(store: TestServer, open_tier: Open) -> None:
    with FaultProxy(store.host, store.port) as proxy:
        tier = open_tier(proxy.url, lookup_timeout_s=0.04)
        until = clock.now_s() + LIMIT_S
        while tier.core.counts["lookup_miss"] == 0:  # connected
            tier.look(KEYS, f"{time.monotonic()}")
            assert clock.now_s() < until
        while not tier.core.available:
            tier.core.finished()
            assert clock.now_s() < until
        proxy.black_hole()
        assert tier.look(KEYS, "first") == [False] * 16
        assert not tier.core.available
        asked = tier.core.counts["lookup_down"]
        assert tier.core.lookup("second", KEYS[0]) is False, "the first call answers"
        assert tier.core.counts["lookup_down"] == asked + 1
        proxy.heal()
        while not tier.core.available:
            tier.core.finished()
            assert clock.now_s() < until
        assert tier.look(KEYS, "third") == [False] * 16
        assert tier.core.counts["gate_shut"] >= 1


def test_a_store_that_hangs_in_a_load(store: TestServer, open_tier: Open) -> None:
    with FaultProxy(store.host, store.port) as proxy:
        one = open_tier(store.url)
        one.fill(16)
        one.store(KEYS)
        two = open_tier(proxy.url, load_stall_s=0.2)
        assert two.look(KEYS) == [True] * 16
        proxy.black_hole()
        loaded = two.load(KEYS)
        assert not loaded.success
        assert loaded.done == []
        assert two.look(KEYS) == [False] * 16
        assert not two.core.available


def test_a_store_that_dies_in_a_load(store: TestServer, open_tier: Open) -> None:
    """What came is right, what did not is said so."""
    with FaultProxy(store.host, store.port) as proxy:
        one = open_tier(store.url)
        stored = one.fill(16)
        one.store(KEYS)
        two = open_tier(proxy.url)
        assert two.look(KEYS) == [True] * 16
        proxy.cut_after(5 * ROW)
        two.begin(two.core.load, KEYS)
        proxy.refuse()
        loaded = two.await_jobs()[0]
        for name in loaded.done:
            index = KEYS.index(name)
            assert two.row(index) == stored[index]
        proxy.heal()


def test_stores_are_shed(store: TestServer, open_tier: Open) -> None:
    """More than may wait is not stored; one job alone may be larger than the limit."""
    with FaultProxy(store.host, store.port) as proxy:
        tier = open_tier(proxy.url, store_bytes_max=3 * ROW)
        tier.fill(8)
        assert tier.store(KEYS[:4]).success
        proxy.black_hole()
        tier.begin(tier.core.store, KEYS[4:6])
        tier.begin(tier.core.store, KEYS[6:8])
        shed = tier.await_jobs()[0]
        assert not shed.success
        assert list(shed.keys) == KEYS[6:8]
        assert tier.core.counts["store_shed"] == 2
        proxy.heal()
        tier.core.drain()
        assert not tier.core._transfers.running


def test_drain_is_bounded(store: TestServer, open_tier: Open) -> None:
    """What hangs is withdrawn; then nothing uses the rows, and its end is told."""
    with FaultProxy(store.host, store.port) as proxy:
        tier = open_tier(proxy.url, drain_timeout_s=0.2)
        tier.fill(2)
        tier.store(KEYS[:1])
        proxy.black_hole()
        tier.begin(tier.core.store, KEYS[1:2])
        tier.begin(tier.core.load, KEYS[:1])
        tier.core.drain()
        ended = {job.is_load: job.success for job in tier.core.finished()}
        assert ended == {False: False, True: False}  # in whichever order they let go


def test_closing_waits_for_stores_and_drops_loads(store: TestServer, open_tier: Open) -> None:
    one = open_tier(store.url)
    one.fill(16)
    one.begin(one.core.store, KEYS)
    one.core.close()
    one.core.close()
    assert [job.success for job in one.core.finished()] == [True]
    assert store.cli("DBSIZE") == 17  # and the descriptions
    assert one.core.lookup("r", KEYS[0]) is False
    one.begin(one.core.store, [key(99)])
    one.begin(one.core.load, KEYS)
    assert [job.success for job in one.core.finished()] == [False, False]
    one.core.touch(KEYS)
    one.core.end_step()


def test_memory_that_is_still_in_use_is_not_let_go(
    store: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = Primary(store.url)
    tier.fill(1)
    monkeypatch.setattr("kvferry.integrations.vllm.tier.core._WITHDRAW_S", 0.05)
    tier.core.limits = TierLimits(drain_timeout_s=0.05)
    monkeypatch.setattr(tier.core._channel, "poll", lambda: None)  # a store that never lets go
    tier.begin(tier.core.store, KEYS[:1])
    with pytest.raises(DeadlineExceeded, match="still use memory"):
        tier.core.close()
    assert tier.core._transfers._view is not None
    tier.core._transfers._view = None
    tier.core._channel._waiting.clear()


def test_chunks_in_use_are_touched(store: TestServer, open_tier: Open) -> None:
    tier = open_tier(store.url)
    tier.fill(1)
    tier.store(KEYS[:1])
    before = tier.core.counts["batches"]
    tier.core.touch(KEYS[:1])
    tier.core.end_step()
    assert tier.core.counts["batches"] == before + 1
    tier.core.touch(KEYS[:1])
    tier.core.end_step()
    assert tier.core.counts["batches"] == before + 1, "not with every step"


def test_answers_grow_old(store: TestServer, open_tier: Open) -> None:
    tier = open_tier(store.url)
    assert tier.look(KEYS) == [False] * 16
    tier.fill(1)
    tier.store(KEYS[:1])
    assert tier.core.lookup("r", KEYS[0]) is False, "an answer is an answer"
    now = tier.core._channel.clock()
    tier.core._channel.clock = lambda: now + 11.0
    tier.core.finished()
    assert tier.look(KEYS[:1]) == [True]


def test_what_was_refused_while_the_gate_was_shut_is_asked_when_it_is_open(
    store: TestServer, open_tier: Open
) -> None:
    """Else the request waits for an answer to a question that nobody has sent."""
    tier = open_tier(store.url)
    tier.fill(1)
    tier.store(KEYS[:1])
    tier.core._channel.pause()
    assert [tier.core.lookup("r", name) for name in KEYS] == [False] * 16
    tier.core._channel._resume()
    with within(5):
        assert tier.look(KEYS) == [True] + [False] * 15


def test_a_gate_that_shuts_before_the_end_of_the_step_answers_what_was_open(
    store: TestServer, open_tier: Open
) -> None:
    tier = open_tier(store.url)
    assert [tier.core.lookup("r", name) for name in KEYS] == [None] * 16
    tier.core._channel.pause()
    tier.core.end_step()
    assert [tier.core.lookup("r", name) for name in KEYS] == [False] * 16
    assert tier.core.counts["lookup_down"] == 16
    assert not tier.core.busy


def test_what_could_not_be_loaded_is_stored_again(store: TestServer, open_tier: Open) -> None:
    tier = open_tier(store.url)
    tier.fill(2)
    tier.store(KEYS[:2])
    tier.core._channel.connector.batch_delete([chunk_name(KEYS[0])])
    assert not tier.load(KEYS[:2]).success
    tier.fill(2)
    assert tier.store(KEYS[:2]).done == KEYS[:1]
    assert tier.load(KEYS[:2]).success


def test_an_answer_that_comes_too_late_changes_nothing_that_was_said(
    store: TestServer, open_tier: Open
) -> None:
    with FaultProxy(store.host, store.port) as proxy:
        tier = open_tier(proxy.url, lookup_timeout_s=5.0)
        tier.fill(1)
        tier.store(KEYS[:1])
        proxy.down.reading = False
        assert tier.core.lookup("r", KEYS[0]) is None
        tier.core.end_step()
        now = tier.core._channel.clock()
        tier.core._channel.clock = lambda: now + 6.0
        tier.core.finished()
        assert tier.core.lookup("r", KEYS[0]) is False
        proxy.heal()
        until(lambda: tier.core.finished() or not tier.core._channel._waiting, 4)
        assert tier.core.lookup("r", KEYS[0]) is False
        assert (tier.core.counts["lookup_timeout"], tier.core.counts["lookup_hit"]) == (1, 0)


@pytest.mark.presence
def test_what_the_presence_view_knows_to_be_absent_costs_no_question(valkey: TestServer) -> None:
    primary = Primary(valkey.url, presence="auto")
    try:
        connector = primary.core._channel.connector
        until(lambda: connector.presence == "synced", LIMIT_S)  # type: ignore[attr-defined]
        primary.fill(2)
        assert primary.store(KEYS[:2]).success
        before = valkey.info("commandstats").get("cmdstat_touch")
        assert primary.core.lookup("a", KEYS[5]) is False
        assert not primary.core.busy, "the step has nothing to wait for"
        primary.core.end_step()
        assert valkey.info("commandstats").get("cmdstat_touch") == before
        until(lambda: all(primary.look(KEYS[:2], "b")), LIMIT_S)
        assert primary.core.counts["lookup_miss"] == 1
    finally:
        primary.core.close()


@pytest.mark.presence
def test_what_the_presence_view_knows_to_be_there_is_no_question(valkey: TestServer) -> None:
    primary = Primary(valkey.url, presence="auto")
    try:
        primary.fill(2)
        assert primary.store(KEYS[:2]).success
        wire = primary.core._channel
        until(lambda: wire.leading([chunk_name(each) for each in KEYS[:2]]) == 2, LIMIT_S)
        before = valkey.info("commandstats").get("cmdstat_touch")
        assert [primary.core.lookup("a", each) for each in KEYS[:2]] == [None, None]
        primary.core.end_step()
        assert not primary.core.busy, "the next step has nothing to wait for"
        assert [primary.core.lookup("a", each) for each in KEYS[:2]] == [True, True]
        primary.core.end_step()
        assert valkey.info("commandstats").get("cmdstat_touch") == before
        assert primary.core.counts["lookup_hit"] == 2
    finally:
        primary.core.close()


def test_a_cleared_tier_finds_nothing_of_before_and_others_do(
    store: TestServer, open_tier: Open
) -> None:
    one, two = open_tier(store.url), open_tier(store.url)
    one.fill(4)
    assert one.store(KEYS[:4]).success
    assert two.look(KEYS[:4]) == [True] * 4
    one.core.drain()
    one.core.clear()
    assert one.look(KEYS[:4], "another") == [False] * 4
    fresh = one.fill(4)
    assert one.store(KEYS[:4]).success
    assert one.look(KEYS[:4], "a third") == [True] * 4
    one.memory[: 4 * ROW] = bytes(4 * ROW)
    assert one.load(KEYS[:4]).success
    assert [one.row(index) for index in range(4)] == fresh
    assert two.load(KEYS[:4]).success
    assert two.row(0) != fresh[0], "what it had before is what it has"
