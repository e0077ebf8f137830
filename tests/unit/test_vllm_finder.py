"""How much can be loaded: caches that are asked within a limit, by threads and over sockets."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry import Engine, Identity, KVLayout
from kvferry.engine.prompt import Prompt, read_prompt
from kvferry.errors import ClosedError
from kvferry.integrations.vllm import explain, ranks
from kvferry.integrations.vllm.explain import running, teller
from kvferry.integrations.vllm.finder import BackendFinder
from kvferry.integrations.vllm.ranks import RankAnswers, RankFinder, address

PROMPT: Prompt = read_prompt(range(80), 8, b"")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Cache:
    """A cache with a store that takes as long as it is told; time is that of a clock."""

    def __init__(self, clock: Clock, memory: int = 0, store: int = 0) -> None:
        self.clock = clock
        self.memory, self.store = memory, store
        self.takes_s = 0.0
        self.asks_stores = True
        self.limits: list[float] = []
        self.asked = threading.Event()
        self.error: Exception | None = None

    def lookup(self, tokens: Any, *, timeout_s: float | None = None) -> Any:
        assert timeout_s is not None
        self.limits.append(timeout_s)
        self.asked.set()
        if self.error is not None:
            raise self.error
        in_time = self.takes_s < timeout_s or (timeout_s > 0 and not self.takes_s)
        self.clock.now += min(self.takes_s, timeout_s)
        return SimpleNamespace(
            tokens=8 * (max(self.memory, self.store) if in_time else self.memory)
        )

    def clear(self, *, stores: bool = True) -> int:
        if self.error is not None:
            raise self.error
        self.memory = self.store = 0
        return 1


def finder_of(*caches: Cache, limit_s: float = 0.04) -> BackendFinder:
    return BackendFinder(caches, limit_s, caches[0].clock)  # type: ignore[arg-type]


def test_the_smallest_answer_counts() -> None:
    clock = Clock()
    finder = finder_of(Cache(clock, 5), Cache(clock, 2, 3), Cache(clock, 9))
    assert finder.find(PROMPT) == 3


def test_a_silent_store_is_waited_for_once_and_memory_goes_on() -> None:
    clock = Clock()
    cache = Cache(clock, memory=2, store=7)
    finder = finder_of(cache)
    assert finder.find(PROMPT) == 7
    cache.takes_s = 10.0
    began = clock.now
    assert finder.find(PROMPT) == 2
    assert clock.now - began == pytest.approx(0.04)
    assert finder.silent
    for _ in range(5):
        began = clock.now
        assert finder.find(PROMPT) == 2
        assert clock.now == began
    assert cache.limits[-5:] == [0.0] * 5
    finder.close()


def test_without_a_store_to_wait_for_the_answer_is_there_at_once() -> None:
    clock = Clock()
    first, second = Cache(clock, memory=5, store=9), Cache(clock, memory=2, store=9)
    finder = finder_of(first, second)
    first.asks_stores = False
    assert finder.now(PROMPT) is None, "the other one has a store to ask"
    assert not first.limits
    second.asks_stores = False
    assert finder.now(PROMPT) == 2
    assert first.limits == second.limits == [0.0]


def test_beside_a_silent_store_memory_answers_at_once() -> None:
    clock = Clock()
    cache = Cache(clock, memory=2, store=7)
    finder = finder_of(cache)
    assert finder.now(PROMPT) is None
    cache.takes_s = 10.0
    assert finder.find(PROMPT) == 2
    assert finder.now(PROMPT) == 2
    cache.takes_s = 0.0
    clock.now += 1.0  # time to try
    cache.asked.clear()
    assert finder.now(PROMPT) == 2
    until = time.monotonic() + 10
    while finder.silent:
        assert time.monotonic() < until
        assert cache.asked.wait(10)
    assert finder.now(PROMPT) is None
    finder.close()


def test_a_store_that_answers_again_is_asked_again() -> None:
    clock = Clock()
    cache = Cache(clock, memory=0, store=7)
    finder = finder_of(cache)
    cache.takes_s = 10.0
    assert finder.find(PROMPT) == 0
    cache.takes_s = 0.0
    clock.now += 1.0  # time to try
    cache.asked.clear()
    assert finder.find(PROMPT) == 0  # this one does not wait
    until = time.monotonic() + 10
    while finder.silent:
        assert time.monotonic() < until
        assert cache.asked.wait(10)
    assert finder.find(PROMPT) == 7
    finder.close()


def test_a_store_that_stays_silent_is_tried_now_and_then() -> None:
    clock = Clock()
    cache = Cache(clock, store=7)
    cache.takes_s = 10.0
    finder = finder_of(cache)
    finder.find(PROMPT)
    for _ in range(50):
        finder.find(PROMPT)
    assert len([limit for limit in cache.limits if limit > 0]) == 1  # too soon
    clock.now += 1.0
    for _ in range(50):
        finder.find(PROMPT)
    finder.close()
    assert len([limit for limit in cache.limits if limit > 0]) <= 2


def test_a_cache_that_is_closed_has_nothing() -> None:
    cache = Cache(Clock(), memory=3)
    cache.error = ClosedError("closed")
    finder = finder_of(cache)
    assert finder.find(PROMPT) == 0
    assert not finder.clear()
    assert not finder.silent


# --- Ranks ---


class Rank:
    """A finder of a rank."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.prompts: list[Prompt] = []
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None
        self.at_once: int | None = None

    def now(self, prompt: Prompt) -> int | None:
        return self.at_once

    def find(self, prompt: Prompt) -> int:
        self.prompts.append(prompt)
        assert self.go.wait(10)
        if self.error is not None:
            raise self.error
        return self.chunks

    def clear(self) -> bool:
        self.chunks = 0
        return True

    def close(self) -> None: ...


@pytest.fixture
def engine_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks in this process are asked as those of others are."""
    monkeypatch.setattr(ranks, "_here", {})


def opened(engine_id: str, *found: Rank) -> list[RankAnswers]:
    made = [RankAnswers(address(engine_id, i), rank) for i, rank in enumerate(found)]
    ranks._here.clear()
    return made


def names(engine_id: str, count: int) -> list[str]:
    return [address(engine_id, i) for i in range(count)]


def test_within_a_process_no_socket_is_used(engine_id: str) -> None:
    answers = RankAnswers(address(engine_id, 0), Rank(4))
    finder = RankFinder(names(engine_id, 1), 1.0)
    try:
        finder._ask = None  # type: ignore[assignment,method-assign]
        assert finder.find(PROMPT) == 4
        assert finder.clear()
        assert finder.find(PROMPT) == 0
    finally:
        answers.close()


def test_ranks_of_this_process_answer_at_once_if_all_can(engine_id: str) -> None:
    found = [Rank(4), Rank(2)]
    answers = [RankAnswers(address(engine_id, i), rank) for i, rank in enumerate(found)]
    finder = RankFinder(names(engine_id, 2), 1.0)
    try:
        found[0].at_once = 1
        assert finder.now(PROMPT) is None
        found[1].at_once = 3
        assert finder.now(PROMPT) == 1
        assert not found[0].prompts
        answers[1].close()
        assert finder.now(PROMPT) is None, "the other one is in another process, or gone"
    finally:
        for each in answers:
            each.close()


@pytest.mark.usefixtures("far")
def test_every_rank_is_asked_for_the_same_and_the_smallest_counts(engine_id: str) -> None:
    found = [Rank(4), Rank(2), Rank(9)]
    answers = opened(engine_id, *found)
    finder = RankFinder(names(engine_id, 3), 5.0)
    assert [finder.find(PROMPT) for _ in range(3)] == [2, 2, 2]
    assert all(rank.prompts == [PROMPT] * 3 for rank in found)
    assert finder.clear()
    assert finder.find(PROMPT) == 0
    finder.close()
    for each in answers:
        each.close()


@pytest.mark.usefixtures("far")
def test_many_threads_ask_at_once(engine_id: str) -> None:
    rank = Rank(3)
    (answers,) = opened(engine_id, rank)
    finder = RankFinder(names(engine_id, 1), 10.0)
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(finder.find(PROMPT))) for _ in range(16)
    ]
    rank.go.clear()
    for thread in threads:
        thread.start()
    rank.go.set()
    for thread in threads:
        thread.join(10)
    assert results == [3] * 16
    finder.close()
    answers.close()


@pytest.mark.usefixtures("far")
def test_a_rank_that_is_not_there_has_nothing_and_is_left_alone(engine_id: str) -> None:
    finder = RankFinder(names(engine_id, 2), 1.0)
    began = time.monotonic()
    assert [finder.find(PROMPT) for _ in range(100)] == [0] * 100
    assert time.monotonic() - began < 1.0
    finder.close()


@pytest.mark.usefixtures("far")
def test_a_rank_that_does_not_answer_costs_the_limit_once(
    engine_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_GRACE_S", 0.05)
    rank = Rank(3)
    rank.go.clear()
    (answers,) = opened(engine_id, rank)
    finder = RankFinder(names(engine_id, 1), 0.01)
    assert finder.find(PROMPT) == 0
    assert finder.find(PROMPT) == 0  # it rests
    assert len(rank.prompts) == 1
    rank.go.set()
    finder._ranks[0]._rest_until = 0.0
    monkeypatch.setattr(ranks, "_GRACE_S", 5.0)
    assert finder.find(PROMPT) == 3
    finder.close()
    answers.close()


@pytest.mark.usefixtures("far")
def test_a_rank_that_breaks_counts_as_one_that_has_nothing(engine_id: str) -> None:
    rank = Rank(3)
    rank.error = RuntimeError("x")
    (answers,) = opened(engine_id, rank)
    finder = RankFinder(names(engine_id, 1), 5.0)
    assert finder.find(PROMPT) == 0
    finder.close()
    answers.close()


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize(
    "question",
    [
        b"x" * 17,
        b"\xff\xff\xff\xff" + b"f" + bytes(12),
        b"\x01\x00\x00\x00" + b"f" + b"\x08\x00\x00\x00" + bytes(8) + b"x",
        b"\x00\x00\x00\x00" + b"?" + b"\x08\x00\x00\x00" + bytes(8),
        b"\x00\x00\x00\x00" + b"f" + bytes(12),
    ],
)
def test_nonsense_ends_a_connection_and_no_other(engine_id: str, question: bytes) -> None:
    (answers,) = opened(engine_id, Rank(3))
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(10)
        line.connect("\0" + address(engine_id, 0))
        line.sendall(question)
        with suppress(ConnectionResetError):  # there was more than it wanted to read
            assert line.recv(1) == b""
    finder = RankFinder(names(engine_id, 1), 5.0)
    assert finder.find(PROMPT) == 3
    finder.close()
    answers.close()


@pytest.mark.usefixtures("far")
def test_strangers_are_not_answered(engine_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_is_ours", lambda peer: False)
    (answers,) = opened(engine_id, Rank(3))
    finder = RankFinder(names(engine_id, 1), 5.0)
    assert finder.find(PROMPT) == 0
    answers.close()


@pytest.mark.usefixtures("far")
def test_a_name_is_free_again_when_its_owner_is_closed(engine_id: str) -> None:
    (first,) = opened(engine_id, Rank(1))
    with pytest.raises(OSError, match="in use"):
        RankAnswers(address(engine_id, 0), Rank(2))
    first.close()
    (second,) = opened(engine_id, Rank(2))
    finder = RankFinder(names(engine_id, 1), 5.0)
    assert finder.find(PROMPT) == 2
    finder.close()
    second.close()


# --- Explaining ---


def test_a_prompt_is_explained_by_the_engines_that_run(
    engine_id: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    layout = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="uint8", chunk_size=8)
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps(list(range(80))))
    with Engine(Identity(model="explained", layout=layout), max_local_cpu_size=0.001) as engine:
        answers = RankAnswers(address(engine_id, 0), BackendFinder([engine], 1.0), teller(engine))
        try:
            engine.store(list(range(80)), [bytes(layout.chunk_bytes)] * 10)
            assert address(engine_id, 0) in running()
            assert explain.main(["--tokens", str(file)]) == 0
            said = capsys.readouterr().out
            assert engine.identity.digest.hex() in said
            assert "80 tokens, 10 chunks of 8: 10 in l1" in said
            assert explain.main(["--tokens", str(file), "--salt", "other"]) == 0
            assert "10 nowhere" in capsys.readouterr().out
        finally:
            answers.close()
    assert address(engine_id, 0) not in running()
